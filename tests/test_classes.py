"""Labels of classes: their order, their number, and what is no class."""

import numpy as np
import pandas as pd
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
import xarray as xr

from modes import RAW
from prior_draws import prior_draws

import pymc_vsgp as vsgp

from pymc_vsgp import likelihoods

X = np.linspace(0, 10, 12)[:, None]
NAMES = np.array(["low", "mid", "high"])  # the alphabet has another order
CODES = np.arange(12) % 3
LABELS = NAMES[CODES]
ORDERED = pd.CategoricalDtype(NAMES, ordered=True)


def model_of(y, likelihood=None, **options):
    """A model of ordered classes, with `likelihood` made in it."""
    with pm.Model(coords={"cut": ["first", "second"]}) as model:
        gp = pm.gp.VariationalSparse(cov_func=pm.gp.cov.Matern52(1, ls=2.0))
        gp.prior("u", Xu=X[::4])
        lik = vsgp.Ordinal([-1.0, 1.0], **options) if likelihood is None else likelihood()
        gp.likelihood("y", lik, X=X, y=y)
    return model


def free_cuts():
    ordered = pm.distributions.transforms.ordered
    return vsgp.Ordinal(pm.Normal("c", 0, 2, dims="cut", transform=ordered, initval=[-1, 1]))


def counted_cuts():
    step = pm.Exponential("step", 1, shape=(1,))
    return vsgp.Ordinal(pm.Deterministic("c", pt.concatenate([[-1.0], -1.0 + pt.cumsum(step)])))


@pytest.mark.parametrize(
    ("y", "classes"),
    [
        (LABELS, NAMES),
        (list(LABELS), list(NAMES)),
        (pd.Series(LABELS, dtype="string"), NAMES),
        (xr.DataArray(LABELS), NAMES),
        (pd.Categorical(LABELS), NAMES),
        (pd.Categorical(LABELS, dtype=ORDERED), None),
        (pd.Series(LABELS).astype(ORDERED), NAMES),
        (CODES, None),
        (CODES, NAMES),
        (CODES + 1, [1, 2, 3]),
        (pd.Series(CODES, dtype="Int64"), None),
    ],
)
def test_the_order_that_was_said(y, classes):
    model = model_of(y, classes=classes)
    np.testing.assert_array_equal(model.rvs_to_values[model["y"]].eval(), CODES)


@pytest.mark.parametrize(
    ("y", "options", "message"),
    [
        (LABELS, {}, r"needs the order.*classes=\[\.\.\.\].*ordered pandas Categorical"),
        (pd.Series(LABELS, dtype="string"), {}, "needs the order"),
        (pd.Categorical(LABELS), {}, "needs the order"),
        (pd.Categorical(LABELS, dtype=ORDERED), {"classes": NAMES[::-1]}, "Make them the same"),
        (np.where(CODES == 0, "none", LABELS), {"classes": NAMES}, "the label 'none'"),
        (CODES + 1, {}, "from 0 to 2, but row 2 is 3"),
        (CODES, {"classes": list("abcd")}, "4 classes, but cut-points for 3"),
        (pd.Categorical(LABELS, categories=[*NAMES, "top"], ordered=True), {}, "y has 4 classes"),
        (np.where(CODES == 2, 7, CODES), {"likelihood": free_cuts}, "from 0 to 2, but row 2 is 7"),
        (np.where(CODES == 2, 7, CODES), {"likelihood": counted_cuts}, "but row 2 is 7"),
    ],
)
def test_labels_that_are_refused(y, options, message):
    with pytest.raises(ValueError, match=message) as caught:
        model_of(y, **options)
    assert str(caught.value).count(". ") >= 1


@pytest.mark.parametrize("y", [None, "low", [["low", "high"]] * 2])
@pytest.mark.parametrize("lik", [vsgp.Softmax(3), vsgp.Ordinal([0.0, 1.0], classes=[1, 2, 3])])
def test_what_is_no_vector_of_labels(y, lik):
    with pytest.raises(ValueError, match="y (is|has) .*Pass a vector of labels"):
        lik.encode(y)


@pytest.mark.parametrize("lik", [vsgp.Softmax(3), vsgp.Ordinal([0.0, 1.0], classes=list("abc"))])
def test_nan_in_a_list_is_no_label(lik):
    with pytest.raises(ValueError, match="y has no label in row 1. Drop that row"):
        lik.encode(["a", np.nan, "b", "c"], None)


def test_masked_labels_are_no_labels():
    with pytest.raises(TypeError, match="y is a masked array.*Drop the masked rows of X and y"):
        model_of(np.ma.array(LABELS, mask=np.arange(len(LABELS)) == 1), classes=NAMES)


