"""The sum over the data."""

from pymc_vsgp.potential import backends  # noqa: F401  (registers the Ops when they are compiled)
from pymc_vsgp.potential.kinds import AtPoints, OfWaves
from pymc_vsgp.potential.moments import Moments
from pymc_vsgp.potential.pointwise import observe, total

__all__ = ["AtPoints", "Moments", "OfWaves", "observe", "total"]
