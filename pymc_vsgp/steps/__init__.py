"""Other samplers of the same posteriors, as step methods of PyMC."""

from pymc_vsgp.steps.augmentation import ProbitAugmentation
from pymc_vsgp.steps.elliptical import EllipticalSlice
from pymc_vsgp.steps.interweaving import Interweaving
from pymc_vsgp.steps.pseudo_marginal import PseudoMarginal

__all__ = ["EllipticalSlice", "Interweaving", "ProbitAugmentation", "PseudoMarginal"]