@pytest.mark.parametrize("lik", [vsgp.Softmax(3), vsgp.Ordinal([0.0, 1.0], classes=list("abc"))])
def test_lists_of_any_length_are_no_labels(lik):
    with pytest.raises(TypeError, match="y is of type list, no array can be made of it. Pass"):
        lik.encode([["a"], ["b", "c"]])


@pytest.mark.slow
def test_probabilities_with_cut_points_declared_by_dims():
    """Their number is known from the dimension, and the names of the classes are kept."""
    model = model_of(CODES, free_cuts)
    draws = {"u": (["u_inducing"], np.zeros(3)), "c": (["cut"], [-1.0, 2.0])}
    posterior = xr.Dataset(draws).expand_dims(["chain", "draw"])
    idata = xr.DataTree.from_dict({"posterior": posterior})
    p = vsgp.predict(idata, X[:2], "mean", model=model, progressbar=False)
    assert p.sizes["class"] == 3
    np.testing.assert_allclose(p.sum("class"), 1.0, atol=1e-6)
    named = model_of(LABELS, classes=NAMES)
    p = vsgp.predict(idata, X[:2], "mean", model=named, progressbar=False)
    assert list(p["class"].values) == list(NAMES)


@pytest.mark.parametrize(
    "lik",
    [
        likelihoods.Ordinal([-1.0, 1.0]),
        likelihoods.Ordinal([-1.0, 1.0], "probit"),
        likelihoods.Softmax(3),
        likelihoods.RobustMax(3),
        likelihoods.Bernoulli(),
        likelihoods.Bernoulli("probit"),
        likelihoods.Bernoulli("cloglog"),
    ],
)
def test_what_is_no_class_has_no_probability(lik):
    """New data may come without a check, by pm.set_data: a wrong label is not the last class."""
    binary = isinstance(lik, likelihoods.Bernoulli)
    y = pt.as_tensor(np.array([0, 1, 2 if binary else 3, -1, 7]))
    f = np.zeros(5) if lik.n_latent == 1 else np.zeros((5, 3))
    for value in (lik.log_prob(f, y), lik.expected_logp(f, f + 0.5, y)):
        np.testing.assert_array_equal(
            np.isfinite(value.eval(mode=RAW)), [True, True, False, False, False]
        )


def test_softmax_probabilities_by_quadrature():
    """Of rare classes too, and where f varies much."""
    z = np.linspace(-8.5, 8.5, 801)
    weight = np.exp(-(z**2) / 2) / np.exp(-(z**2) / 2).sum()

    def exact(mu, gamma, y):
        """Probability that f_y + G_y is the largest, G being Gumbel: sums over f, and over x."""
        sd = np.sqrt(gamma)
        x = np.linspace(np.max(mu - 9 * sd) - 6, np.max(mu + 9 * sd) + 40, 1501)
        e = np.exp(np.minimum(mu[:, None, None] + sd[:, None, None] * z - x[:, None], 700.0))
        below = (weight * np.exp(-e)).sum(axis=-1)
        below[y] = (weight[None] * e[y] * np.exp(-e[y])).sum(axis=-1)
        return (x[1] - x[0]) * np.prod(below, axis=0).sum()

    mu = np.array([[0.5, -1, 0], [0, -3, 2], [0, -2.3, 1], [-1, 0, -30], [0, 0, -140], [0, 1, 2]])
    gamma = np.array(
        [[0.1, 2, 30], [100, 0.5, 1e-6], [1, 300, 0.3], [0.1, 0.2, 150], [1, 1, 2000], [1, 2, 3]]
    )
    m, v, y = pt.matrix(), pt.matrix(), pt.lvector()
    log_p = pytensor.function([m, v, y], likelihoods.Softmax(3).log_predictive(m, v, y), mode=RAW)
    p = np.exp([log_p(mu, gamma, np.full(len(mu), k)) for k in range(3)]).T
    expected = [[exact(*row, k) for k in range(3)] for row in zip(mu, gamma, strict=True)]
    assert np.min(expected) < 1e-2 and np.sum(np.array(expected) < 1e-2) >= 3
    np.testing.assert_allclose(np.sum(expected, axis=1), 1.0, atol=1e-6)
    np.testing.assert_allclose(p, expected, rtol=1e-5, atol=1e-12)
    np.testing.assert_allclose(p.sum(axis=1), 1.0, atol=1e-6)


def of_several(names, y, family=vsgp.Softmax):
    """A model of a function for each class, each of a process of its own, and draws."""
    with pm.Model() as model:
        gps = [vsgp.VariationalSparse(cov_func=pm.gp.cov.Matern52(1, ls=2.0)) for _ in names]
        for gp, name in zip(gps, names, strict=True):
            gp.prior(name, Xu=X[::4])
        vsgp.likelihood("y", family(len(names)), gps, X=X, y=y)
    return model, prior_draws(model, 5)


