"""Other samplers of the same posteriors, as step methods of PyMC."""

from pymc_vsgp.steps.elliptical import EllipticalSlice

__all__ = ["EllipticalSlice"]
