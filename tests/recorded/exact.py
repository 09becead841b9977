"""Posteriors of exact processes by long runs of NUTS, to compare sparse ones with.

``python tests/recorded/exact.py`` draws from the models below, which are PyMC's own, and writes
what tests need of the draws to ``exact.npz`` beside this file. It takes a few minutes.
"""

import pathlib

import arviz as az
import numpy as np
import pymc as pm

import pymc_vsgp as vsgp

FILE = pathlib.Path(__file__).resolve().parent / "exact.npz"
SETTINGS = {"draws": 4000, "tune": 1000, "chains": 4, "cores": 2, "random_seed": 8}
SETTINGS |= {"nuts_sampler": "nutpie", "target_accept": 0.95}


def coal_data():
    """Return inputs, counts and widths of the bins."""
    counts = vsgp.datasets.coal_counts(bins=60)
    return (
        counts["year"].to_numpy()[:, None],
        counts["count"].to_numpy(),
        counts["width"].to_numpy(),
    )


def coal():
    """The published setting, with fewer bins."""
    X, y, width = coal_data()
    lengthscale, variance = pm.Gamma("lengthscale", 1.1, 0.1), pm.Gamma("variance", 1.0, 0.3)
    f = pm.gp.Latent(cov_func=variance * pm.gp.cov.ExpQuad(1, ls=lengthscale)).prior("f", X=X)
    pm.Poisson("y", width * pm.math.exp(f), observed=y)


def short_data():
    """Return inputs and counts on a short interval."""
    X = np.linspace(0, 1, 25)[:, None]
    return X, np.random.default_rng(11).poisson(np.exp(1.0 + np.sin(7 * X[:, 0])))


def short():
    """A rough function on a short interval."""
    X, y = short_data()
    ls, variance = pm.Gamma("ls", 6, 20), pm.Gamma("variance", 3, 3)
    cov = variance * pm.gp.cov.Matern52(1, ls=ls)
    f = pm.gp.Latent(mean_func=pm.gp.mean.Constant(0.8), cov_func=cov).prior("f", X=X)
    pm.Poisson("y", pm.math.exp(f), observed=y)


MODELS = {"coal": coal, "short": short}


def load(name):
    """Return mean, standard deviation and their error, of each logarithm and of the rate."""
    with np.load(FILE) as file:
        return {
            key.split("/")[1]: dict(zip(("mean", "sd", "mcse"), file[key], strict=True))
            for key in file.files
            if key.split("/")[0] == name
        }


def main():
    """Draw, and write the file."""
    found = {}
    for name, build in MODELS.items():
        with pm.Model():
            build()
            posterior = pm.sample(**SETTINGS)["posterior"].to_dataset()
        draws = {n: np.log(x) for n, x in posterior.items() if n.split("_")[0] != "f"}
        draws["rate"] = np.exp(posterior["f"])
        for key, x in draws.items():
            assert float(az.rhat(x).max()) < 1.01
            moments = [x.mean(("chain", "draw")), x.std(("chain", "draw")), az.mcse(x)]
            found[f"{name}/{key}"] = np.stack([np.asarray(m) for m in moments])
            print(name, key, found[f"{name}/{key}"][:, ...].T[:3])
    np.savez_compressed(FILE, **found)


if __name__ == "__main__":
    main()
