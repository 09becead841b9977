"""What users get wrong, and what they are told: one row of a table for each mistake."""

import pathlib
import re
import traceback

import numpy as np
import pandas as pd
import pymc as pm
import pytensor
import pytest
import xarray as xr

from modes import RAW

import pymc_vsgp as vsgp

N, M = 12, 4
X = np.linspace(0.0, 3.0, 2 * N).reshape(N, 2)
XU = X[::3] + 0.01
COUNTS = np.arange(N) % 4
TIMES = np.linspace(0.5, 2.0, N)
BINARY = np.arange(N) % 2
PACKAGE = pathlib.Path(vsgp.__file__).parent


def kernel(input_dim=2):
    return pm.gp.cov.ExpQuad(input_dim, ls=1.0)


def process(**kwargs):
    return pm.gp.VariationalSparse(**{"cov_func": kernel()} | kwargs)


def with_prior(Xu=XU, **kwargs):
    gp = process()
    gp.prior("u", Xu=Xu, **kwargs)
    return gp


def observed(likelihood=None, X=X, y=COUNTS, name="y", gp=None, **kwargs):
    gp = with_prior() if gp is None else gp
    gp.likelihood(name, vsgp.Poisson() if likelihood is None else likelihood, X=X, y=y, **kwargs)
    return gp


def changed(array, index, value):
    array = np.array(array, dtype=type(value) if isinstance(value, str) else "float64")
    array[index] = value
    return array


def masked(array):
    mask = np.zeros(array.shape, dtype=bool)
    mask[0] = True
    return np.ma.MaskedArray(array, mask)


def random_inputs(name="latent"):
    return pm.Normal(name, shape=(M, 2))


def random_X(block_size=None, **kwargs):
    gp, x = process(), X * pm.HalfNormal("scale")
    gp.prior("u", **kwargs)
    gp.likelihood("y", vsgp.Poisson(), X=x, y=COUNTS, block_size=block_size)


def random_X_of_groups():
    pm.modelcontext(None).add_coord("group", ["a", "b"])
    gp = with_prior(by="group")
    group = np.arange(N)[:, None] % 2.0
    x = pm.math.concatenate([X * pm.HalfNormal("scale"), group], axis=1)
    observed(X=x, gp=gp)


def data_set_to(value):
    data = pm.Data("inputs", X)
    data.set_value(value)  # pm.Data itself takes no NaN
    return data


def single_precision():
    with pytensor.config.change_flags(floatX="float32"):
        with_prior()


class WithoutDiagonal(pm.gp.cov.Covariance):
    def full(self, X, Xs=None):
        return pm.math.dot(X, (X if Xs is None else Xs).T)


def prior_twice():
    with_prior().prior("other", Xu=XU)


def prior_name_taken():
    pm.Normal("u")
    with_prior()


def prior_data_name_taken():
    pm.Normal("u_Xu")
    with_prior()


def likelihood_name_taken():
    observed(gp=observed())


def likelihood_data_name_taken():
    pm.Normal("y_X")
    observed()


def potential_data_name_taken():
    pm.Normal("y_y")
    with_prior().potential("y", vsgp.Poisson(), X, COUNTS)


def conditional_name_taken():
    gp = with_prior()
    gp.conditional("f", X)
    gp.conditional("f", X)


def predictive_name_taken():
    observed().predictive("y", X)


def wrong_inducing_dims():
    pm.modelcontext(None).add_coord("z", length=M + 1)
    with_prior(inducing_dims="z")


def wrong_dims():
    pm.modelcontext(None).add_coord("day", length=N + 1)
    observed(dims="day")


def random_scales():
    f = vsgp.Coregionalized(pm.Normal("W", shape=(3, 2)), with_prior(n_outputs=2))
    sigma = pm.HalfNormal("sigma", shape=2)
    f.likelihood("y", vsgp.Gaussian(sigma), X=X, y=np.ones((N, 3)))


def scales_of_groups():
    pm.modelcontext(None).add_coord("group", ["a", "b", "c"])
    observed(vsgp.Gaussian(pm.HalfNormal("sigma", dims="group")))


def two_likelihoods():
    gp = observed()
    return observed(gp=gp, name="z")


def predictive_before_sampling():
    observed().predictive("y_new", X[:5])
    vsgp.fit_gaussian(progressbar=False)


def exposure_at_new_rows():
    observed(vsgp.Poisson(exposure=TIMES)).predictive("y_new", X[:5])


