"""Steps of latent values in turns with those of parameters, against quadrature."""

import pymc as pm
import pytest
import reference_steps as reference

from modes import REWRITTEN

import pymc_vsgp as vsgp

from pymc_vsgp.steps import EllipticalSlice, Interweaving, ProbitAugmentation

FAST = {"compile_kwargs": {"mode": REWRITTEN}}


def theta(model):
    return [model["ls"], model["sd"]]


STEPS = {
    "elliptical slice": lambda m: [
        EllipticalSlice([m["u"]], n_updates=5, **FAST),
        pm.Slice(theta(m), **FAST),
    ],
    "sufficient and ancillary": lambda m: Interweaving(
        theta(m), schemes=("sufficient", "ancillary"), n_updates=3, **FAST
    ),
    "augmentation": lambda m: [
        ProbitAugmentation([m["f"]], n_updates=3, **FAST),
        pm.Slice(theta(m), **FAST),
    ],
}


@pytest.mark.slow
@pytest.mark.parametrize("which", STEPS)
def test_posterior(which):
    """Of inducing values in the coordinates of a Gaussian stage, and of a probit."""
    probit = which == "augmentation"
    with reference.latent() if probit else reference.sparse() as model:
        if not probit:
            vsgp.fit_gaussian(progressbar=False)
        idata = pm.sample(
            350,
            tune=150,
            chains=2,
            cores=1,
            step=STEPS[which](model),
            random_seed=2,
            progressbar=False,
            compute_convergence_checks=False,
        )
    reference.check(idata, "probit" if probit else "sparse", largest=0.15, rhat=1.08)
