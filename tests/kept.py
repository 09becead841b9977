"""A model whose draws are kept on disk: everything that another process needs besides the file."""

import numpy as np
import pymc as pm

import pymc_vsgp as vsgp

quiet = {"progressbar": False}
XNEW = np.linspace(-1.0, 11.0, 9)[:, None]
SETTINGS = {"tune": 100, "chains": 2, "cores": 2, "random_seed": 3, **quiet}


def make_data():
    rng = np.random.default_rng(4)
    X = np.sort(rng.uniform(0.0, 10.0, 60))[:, None]
    return X, rng.poisson(2.0 * np.exp(np.sin(X[:, 0])))


def build(likelihood=vsgp.Poisson):
    X, y = make_data()
    with pm.Model() as model:
        ls = pm.Gamma("ls", 4.0, 2.0)
        mean = pm.gp.mean.Constant(pm.Normal("c", 0.0, 2.0))
        gp = pm.gp.VariationalSparse(cov_func=pm.gp.cov.Matern52(1, ls=ls), mean_func=mean)
        gp.prior("u", Xu=vsgp.inducing.grid(X, 7))
        gp.likelihood("y", likelihood(), X=X, y=y)
    return model


def moments(idata, model):
    return vsgp.predict(idata, XNEW, "moments", model=model, **quiet)