# id: (what is done wrong, the exception, what its message must say)
MISTAKES = {
    # X and Xu
    "1-D X": (
        lambda: observed(X=X[:, 0]),
        ValueError,
        ["X has one dim", "(12,)", "np.asarray(X)[:, None]"],
    ),
    "1-D Xu": (
        lambda: with_prior(XU[:, 0]),
        ValueError,
        ["Xu has one", "(4,)", "np.asarray(Xu)[:, None]"],
    ),
    "0-D Xu": (lambda: with_prior(10), ValueError, ["Xu is 10", "vsgp.inducing.kmeans(X, 20)"]),
    "3-D X": (lambda: observed(X=X[None]), ValueError, ["X has 3 dimensions", "(1, 12, 2)"]),
    "features as Xu": (
        lambda: with_prior(vsgp.inducing.Fourier(5.0, 3)),
        TypeError,
        ["Xu is of Fourier", "inducing=Fourier(...)"],
    ),
    "3-D Xu": (lambda: with_prior(XU[None]), ValueError, ["Xu has 3 dimensions", "(1, 4, 2)"]),
    "columns of X": (
        lambda: observed(X=X[:, :1]),
        ValueError,
        ["X has 1 column,", "(12, 1)", "Xu has 2"],
    ),
    "empty X": (lambda: observed(X=X[:0], y=COUNTS[:0]), ValueError, ["X is empty", "(0, 2)"]),
    "empty Xu": (lambda: with_prior(XU[:0]), ValueError, ["Xu is empty", "(0, 2)"]),
    "nan in X": (
        lambda: observed(X=changed(X, (3, 1), np.nan)),
        ValueError,
        ["X holds nan in row 3, column 1"],
    ),
    "inf in X": (
        lambda: observed(X=changed(X, (3, 1), -np.inf)),
        ValueError,
        ["X holds -inf in row 3, column 1"],
    ),
    "nan in Xu": (
        lambda: with_prior(changed(XU, (2, 0), np.nan)),
        ValueError,
        ["Xu holds nan in row 2, column 0"],
    ),
    "inf in Xu": (
        lambda: with_prior(changed(XU, (2, 0), np.inf)),
        ValueError,
        ["Xu holds inf in row 2, column 0"],
    ),
    "nan in pm.Data X": (
        lambda: observed(X=data_set_to(changed(X, (3, 1), np.nan))),
        ValueError,
        ["X holds nan in row 3, column 1"],
    ),
    "float32 X": (lambda: observed(X=X.astype("float32")), TypeError, ["X is float32", "float64"]),
    "floatX float32": (single_precision, ValueError, ["floatX is 'float32'", "'float64'"]),
    "float32 Xu": (lambda: with_prior(XU.astype("float32")), TypeError, ["Xu is float32"]),
    "integer pm.Data Xu": (
        lambda: with_prior(pm.Data("places", np.array([[1, 2], [3, 4]]))),
        TypeError,
        ["places has dtype int", "float64"],
    ),
    "dates among columns": (
        lambda: observed(
            X=pd.DataFrame({"a": np.arange(N), "b": pd.date_range("2020", periods=N)})
        ),
        TypeError,
        ["X['b'] has dtype datetime64", "timedelta64"],
    ),
    "pd.NA in X": (
        lambda: observed(X=pd.DataFrame(X).astype("Float64").mask(X > X[3, 1] - 1e-9)),
        ValueError,
        ["X holds nan in row"],
    ),
    "float16 X": (lambda: observed(X=X.astype("float16")), TypeError, ["X is float16", "float64"]),
    "long double X": (
        lambda: observed(X=X.astype(np.longdouble)),
        TypeError,
        ["X has dtype", "needs float64", "astype"],
    ),
    "ragged Xu": (
        lambda: with_prior([[1.0, 2.0], [3.0]]),
        TypeError,
        ["Xu is of type list", "array"],
    ),
    "data set as X": (
        lambda: observed(X=xr.Dataset({"a": ("row", COUNTS)})),
        TypeError,
        ["X is of type Dataset", "one row per point"],
    ),
    "X whose squares overflow": (
        lambda: observed(X=X * 1e170),
        ValueError,
        ["X holds", "in row 0, column 1", "another unit"],
    ),
    "object X": (lambda: observed(X=X.astype(object)), TypeError, ["X has dtype object"]),
    "string X": (lambda: observed(X=X.astype(str)), TypeError, ["X has dtype <U"]),
    "masked X": (lambda: observed(X=masked(X)), TypeError, ["X is a masked array", "X.mask"]),
    "masked Xu": (lambda: with_prior(masked(XU)), TypeError, ["Xu is a masked array", "Xu.mask"]),
    "random Xu": (lambda: with_prior(random_inputs()), TypeError, ["Xu depends on random"]),
    "random 1-D X": (
        lambda: observed(X=pm.Normal("latent", shape=N)),
        ValueError,
        ["X has one dimension"],
    ),
    "random X of features": (
        lambda: random_X(inducing=vsgp.inducing.Fourier((9.0, 9.0), 2, 1.5)),
        ValueError,
        ["random variables take inducing points", "Pass Xu"],
    ),
    "random X of features, as an ordinary graph": (
        lambda: random_X(False, inducing=vsgp.inducing.Fourier((9.0, 9.0), 2, 1.5)),
        ValueError,
        ["Fourier features need their range", "Pass Xu"],
    ),
    "random X of neighbors": (
        lambda: random_X(inducing=vsgp.inducing.NearestNeighbors(XU, 2)),
        ValueError,
        ["random variables take inducing points", "Pass Xu"],
    ),
    "random X of pairs": (
        lambda: random_X(inducing=vsgp.inducing.Kronecker(XU[:, :1], XU[:, 1:])),
        ValueError,
        ["random variables take inducing points", "Pass Xu"],
    ),
    "random X of groups": (random_X_of_groups, ValueError, ["inducing points", "Leave by out"]),
    "random X in kmeans": (
        lambda: vsgp.inducing.kmeans(random_inputs(), 2),
        TypeError,
        ["X depends on random variables"],
    ),
    "repeated rows of Xu": (
        lambda: with_prior(np.vstack([XU, XU[1]])),
        ValueError,
        ["Rows 1 and 4 of Xu are equal"],
    ),
    # y
    "X and y of different length": (
        lambda: observed(y=COUNTS[:-1]),
        ValueError,
        ["X has 12 rows", "y has 11 entries"],
    ),
    "nan in y": (lambda: observed(y=changed(COUNTS, 5, np.nan)), ValueError, ["y holds nan in r"]),
    "inf in y": (
        lambda: observed(y=changed(COUNTS, 5, np.inf)),
        ValueError,
        ["y holds inf in row 5"],
    ),
    "2-D y": (lambda: observed(y=COUNTS[:, None]), ValueError, ["y has 2 dim", "(12, 1)", "ravel"]),
    "scalar y": (lambda: observed(y=3), ValueError, ["y has 0 dimensions", "()"]),
    "masked y": (lambda: observed(y=masked(COUNTS)), TypeError, ["y is a masked array"]),
    "string y": (
        lambda: observed(vsgp.Bernoulli(), y=["no", "yes"] * 6),
        TypeError,
        ["y has dtype <U3", "Code categories as numbers"],
    ),
    "y of objects": (
        lambda: observed(y=COUNTS.astype(object)),
        TypeError,
        ["y has dtype object", "numbers are needed", "y.astype('float64')"],
    ),
    "spans of time as y": (
        lambda: observed(y=pd.Series(pd.to_timedelta(COUNTS, unit="D"))),
        TypeError,
        ["y has dtype timedelta64", "y / np.timedelta64(1, 'D')"],
    ),
    "random y": (
        lambda: observed(y=pm.Poisson("k", 1.0, shape=N)),
        TypeError,
        ["y depends on random variables"],
    ),
    "labels not 0 or 1": (
        lambda: observed(vsgp.Bernoulli(), y=BINARY + 1),
        ValueError,
        ["Bernoulli", "0 or 1", "row 1 is 2"],
    ),
    "labels -1 and 1": (
        lambda: observed(vsgp.Bernoulli(), y=2 * BINARY - 1),
        ValueError,
        ["Bernoulli", "row 0 is -1"],
    ),
    "counts above n": (
        lambda: observed(vsgp.Binomial(n=2)),
        ValueError,
        ["Binomial", "0 to n", "row 3 is 3"],
    ),
    "share of 0": (
        lambda: observed(vsgp.Beta(5.0), y=np.linspace(0, 0.9, N)),
        ValueError,
        ["Beta", "row 0 is 0.0"],
    ),
    "share of 1": (
        lambda: observed(vsgp.Beta(5.0), y=np.linspace(0.1, 1, N)),
        ValueError,
        ["Beta", "row 11 is 1.0"],
    ),
    "counts of a callable": (
        lambda: observed(lambda f: pm.Poisson.dist(pm.math.exp(f)), y=COUNTS + 0.5),
        ValueError,
        ["whole numbers", "row 0 is 0.5"],
    ),
    "kernel without a diagonal": (
        lambda: process(cov_func=2.0 * WithoutDiagonal(2)).prior("u", XU),
        TypeError,
        ["WithoutDiagonal has no diag(X)", "the variance at each row"],
    ),
    "places by a kernel without a diagonal": (
        lambda: vsgp.inducing.greedy_variance(X, 3, WithoutDiagonal(2)),
        TypeError,
        ["WithoutDiagonal has no diag(X)"],
    ),
    "kernel without a matrix": (
        lambda: vsgp.suggest_inducing(X, pm.gp.cov.BaseCovariance()),
        TypeError,
        ["BaseCovariance has no full(X, Xs)"],
    ),
    # likelihoods
    "shape of exposure": (
        lambda: observed(vsgp.Poisson(exposure=TIMES[:5])),
        ValueError,
        ["exposure of Poisson", "(5,)", "12 rows"],
    ),
    "shape of n": (
        lambda: observed(vsgp.Binomial(n=[5, 5, 5])),
        ValueError,
        ["n of Binomial", "(3,)", "12 rows"],
    ),
    "2-D exposure": (
        lambda: observed(vsgp.Poisson(exposure=TIMES[:, None])),
        ValueError,
        ["exposure of Poisson", "(12, 1)", "12 rows"],
    ),
    "dates as exposure": (
        lambda: vsgp.Poisson(exposure=pd.date_range("2020", periods=N)),
        TypeError,
        ["exposure is of type DatetimeIndex", "numbers are needed"],
    ),
    "complex sigma": (
        lambda: vsgp.Gaussian(np.array([0.5 + 2j])),
        TypeError,
        ["sigma is of type ndarray", "numbers are needed"],
    ),
    "None for sigma": (lambda: vsgp.Gaussian(None), TypeError, ["sigma is of type NoneType"]),
    "negative exposure": (lambda: vsgp.Poisson(exposure=-1.0), ValueError, ["exposure", "-1"]),
    "dates": (
        lambda: observed(X=pd.DataFrame({"t": pd.date_range("2020", periods=N)})),
        TypeError,
        ["datetime64", "(X['t'] - X['t'].min()) / np.timedelta64(1, 'D')"],
    ),
    "periods": (
        lambda: observed(X=pd.DataFrame({"t": pd.period_range("2020", periods=N, freq="M")})),
        TypeError,
        ["t = X['t'].dt.to_timestamp()", "(t - t.min()) / np.timedelta64(1, 'D')"],
    ),
    "spans of time": (
        lambda: observed(X=np.arange(N).astype("timedelta64[h]")[:, None]),
        TypeError,
        ["timedelta64", "X / np.timedelta64(1, 'D')"],
    ),
    "captured array": (
        lambda: observed(lambda f: pm.Normal.dist(f, TIMES[:7])),
        ValueError,
        [
            "An array of the likelihood's callable has shape (7,), but X has 12 rows",
            "one for each row of X",
        ],
    ),
    "captured weights": (
        lambda: observed(
            lambda f: pm.ZeroInflatedPoisson.dist(psi=np.linspace(0.2, 0.8, 7), mu=pm.math.exp(f))
        ),
        ValueError,
        ["callable does not go with 12 observations", "one for each row of X"],
    ),
    "random scales by dims": (
        scales_of_groups,
        ValueError,
        ["sigma of Gaussian has shape (3,), but X has 12 rows", "one for each row of X"],
    ),
    "vector of random scales": (
        random_scales,
        ValueError,
        ["sigma of Gaussian has shape (2,)", "there are 3 outputs"],
    ),
    "masked exposure": (
        lambda: vsgp.Poisson(exposure=masked(TIMES)),
        TypeError,
        ["exposure is a masked array"],
    ),
    "a word for sigma": (
        lambda: vsgp.Gaussian("a"),
        TypeError,
        ["sigma is of type str", "numbers"],
    ),
    "negative sigma": (lambda: vsgp.Gaussian(sigma=-0.5), ValueError, ["sigma", "-0.5"]),
    "nan sigma": (lambda: vsgp.Gaussian(sigma=np.nan), ValueError, ["sigma", "nan"]),
    "unknown link": (lambda: vsgp.Bernoulli(link="log"), ValueError, ["'log'", "probit"]),
    "callable without distribution": (
        lambda: observed(lambda f: pm.math.exp(f)),
        TypeError,
        ["must return an unregistered PyMC distribution"],
    ),
    "multivariate callable": (
        lambda: observed(lambda f: pm.MvNormal.dist(f, np.eye(N))),
        TypeError,
        ["must return a univariate", "ultivariate"],
    ),
    "likelihood without parentheses": (
        lambda: observed(vsgp.Poisson),
        TypeError,
        ["Poisson is a class", "parentheses"],
    ),
    "likelihood by name": (lambda: observed("poisson"), TypeError, ["str 'poisson'"]),
    # mean and covariance
    "Constant(0)": (
        lambda: process(cov_func=pm.gp.cov.Constant(0.0)).prior("u", XU),
        ValueError,
        ["variance 0", "cov_func"],
    ),
    "default cov_func": (
        lambda: pm.gp.VariationalSparse().prior("u", XU),
        ValueError,
        ["variance 0", "cov_func"],
    ),
    "kernel times 0": (
        lambda: process(cov_func=0.0 * kernel()).prior("u", XU),
        ValueError,
        ["variance 0", "cov_func"],
    ),
    "kernel of other input_dim": (
        lambda: process(cov_func=kernel(3)).prior("u", XU),
        ValueError,
        ["input_dim 3", "Xu has 2 columns"],
    ),
    "product of other input_dim": (
        lambda: process(cov_func=2.0 * kernel(3)).prior("u", XU),
        ValueError,
        ["input_dim 3", "Xu has 2 columns"],
    ),
    "number of lengthscales": (
        lambda: process(cov_func=pm.gp.cov.ExpQuad(2, ls=np.ones(3))).prior("u", XU),
        ValueError,
        ["cov_func cannot be evaluated at Xu", "(4, 2)", "(1, 3)"],
    ),
    "number of random lengthscales": (
        lambda: process(cov_func=pm.gp.cov.ExpQuad(2, ls=pm.Gamma("ls", 2, 1, shape=3))).prior(
            "u", XU
        ),
        ValueError,
        ["cov_func cannot be evaluated at Xu", "(4, 2)"],
    ),
    "number of coefficients": (
        lambda: process(mean_func=pm.gp.mean.Linear(np.ones(3))).prior("u", XU),
        ValueError,
        ["mean_func cannot be evaluated at Xu", "(4, 2)", "(3, 1)"],
    ),
    "function as cov_func": (
        lambda: process(cov_func=lambda x: x),
        TypeError,
        ["cov_func is of type function"],
    ),
    "cov_func without parentheses": (
        lambda: process(cov_func=pm.gp.cov.ExpQuad),
        TypeError,
        ["cov_func is the class ExpQuad"],
    ),
    "number as mean_func": (
        lambda: process(mean_func=0.5),
        TypeError,
        ["mean_func is of type float"],
    ),
    "mean_func without parentheses": (
        lambda: process(mean_func=pm.gp.mean.Zero),
        TypeError,
        ["mean_func is the class Zero"],
    ),
    # order and names
    "likelihood before prior": (
        lambda: observed(gp=process()),
        RuntimeError,
        ["likelihood needs", "Call prior first", "a sum of processes needs one of its own"],
    ),
    "potential before prior": (
        lambda: process().potential("y", vsgp.Poisson(), X, COUNTS),
        RuntimeError,
        ["potential needs", "Call prior first"],
    ),
    "conditional before prior": (
        lambda: process().conditional("f", X),
        RuntimeError,
        ["conditional needs", "Call prior first"],
    ),
    "predictive before prior": (
        lambda: process().predictive("f", X),
        RuntimeError,
        ["predictive needs", "Call prior first"],
    ),
    "predict before prior": (
        lambda: process().predict(X),
        RuntimeError,
        ["predict needs", "Call prior first"],
    ),
    "name left out": (lambda: process().prior(XU, XU), TypeError, ["is of type ndarray", "string"]),
    "prior twice": (prior_twice, RuntimeError, ["already has", "'u'"]),
    "name of prior taken": (prior_name_taken, ValueError, ["already has", "'u'"]),
    "name of Xu taken": (prior_data_name_taken, ValueError, ["already has", "'u_Xu'"]),
    "name of likelihood taken": (likelihood_name_taken, ValueError, ["already has", "'y'"]),
    "name of X taken": (likelihood_data_name_taken, ValueError, ["already has", "'y_X'"]),
    "name of y taken": (potential_data_name_taken, ValueError, ["already has", "'y_y'"]),
    "name of conditional taken": (conditional_name_taken, ValueError, ["already has", "'f'"]),
    "name of predictive taken": (predictive_name_taken, ValueError, ["already has", "'y'"]),
    "length of inducing_dims": (
        wrong_inducing_dims,
        ValueError,
        ["'z' has length 5", "Xu has 4 rows"],
    ),
    "dimension of one function": (
        lambda: observed(gp=with_prior(output_dims="z")),
        ValueError,
        ["dimension 'z'", "Poisson", "Leave output_dims out"],
    ),
    "numbers as dims": (lambda: observed(dims=3), TypeError, ["dims is 3", "names"]),
    "draws of which": (
        lambda: vsgp.loo(xr.Dataset()),
        TypeError,
        ["of type Dataset", "DataTree are needed"],
    ),
    "length of dims": (wrong_dims, ValueError, ["'day' has length 13", "X has 12 rows"]),
    "negative jitter": (lambda: with_prior(jitter=-1e-6), ValueError, ["jitter is -1e-06"]),
    "nan jitter": (lambda: with_prior(jitter=np.nan), ValueError, ["jitter is nan"]),
    "infinite jitter": (lambda: with_prior(jitter=np.inf), ValueError, ["jitter is inf"]),
    "a word for jitter": (lambda: with_prior(jitter="a"), ValueError, ["jitter is a"]),
    "point is no dict": (
        lambda: with_prior().predict(X, "u"),
        TypeError,
        ["point is of type str", "dict of values"],
    ),
    "point of draws": (
        lambda: with_prior().predict(X, {"u": np.ones((3, M))}),
        ValueError,
        ["point['u'] has shape (3, 4)", "not draws"],
    ),
    "NaN in a point": (
        lambda: with_prior().predict(X, {"u": np.full(M, np.nan)}),
        ValueError,
        ["point['u'] has NaN", "Pass a number"],
    ),
    "a word in a point": (
        lambda: with_prior().predict(X, {"u": "a"}),
        TypeError,
        ["point['u'] is of type str", "numbers"],
    ),
    "negative jitter at new inputs": (
        lambda: with_prior().conditional("f", X, jitter=-1.0),
        ValueError,
        ["jitter is -1.0"],
    ),
    # new inputs
    "columns of Xnew": (
        lambda: with_prior().conditional("f", X[:, :1]),
        ValueError,
        ["Xnew has 1 column,", "(12, 1)", "Xu has 2"],
    ),
    "1-D Xnew": (
        lambda: with_prior().predict(X[:, 0]),
        ValueError,
        ["Xnew has one dimension", "np.asarray(Xnew)[:, None]"],
    ),
    "exposure at new rows": (
        exposure_at_new_rows,
        ValueError,
        ["exposure of Poisson", "(12,)", "Xnew has 5 rows", "likelihood="],
    ),
    "predictive without likelihood": (
        lambda: with_prior().predictive("y_new", X),
        ValueError,
        ["no likelihood"],
    ),
    "predictive before sampling": (
        predictive_before_sampling,
        ValueError,
        ["'y_new'", "after sampling"],
    ),
    "predictive of two likelihoods": (
        lambda: two_likelihoods().predictive("y_new", X),
        ValueError,
        ["2 likelihoods", "'y'", "'z'"],
    ),
    "predictive of unknown likelihood": (
        lambda: observed().predictive("y_new", X, "counts"),
        ValueError,
        ["'counts'", "'y'"],
    ),
    "unknown keys of given": (
        lambda: with_prior().conditional("f", X, given={"X": X, "noise": 1}),
        ValueError,
        ["'X'", "'noise'", "given={'gp'"],
    ),
    "given without a process": (
        lambda: with_prior().conditional("f", X, given={"gp": "u"}),
        TypeError,
        ["given['gp'] is of type str"],
    ),
    "given is no dict": (
        lambda: with_prior().conditional("f", X, given=with_prior),
        TypeError,
        ["given is of type function", "given={'gp'"],
    ),
}
for family in (
    vsgp.Poisson(),
    vsgp.NegativeBinomial(2.0),
    vsgp.ZeroInflatedPoisson(0.8),
    vsgp.ZeroInflatedNegativeBinomial(0.8, 2.0),
    vsgp.Binomial(5),
):
    kind = type(family).__name__
    MISTAKES[f"negative counts, {kind}"] = (
        lambda family=family: observed(family, y=COUNTS - 1),
        ValueError,
        [kind, "row 0 is -1"],
    )
    MISTAKES[f"fractional counts, {kind}"] = (
        lambda family=family: observed(family, y=COUNTS + 0.5),
        ValueError,
        [kind, "row 0 is 0.5"],
    )
