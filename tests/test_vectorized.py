"""Draws that are evaluated in batches give what they give one by one."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

from marks import long
from modes import RAW
from prior_draws import prior_draws
from pytensor.graph import Apply, Op

import pymc_vsgp as vsgp

from pymc_vsgp.engine import vectorized
from pymc_vsgp.engine.vectorized import Batched
from pymc_vsgp.results.draws import Fitted

N, S = 20, 7
quiet = {"progressbar": False}
X = np.linspace(0, 3, N)[:, None]
XNEW = np.linspace(-1, 4, 30)[:, None]


def points(likelihood, y, n_outputs=1, params=()):
    with pm.Model() as model:
        ls = pm.Gamma("ls", 4, 4)
        given = [pm.Gamma(name, 3, 2) for name in params]
        gp = vsgp.VariationalSparse(
            mean_func=pm.gp.mean.Constant(0.3), cov_func=1.3 * pm.gp.cov.Matern32(1, ls=ls)
        )
        gp.prior("u", Xu=vsgp.inducing.grid(X, 5), n_outputs=n_outputs)
        gp.likelihood("y", likelihood(*given), X=X, y=y)
    return model


def waves():
    with pm.Model() as model:
        ls = pm.Gamma("ls", 4, 4)
        gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(1, ls=ls))
        gp.prior("u", inducing=vsgp.inducing.Fourier(6.0, 4), n_outputs=2)
        gp.likelihood("y", vsgp.HeteroskedasticGaussian(), X=X, y=np.cos(X[:, 0]))
    return model


MODELS = {
    "counts": lambda: points(
        lambda alpha: vsgp.NegativeBinomial(alpha=alpha), np.arange(N) % 4, params=["alpha"]
    ),
    "rows": lambda: points(lambda: vsgp.Poisson(exposure=np.linspace(1, 2, N)), np.arange(N) % 3),
    "classes": lambda: points(lambda: vsgp.Softmax(3), np.arange(N) % 3, 3),
    "waves": waves,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["counts", "waves", *long("classes", "rows")])
def test_equal_to_one_by_one(name, monkeypatch):
    """Of the same operations: other rewrites of a graph would round otherwise."""
    model = MODELS[name]()
    idata = prior_draws(model, S)
    many, one = (Fitted(idata, model, mode=mode) for mode in (None, RAW))
    found = []
    for fit, size in ((one, 1), (many, vectorized.BATCH_BYTES), (many, 2000)):
        monkeypatch.setattr(vectorized, "BATCH_BYTES", size)
        at = slice(1, S)
        mu, gamma = fit.moments(at, X)
        assert mu.shape[:2] == (S - 1, N)
        y = fit.seen[1]
        both = [fit.expected_logp(at, mu, gamma, y), fit.log_predictive(at, mu, gamma, y)]
        joint = []
        if name != "waves":  # whose covariance takes one draw at a time
            joint = [x for pair in fit.joint_moments(at, XNEW[:6]) for x in pair]
        found.append([mu, gamma, *both, fit.mean(at, mu, gamma), *joint])
    for other in found[1:]:
        for x, known in zip(other, found[0], strict=True):
            np.testing.assert_allclose(x, known, rtol=1e-10, atol=1e-12)
    assert many.compiled("moments", None).fn.many


def test_draws_do_not_depend_on_batches_or_chunks(monkeypatch):
    model = MODELS["counts"]()
    idata = prior_draws(model, S)
    seeded = {"model": model, "random_seed": 3, **quiet}
    f, y = (vsgp.predict(idata, XNEW, what, **seeded) for what in ("f", "y"))
    again = vsgp.predict(idata, XNEW, "f", chunk_size=11, **seeded)
    np.testing.assert_allclose(again, f, rtol=1e-10)
    monkeypatch.setattr(vectorized, "BATCH_BYTES", 1)
    np.testing.assert_array_equal(vsgp.predict(idata, XNEW, "y", **seeded), y)
    # Draws and inputs are independent.
    z = np.random.default_rng(0).permutation(y.values.reshape(S, -1).T).T
    assert len(np.unique(z, axis=0)) == S


def test_a_second_call_builds_nothing(monkeypatch):
    model = MODELS["rows"]()
    idata = prior_draws(model, S)
    first = vsgp.predict(idata, XNEW, "f", model=model, random_seed=1, **quiet)
    monkeypatch.setattr(vectorized, "function", None)
    monkeypatch.setattr("pymc_vsgp.results.draws.find_observation", None)
    again = vsgp.predict(idata, XNEW, "f", model=model, random_seed=1, **quiet)
    np.testing.assert_array_equal(again, first)


def test_the_same_noise_is_not_given_to_all_points():
    """PyTensor would draw once, where only the number of numbers depends on a point."""
    x = pt.dvector("x")
    for noise in (pm.Normal.dist(0.0, 1.0, size=x.shape[0]), pm.Normal.dist(0.0 * x, 1.0)):
        fn = Batched([x], [], [x + noise])
        (found,) = fn([np.zeros((50, 2))], [], np.random.default_rng(1))
        assert len(np.unique(found)) == 100
        (again,) = fn([np.zeros((50, 2))], [], np.random.default_rng(1))
        np.testing.assert_array_equal(again, found)


class OnePoint(Op):
    """Of someone who thought of vectors alone."""

    __props__ = ()

    def make_node(self, x):
        if x.type.ndim != 1:
            raise ValueError("a vector")
        return Apply(self, [x], [x.type()])

    def perform(self, node, inputs, outputs):
        if inputs[0].ndim != 1 or self.broken:
            raise ValueError("a vector")
        outputs[0][0] = 2.0 * inputs[0]

    broken = False


def test_ops_that_take_one_point():
    x = pt.dvector("x")
    values = np.arange(12.0).reshape(4, 3)
    found = Batched([x], [], [pt.exp(OnePoint()(x))])([values], [])
    np.testing.assert_allclose(found[0], np.exp(2.0 * values))
    broken = OnePoint()
    broken.broken = True
    with pytest.raises(ValueError, match="a vector"):
        Batched([x], [], [broken(x)])([values], [])


def test_memory_follows_what_depends_on_points(monkeypatch):
    """A large matrix that is the same for all points does not make batches small."""
    monkeypatch.setattr(vectorized, "BATCH_BYTES", 8 * 100)
    w, x = pt.dvector("w"), pt.dmatrix("x")
    fn = Batched([w], [x], [pt.dot(pt.sin(x), w)])
    rng = np.random.default_rng(0)
    matrix, weights = rng.normal(size=(10, 50)), rng.normal(size=(9, 50))
    (found,) = fn([weights], [matrix])
    np.testing.assert_allclose(found, weights @ np.sin(matrix).T, rtol=1e-12)
    assert fn.bytes == {((10, 50),): 8 * 50}
