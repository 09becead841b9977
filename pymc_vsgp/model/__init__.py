"""The process in a PyMC model."""