for family in (vsgp.Exponential(), vsgp.Gamma(2.0), vsgp.Weibull(2.0), vsgp.LogNormal(1.0)):
    kind = type(family).__name__
    MISTAKES[f"negative time, {kind}"] = (
        lambda family=family: observed(family, y=changed(TIMES, 4, -0.5)),
        ValueError,
        [kind, "row 4 is -0.5"],
    )
    if kind != "Exponential":  # whose density at 0 is finite
        MISTAKES[f"time of 0, {kind}"] = (
            lambda family=family: observed(family, y=changed(TIMES, 4, 0.0)),
            ValueError,
            [kind, "row 4 is 0.0"],
        )


def of_batches(what):
    def act():
        X_batch, y_batch = pm.Minibatch(X, COUNTS, batch_size=N)
        effort = pm.Minibatch(np.ones(N), batch_size=N)
        if what == "Xu":
            with_prior(pm.Minibatch(XU, batch_size=M))
        elif what == "exposure":
            observed(vsgp.Poisson(exposure=effort))
        elif what == "effort":  # that is made of it
            observed(vsgp.Poisson(exposure=pm.math.exp(effort)))
        elif what == "a covariance function":
            gp = process(cov_func=pm.gp.cov.ExpQuad(2, ls=effort[0]))
            gp.prior("u", Xu=XU)
        elif what == "another likelihood":
            observed()
            pm.Normal("z", 0.0, 1.0, observed=effort, total_size=N)
            vsgp.sample(10, random_seed=1)
        else:
            data = {"X": {"X": X_batch}, "y": {"y": y_batch}, "X, y": {"X": X_batch, "y": y_batch}}
            observed(**data[what])

    return act


