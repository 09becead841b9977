"""Fill the cache of compiled code, for images and classrooms: ``python -m pymc_vsgp.warm``.

numba takes about half a minute for a kernel and a likelihood that it has not met. What it compiles
here, NUTS finds: a log density with these, and the parts of any other.
"""

import argparse
import importlib.util
import time

import numpy as np
import pymc as pm

from pytensor import config

import pymc_vsgp as vsgp

__all__ = ["warm"]

KERNELS = {"Matern52": pm.gp.cov.Matern52, "ExpQuad": pm.gp.cov.ExpQuad}
LIKELIHOODS = {
    "Poisson": vsgp.Poisson,
    "Bernoulli": vsgp.Bernoulli,
    "NegativeBinomial": lambda: vsgp.NegativeBinomial(alpha=pm.Exponential("alpha", 1.0)),
    "StudentT": lambda: vsgp.StudentT(sigma=pm.HalfNormal("sigma", 1.0), nu=4.0),
}


def warm(kernels=tuple(KERNELS), likelihoods=tuple(LIKELIHOODS), inputs=(1, 2)) -> None:
    """
    Compile log densities with their gradients, and keep what numba made of them.

    Parameters
    ----------
    kernels, likelihoods : sequence of str
        Names of what to compile, each kernel with each likelihood.
    inputs : sequence of int
        Numbers of inputs, with a lengthscale each.
    """
    for kernel in kernels:
        for likelihood in likelihoods:
            for d in inputs:
                began = time.perf_counter()
                model = _model(KERNELS[kernel], LIKELIHOODS[likelihood], d)
                _compile(model)
                seconds = time.perf_counter() - began
                print(f"{kernel}, {likelihood}, {d} inputs: {seconds:.0f} s", flush=True)
    print(f"In {config.compiledir.parent}")


def _model(kernel, likelihood, d):
    X = np.random.default_rng(0).uniform(size=(20, d))
    with pm.Model() as model:
        lengthscale = pm.InverseGamma("lengthscale", mu=1, sigma=1, shape=d if d > 1 else ())
        scale = pm.HalfNormal("scale", 1)
        mean = pm.gp.mean.Constant(pm.Normal("intercept"))
        gp = vsgp.VariationalSparse(mean_func=mean, cov_func=scale**2 * kernel(d, ls=lengthscale))
        gp.prior("u", Xu=X[:5])
        gp.likelihood("y", likelihood(), X=X, y=np.zeros(len(X), dtype=int))
    return model


def _compile(model):
    """Compile what NUTS does: nutpie's, where that is installed, or PyMC's."""
    if importlib.util.find_spec("nutpie") is not None:
        import nutpie

        from pymc_vsgp.fit.callables import lean_callables

        with lean_callables():
            nutpie.compile_pymc_model(model, freeze_model=True)
        return
    point = model.initial_point()
    start = np.concatenate([np.ravel(point[v.name]) for v in model.continuous_value_vars])
    model.logp_dlogp_function(ravel_inputs=True, mode="NUMBA")(start)


def _names(text):
    return text.split(",")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m pymc_vsgp.warm", description=__doc__)
    parser.add_argument("--kernels", type=_names, default=list(KERNELS), help=",".join(KERNELS))
    parser.add_argument(
        "--likelihoods", type=_names, default=list(LIKELIHOODS), help=",".join(LIKELIHOODS)
    )
    parser.add_argument("--inputs", type=int, nargs="+", default=[1, 2], help="how many: 1 2")
    given = parser.parse_args()
    for name, known in (("kernels", KERNELS), ("likelihoods", LIKELIHOODS)):
        if unknown := sorted(set(getattr(given, name)) - set(known)):
            parser.error(f"There are no {name} {unknown} here. Choose of {list(known)}.")
    warm(given.kernels, given.likelihoods, given.inputs)