@pytest.mark.slow
def test_labels_over_several_processes():
    """Codes are those that the model was fitted with, whatever the processes are called."""
    names = ["mid", "low", "high"]
    model, idata = of_several(names, LABELS)
    options = {"model": model, "progressbar": False}
    codes = np.searchsorted(np.sort(NAMES), LABELS)
    np.testing.assert_array_equal(model.rvs_to_values[model["y"]].eval(), codes)
    expected = vsgp.log_predictive_density(idata, X, codes, **options)
    found = vsgp.log_predictive_density(idata, X, LABELS, **options)
    # The same call twice may differ in the last digit, by where arrays are in memory.
    np.testing.assert_allclose(found, expected, rtol=1e-14)
    again = vsgp.log_predictive_density(idata, X, LABELS, likelihood=vsgp.Softmax(3), **options)
    np.testing.assert_allclose(again, expected)
    p = vsgp.predict(idata, X, "mean", **options).mean(["chain", "draw"])
    assert list(p["class"].values) == sorted(NAMES)
    assert vsgp.predict(idata, X, "y", **options).attrs["classes"] == sorted(NAMES)
    np.testing.assert_allclose(np.log(p.values[np.arange(12), codes]), expected)
    density = vsgp.predict(idata, X, "density", at=["mid", "low"], **options)
    np.testing.assert_allclose(density.sel(value="low"), p.sel({"class": "low"}))
    assert list(vsgp.predict(idata, X, "f", **options)["function"].values) == names
    with pytest.raises(ValueError, match="the label 'top', which is not among the classes"):
        vsgp.log_predictive_density(idata, X[:1], ["top"], **options)


@pytest.mark.parametrize("names", [[10, 20, 30], [0, 1, 2]])
def test_whole_numbers_as_names(names):
    """They are names for a model, and so for what is scored: the order of categories is none."""
    y = np.array(names)[CODES]
    with pm.Model(coords={"class": names}) as model:
        gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.Matern52(1, ls=2.0))
        gp.prior("u", Xu=X[::4], n_outputs=3, output_dims="class")
        gp.likelihood("y", vsgp.Softmax(3), X=X, y=pd.Categorical(y))
    idata, options = prior_draws(model, 5), {"model": model, "progressbar": False}
    wanted = vsgp.log_predictive_density(idata, X, CODES, **options)
    for categories in (names, names[::-1], [*names[1:], names[0]]):
        again = pd.Categorical(y, categories=categories)
        np.testing.assert_array_equal(
            vsgp.log_predictive_density(idata, X, again, **options), wanted
        )
    few = pd.Categorical(y[:2], categories=names[1::-1])
    found = vsgp.log_predictive_density(idata, X[:2], few, **options)
    np.testing.assert_array_equal(found, wanted[:2])
    p = vsgp.predict(idata, X, "mean", **options).mean(["chain", "draw"])
    density = vsgp.predict(idata, X, "density", at=few, **options)
    np.testing.assert_allclose(density, p[:, :2])


@pytest.mark.slow
def test_codes_over_several_processes_have_the_names_of_these():
    model, idata = of_several(["a", "b", "c"], CODES, vsgp.RobustMax)
    options = {"model": model, "progressbar": False}
    found = vsgp.log_predictive_density(idata, X, np.array(list("abc"))[CODES], **options)
    np.testing.assert_array_equal(found, vsgp.log_predictive_density(idata, X, CODES, **options))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("y", "others"),
    [
        (pd.Categorical(LABELS, dtype=ORDERED), LABELS),
        (pd.Series(LABELS).astype(ORDERED), list(LABELS)),
        (pd.Categorical(CODES + 1, ordered=True), CODES + 1),
    ],
    ids=["categorical", "series", "numbers"],
)
def test_names_of_ordered_classes_are_kept(y, others):
    """Those of new labels are the model's, whatever their own order is."""
    model, plain = model_of(y), model_of(CODES)
    idata, options = prior_draws(model, 3), {"progressbar": False}
    p = vsgp.predict(idata, X, "mean", model=model, **options)
    assert list(p["class"].values) == list(pd.Categorical(y).categories)
    wanted = vsgp.log_predictive_density(idata, X, CODES, model=plain, **options)
    options["model"] = model
    for lik in (None, vsgp.Ordinal([-1.0, 1.0])):
        found = vsgp.log_predictive_density(idata, X, others, likelihood=lik, **options)
        np.testing.assert_array_equal(found, wanted)
    at = vsgp.predict(idata, X, "density", at=others[:3], **options)
    np.testing.assert_allclose(at, p.mean(["chain", "draw"]), rtol=1e-6)
    turned = pd.Categorical(others, categories=pd.unique(np.asarray(others))[::-1], ordered=True)
    with pytest.raises(ValueError, match="Make them the same, or drop one of the two"):
        vsgp.log_predictive_density(idata, X, turned, **options)