for _what in (
    *("X", "y", "X, y", "Xu", "exposure", "effort", "a covariance function"),
    "another likelihood",
):
    MISTAKES[f"pm.Minibatch as {_what}"] = (
        of_batches(_what),
        TypeError,
        ["is made of pm.Minibatch", "Pass all rows"],
    )
for _where, _act in {
    "likelihood": lambda rv: observed(vsgp.Gaussian(sigma=2.0 * rv), y=TIMES),
    "cov_func": lambda rv: process(cov_func=pm.gp.cov.ExpQuad(2, ls=rv)).prior("u", Xu=XU),
    "mean_func": lambda rv: process(mean_func=pm.gp.mean.Constant(rv)).prior("u", Xu=XU),
}.items():
    MISTAKES[f"a distribution without a name in {_where}"] = (
        lambda act=_act: act(pm.HalfNormal.dist()),
        ValueError,
        ["type halfnormal is not in the model", "Give it a name"],
    )


def sentences(message):
    return [part for part in re.split(r"(?<=[.!?])\s+(?=[A-Z])", message.strip()) if part]


@pytest.mark.slow
@pytest.mark.parametrize("mistake", MISTAKES)
def test_message(mistake):
    act, error, parts = MISTAKES[mistake]
    with pm.Model(), pytest.raises(error) as info:
        act()
    message = str(info.value)
    for part in parts:
        assert part in message
    assert len(sentences(message)) >= 2 and message.endswith("."), message
    assert len(message) < 300, message
    raised_in = traceback.extract_tb(info.value.__traceback__)[-1].filename
    assert PACKAGE in pathlib.Path(raised_in).parents, raised_in


