"""The sum over the data."""

from pymc_vsgp.potential import backends  # noqa: F401  (registers the Ops when they are compiled)
from pymc_vsgp.potential.moments import Moments, conditional_moments
from pymc_vsgp.potential.pointwise import observe, total

__all__ = ["Moments", "conditional_moments", "observe", "total"]
