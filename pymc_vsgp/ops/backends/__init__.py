"""What numba and JAX need to run the Ops."""