def test_no_model_on_the_stack():
    gp = process()
    with pytest.raises(TypeError, match="No model on context stack"):
        gp.prior("u", Xu=XU)


FAILED_PRIORS = {
    "repeated rows": lambda: with_prior(np.vstack([XU, XU])),
    "jitter": lambda: with_prior(jitter=-1.0),
    "variance": lambda: pm.gp.VariationalSparse().prior("u", XU),
    "lengthscales": lambda: process(cov_func=pm.gp.cov.ExpQuad(2, ls=np.ones(3))).prior("u", XU),
    "coefficients": lambda: process(mean_func=pm.gp.mean.Linear(np.ones(3))).prior("u", XU),
    "name of a dimension": lambda: with_prior(inducing_dims=0),
    "name of another dimension": lambda: with_prior(output_dims=["a"]),
    "one dimension for two": lambda: with_prior(n_outputs=2, output_dims="u_inducing"),
}


@pytest.mark.parametrize("failed", FAILED_PRIORS)
def test_failed_prior_leaves_the_model_as_it_was(failed):
    with pm.Model() as model:
        with pytest.raises((ValueError, TypeError)):
            FAILED_PRIORS[failed]()
        assert not model.named_vars and not model.dim_lengths
        with_prior()


@pytest.mark.parametrize(
    "wrong",
    [
        {"y": COUNTS - 1},
        {"y": COUNTS[1:]},
        {"X": X[:, :1]},
        {"likelihood": vsgp.Poisson},
        {"likelihood": vsgp.Poisson(exposure=TIMES[1:])},
    ],
    ids=["y", "length", "columns", "class", "exposure"],
)
def test_failed_likelihood_leaves_the_model_as_it_was(wrong):
    with pm.Model() as model:
        gp = with_prior()
        before = set(model.named_vars), set(model.dim_lengths)
        with pytest.raises((ValueError, TypeError)):
            observed(gp=gp, **wrong)
        assert (set(model.named_vars), set(model.dim_lengths)) == before
        with pytest.raises((ValueError, TypeError)):
            gp.potential("y", **{"likelihood": vsgp.Poisson(), "X": X, "y": COUNTS} | wrong)
        assert (set(model.named_vars), set(model.dim_lengths)) == before
        observed(gp=gp)


