"""Numerical operations that know nothing of Gaussian processes."""
