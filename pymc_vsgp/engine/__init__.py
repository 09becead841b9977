"""The sum over the data."""

from pymc_vsgp.engine import backends  # noqa: F401  (registers the Ops when they are compiled)
from pymc_vsgp.engine.pointwise import observe, total

__all__ = ["observe", "total"]