def pm_data_X_with_dims():
    X_data = pm.Data("inputs", X, dims=("day", "input"))
    gp = observed(X=X_data)
    model = pm.modelcontext(None)
    assert model.named_vars_to_dims["y"] == ("day",)
    assert "y_obs" not in model.dim_lengths and "y_X" not in model.named_vars
    return gp


def warped_X():
    scale = pm.HalfNormal("scale")
    return observed(X=pm.Data("inputs", X) * scale)


GOOD = {
    "kernel without hyperpriors": lambda: observed(),
    "integer pm.Data y": lambda: observed(y=pm.Data("counts", COUNTS)),
    "bool y": lambda: observed(vsgp.Bernoulli(), y=BINARY.astype(bool)),
    "float counts": lambda: observed(y=COUNTS.astype(float)),
    "list y": lambda: observed(y=COUNTS.tolist()),
    "Series y": lambda: observed(y=pd.Series(COUNTS, index=np.arange(N) + 100)),
    "DataFrame X": lambda: observed(X=pd.DataFrame(X, columns=["a", "b"])),
    "DataFrame Xu": lambda: observed(gp=with_prior(pd.DataFrame(XU, columns=["a", "b"]))),
    "DataArray X": lambda: observed(X=xr.DataArray(X, dims=("day", "input"))),
    "pm.Data X with dims": pm_data_X_with_dims,
    "lists X and Xu": lambda: observed(X=X.tolist(), gp=with_prior(XU.tolist())),
    "pm.Data Xu": lambda: observed(gp=with_prior(pm.Data("Z", XU))),
    "random X": warped_X,
    "random X of neighbors, as an ordinary graph": lambda: random_X(
        False, inducing=vsgp.inducing.NearestNeighbors(XU, 2)
    ),
    "exposure of one entry": lambda: observed(vsgp.Poisson(exposure=[2.0])),
    "X as Xu": lambda: observed(gp=with_prior(X)),
    "masked arrays with nothing masked": lambda: observed(
        vsgp.Poisson(exposure=np.ma.array(TIMES)),
        X=np.ma.array(X),
        y=np.ma.array(COUNTS, mask=np.zeros(N, bool)),
        gp=with_prior(np.ma.array(XU)),
    ),
    "masked labels with nothing masked": lambda: observed(
        vsgp.Ordinal([0.0, 1.0], classes=list("abc")), y=np.ma.array(list("abc" * (N // 3)))
    ),
}


@pytest.mark.parametrize("good", GOOD)
def test_accepted(good):
    with pm.Model() as model:
        GOOD[good]()
    logp = model.compile_logp(mode=RAW)
    assert np.isfinite(logp(model.initial_point()))


@pytest.mark.parametrize(("dtype", "sign"), [("int64", 1), ("uint64", 1), ("int64", -1)])
def test_whole_numbers_that_int32_does_not_hold(dtype, sign):
    """PyMC makes int32 of whole numbers, which wrap around."""
    y = (sign * (3_000_000_000 + 7 * np.arange(N))).astype(dtype)
    of_any_sign, counts = [vsgp.Gaussian(1.0)], [vsgp.Poisson()]
    for likelihood in of_any_sign + counts if sign > 0 else of_any_sign:
        with pm.Model() as model:
            gp = observed(likelihood, y=y)
            gp.potential("z", likelihood, X, y)
            both = vsgp.Coregionalized(np.ones((2, 1)), gp)
            both.likelihood("pair", likelihood, X=X, y=np.stack([y, y], axis=1))
        np.testing.assert_array_equal(model.rvs_to_values[model["y"]].data, y)
        np.testing.assert_array_equal(model["z_y"].get_value(), y)
        pair = model.rvs_to_values[model["pair"]].eval(mode=RAW)
        np.testing.assert_array_equal(pair, np.stack([y, y], axis=1))


def test_inputs_far_from_zero():
    with pm.Model(), pytest.warns(UserWarning, match="Column 1 of Xu is about 1e.08 with a range"):
        with_prior(XU + np.array([0.0, 1e8]))


ONES = xr.Dataset({"u": (("chain", "draw"), np.ones((1, 2)))})
DRAWS = xr.DataTree.from_dict({"posterior": ONES})


@pytest.mark.parametrize(
    "call",
    [
        vsgp.fit_gaussian,
        vsgp.sample,
        vsgp.reset,
        vsgp.check_model,
        lambda model: vsgp.predict(None, None, model=model),
        lambda model: vsgp.compute_log_likelihood(DRAWS, model=model),
    ],
)
@pytest.mark.parametrize("model", [3, "model", dict])
def test_what_is_no_model(call, model):
    with pytest.raises(TypeError, match="model is .*, not a PyMC model. Pass the pm.Model, or"):
        call(model=model)


@pytest.mark.parametrize(
    "call",
    [
        vsgp.fit_gaussian,
        vsgp.sample,
        lambda **kwargs: vsgp.predict(None, XU, **kwargs),
        lambda **kwargs: vsgp.log_predictive_density(None, XU, [1], **kwargs),
    ],
)
def test_what_is_no_mode(call):
    with pm.Model() as model:
        observed()
    with pytest.raises(TypeError, match="compile_kwargs is of type str. Pass a dict, or drop it."):
        call(compile_kwargs="numba", model=model)
    for mode in ("no such", 3):
        with pytest.raises(ValueError, match=f"PyTensor has no mode {mode!r}. Pass 'numba', "):
            call(compile_kwargs={"mode": mode}, model=model)
    if call is not vsgp.sample:  # which has them for pm.sample
        with pytest.raises(TypeError, match=r"holds \['q'\], and only mode is taken. Drop the"):
            call(compile_kwargs={"q": 1}, model=model)


def test_long_arrays_are_not_said_in_full():
    for call in (vsgp.Softmax, lambda x: vsgp.inducing.grid(XU, 2, margin=x)):
        with pytest.raises(ValueError, match=r" is of type ndarray. Pass a (whole )?number"):
            call(np.ones((9, 3)))


@pytest.mark.parametrize("name", ["inducing_dims", "output_dims"])
@pytest.mark.parametrize("dim", [0, True, [], b"a", ("a", "b")])
def test_what_is_no_name_of_a_dimension(name, dim):
    with pm.Model(), pytest.raises(TypeError, match=f"{name} is .* Pass the name of a dimension."):
        with_prior(**{name: dim})


@pytest.mark.parametrize("more", [{"output_dims": "u_inducing"}, {"inducing_dims": "u_output"}])
def test_one_name_for_two_dimensions(more):
    with pm.Model(), pytest.raises(ValueError, match="is the dimension of the functions, and that"):
        with_prior(n_outputs=2, **more)


@pytest.mark.parametrize("size", [0, -1, True, 1e2, "auto"])
def test_what_is_no_size_of_a_block(size):
    with pm.Model():
        gp = with_prior()
        calls = gp.likelihood, gp.potential, vsgp.Coregionalized(np.ones((1, 1)), gp).likelihood
        for call, y in zip(calls, (COUNTS, COUNTS, COUNTS[:, None]), strict=True):
            with pytest.raises(ValueError, match="block_size is .*. Pass a whole number, 1 or mor"):
                call("y", vsgp.Poisson(), X=X, y=y, block_size=size)


def test_a_stage_works_on_blocks():
    with pm.Model() as model:
        gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(2, ls=1.0))
        gp.prior("u", Xu=XU)
        gp.likelihood("y", vsgp.Poisson(), X=X, y=np.ones(len(X)), block_size=False)
    for call in (vsgp.fit_gaussian, vsgp.sample):
        with pytest.raises(ValueError, match="'y' has block_size=False.*Leave block_size out"):
            call(model=model, progressbar=False)
