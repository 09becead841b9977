"""The sum over the data."""

from pymc_vsgp.engine import backends  # noqa: F401  (registers the Ops when they are compiled)
from pymc_vsgp.engine.kinds import AtPoints, OfWaves
from pymc_vsgp.engine.moments import Moments
from pymc_vsgp.engine.pointwise import observe, total

__all__ = ["AtPoints", "Moments", "OfWaves", "observe", "total"]
