"""Classes, with a choice of how the functions make them."""

from typing import Any

from pymc_vsgp.likelihoods.links import find_link
from pymc_vsgp.likelihoods.robust_max import RobustMax
from pymc_vsgp.likelihoods.softmax import Softmax

LINKS = {"softmax": Softmax, "robustmax": RobustMax}


def Categorical(n_classes: int, link: str = "softmax", **kwargs: Any) -> Softmax | RobustMax:
    """Classes: a :class:`Softmax` or a :class:`RobustMax`.

    Parameters
    ----------
    n_classes : int
        Number of classes and of latent functions.
    link : {"softmax", "robustmax"}
        Smooth probabilities, in which a function's size counts; or the largest of the functions
        with rare errors, which a few outliers do not move.
    **kwargs
        Passed on, for example ``epsilon`` of robust-max.

    Returns
    -------
    Likelihood
    """
    return find_link(link, LINKS)(n_classes, **kwargs)
