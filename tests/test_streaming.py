"""One pass over the data in blocks, against the ordinary graph of the same model."""

import subprocess
import sys

from functools import cache

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest

from families import D, M, N, family_model, random_point, unconstrained
from hypothesis import given, settings
from hypothesis import strategies as st
from marks import long
from modes import RAW, REWRITTEN
from pymc.model.transform.optimization import freeze_dims_and_data
from pymc.sampling.jax import get_jaxified_graph
from pytensor.tensor.type_other import NoneConst

import pymc_vsgp as vsgp

from pymc_vsgp.engine.streaming import BlockSum
from pymc_vsgp.ops.rows import automatic_block


def same(got, expected, tolerance=1e-9):
    """Compare two lists of arrays, each array relative to its largest entry."""
    assert len(got) == len(expected)
    for a, b in zip(got, expected, strict=True):
        assert np.all(np.isfinite(b))
        scale = np.max(np.abs(b), initial=1e-3)
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * scale)


def loop_of(fn):
    """The only loop over the data of a compiled function."""
    (op,) = {n.op for n in fn.maker.fgraph.apply_nodes if isinstance(n.op, BlockSum)}
    return op


def plain():
    """One column, and a noise level for each row: what JAX compiles in seconds."""
    ls, level = pm.Gamma("ls", 3, 2), pm.Normal("level")
    noise = vsgp.Gaussian(sigma=pm.LogNormal("sigma", dims="row"))
    return pm.gp.cov.ExpQuad(1, ls=ls), pm.gp.mean.Constant(level), noise


def composed():
    """Sums and products of kernels on columns of their own; a noise level for each row."""
    ls = pm.Gamma("ls", 3, 2, shape=2)
    variance, period = pm.Gamma("variance", 2, 1), pm.Gamma("period", 3, 2)
    smooth = variance * pm.gp.cov.ExpQuad(3, ls=ls, active_dims=[0, 2])
    wave = pm.gp.cov.Matern52(3, ls=2.0, active_dims=[1]) * pm.gp.cov.Periodic(
        3, period=period, ls=1.0, active_dims=[1]
    )
    mean = pm.gp.mean.Linear(coeffs=pm.Normal("slope", shape=3), intercept=0.3)
    return smooth + wave, mean, vsgp.Gaussian(sigma=pm.LogNormal("sigma", dims="row"))


def warped():
    bend = pm.Gamma("bend", 2, 2)
    cov = pm.gp.cov.WarpedInput(
        2, pm.gp.cov.Matern32(2, ls=[0.7, 1.3]), lambda x, b: x + b * pt.tanh(x), args=(bend,)
    ) + pm.gp.cov.WhiteNoise(0.01)
    return cov, pm.gp.mean.Zero(), vsgp.StudentT(nu=4.0, sigma=pm.LogNormal("s"))


COLUMNS = {plain: 1, composed: 3, warped: 2}


def model_of(recipe, block_size):
    """A model whose data can all be replaced."""
    n_columns = COLUMNS[recipe]
    with pm.Model() as model:
        X = pm.Data("X", np.zeros((5, n_columns)), dims=("row", "column"), shape=(None, n_columns))
        Xu = pm.Data(
            "Xu", np.arange(3.0)[:, None] + np.ones(n_columns), dims=("inducing", "column")
        )
        y = pm.Data("y_data", np.ones(5), dims="row")
        cov, mean, likelihood = recipe()
        gp = pm.gp.VariationalSparse(mean_func=mean, cov_func=cov)
        gp.prior("u", Xu=Xu, inducing_dims="inducing")
        gp.likelihood("y", likelihood, X=X, y=y, block_size=block_size)
    return model


def value_and_gradient(model, mode):
    logp = model.logp()
    # By name: a model whose data were frozen is a clone, which has them in another order.
    gradient = pt.grad(logp, sorted(model.continuous_value_vars, key=lambda v: v.name))
    return model.compile_fn([logp, *gradient], mode=mode, on_unused_input="ignore")


@cache
def compiled(recipe, block_size, mode):
    model = model_of(recipe, block_size)
    return model, value_and_gradient(model, mode)


def draw(recipe, n, m, seed):
    rng = np.random.default_rng(seed)
    n_columns = COLUMNS[recipe]
    # Inducing inputs at some distance, so that the comparison is not one of rounding errors.
    spread = np.arange(m)[:, None] * 0.7 + 0.1 * rng.normal(size=(m, n_columns))
    return {
        "X": rng.normal(size=(n, n_columns)) + rng.uniform(0, m * 0.7, size=(n, 1)),
        "Xu": spread,
        "y_data": rng.integers(0, 4, size=n).astype(float),
    }


def set_data(model, data):
    """Like `Model.set_data`, which compiles a function at each call."""
    for name, value in data.items():
        model[name].set_value(value)


@cache
def start_of(recipe):
    return compiled(recipe, False, REWRITTEN)[0].initial_point()


def point_of(recipe, n, m, seed):
    rng = np.random.default_rng(seed)
    sizes = {"u_whitened__": (m,), "sigma_log__": (n,)}
    shapes = {k: sizes.get(k, np.shape(v)) for k, v in start_of(recipe).items()}
    return {k: 0.5 * rng.normal(size=shape) for k, shape in shapes.items()}


# One column: see `test_families.py`, and JAX below.
@pytest.mark.long
@pytest.mark.parametrize("recipe", [composed, warped])
@given(
    n=st.integers(1, 40),
    m=st.integers(1, 8),
    block_size=st.integers(1, 45),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=20, deadline=None, derandomize=True)
def test_any_shape_equals_the_ordinary_graph(recipe, n, m, block_size, seed):
    results = []
    for model, fn in (compiled(recipe, b, REWRITTEN) for b in (7, False)):
        set_data(model, draw(recipe, n, m, seed))
        if not results:
            # The loop in Python reads it at each call.
            loop_of(fn.f).block_size = block_size
        results.append(fn(point_of(recipe, n, m, seed)))
    same(*results)


@pytest.mark.slow
# In JAX a warped input needs the number of rows in a block.
@pytest.mark.parametrize(
    ("recipe", "mode", "sizes"),
    [
        # JAX compiles for each: blocks and a rest, whole blocks, and a row.
        (plain, "JAX", [(16, 5)]),
        *long((plain, "JAX", [(14, 3), (1, 1)]), (composed, "NUMBA", [(30, 5), (14, 3), (1, 1)])),
    ],
)
def test_backends_equal_the_ordinary_graph(recipe, mode, sizes):
    jax = mode == "JAX"
    if jax:
        pytest.importorskip("jax")
    other, ordinary = compiled(recipe, False, REWRITTEN)
    model, fn = (model_of(recipe, 7), None) if jax else compiled(recipe, 7, mode)
    for n, m in sizes:
        for each in (model, other):
            set_data(each, draw(recipe, n, m, seed=n))
        if jax:
            # JAX wants to know shapes, so samplers freeze the data for it.
            fn = value_and_gradient(freeze_dims_and_data(model), mode)
        point = point_of(recipe, n, m, seed=n)
        same(fn(point), ordinary(point))


@pytest.fixture
def inputs(rng):
    return rng.normal(size=(N, D)), rng.normal(size=(M, D))


@pytest.mark.slow
def test_terms_with_cotangents_of_their_own(inputs, rng):
    """A density that weighs its terms, and adds their sum as well."""
    point, weights = unconstrained(random_point(rng)), np.linspace(-1.0, 2.0, N)
    results = []
    for block_size, mode in ((7, REWRITTEN), (False, RAW)):
        model = family_model("negative_binomial", inputs, block_size=block_size)
        terms = model.logp(vars=model["y"], sum=False)[0]
        total = pt.dot(weights, terms) + 0.3 * pt.sum(terms)
        gradient = pt.grad(total, model.continuous_value_vars)
        results.append(model.compile_fn([total, *gradient], mode=mode)(point))
    same(*results)


def weighted_terms(model, weights, cotangent):
    """Sums of a loop whose terms have weights: of the terms alone, and with the value."""
    (terms,) = model.logp(vars=model["y"], sum=False)
    if terms.owner is not None and isinstance(terms.owner.op, BlockSum):
        op = terms.owner.op
        outputs = op(weights, *terms.owner.inputs[1:], return_list=True)
        value, terms = outputs[0], outputs[op.n_sums]
    else:
        value = pt.dot(weights, terms)
    return [pt.sum(terms), value + 0.3 * pt.sum(terms), 0.7 * value + pt.dot(cotangent, terms)]


@pytest.mark.slow
def test_weights_of_the_terms(inputs, rng):
    """The sum of the terms is not the value where they have weights; by JAX's gradient, too."""
    weights, cotangent = (pt.tensor(n, dtype="float64", shape=(N,)) for n in ("w", "c"))
    point = unconstrained(random_point(rng))
    point |= {"w": rng.uniform(-1, 3, N), "c": rng.normal(size=N)}
    results = []
    for block_size in (7, False):
        model = family_model("poisson", inputs, block_size=block_size)
        arguments = [*model.value_vars, weights, cotangent]
        at = [np.asarray(point[v.name]) for v in arguments]
        values = weighted_terms(model, weights, cotangent)
        gradients = [pt.grad(v, arguments, disconnected_inputs="ignore") for v in values]
        outputs = [*values, *(g for part in gradients for g in part)]
        results.append(pytensor.function(arguments, outputs, mode=RAW)(*at))
        if block_size:
            jax = pytest.importorskip("jax")
            by_jax = jax.jacrev(get_jaxified_graph(arguments, values), range(len(at)))
            of_jax = [g for part in jax.jit(by_jax)(*at) for g in part]
    same(*results)
    same(of_jax, results[1][3:])


def second_derivative(model):
    """That of the whole density: the prior alone has one, which must not pass for it."""
    (value,) = (v for v in model.value_vars if v.name == "u_whitened__")
    first = pt.grad(model.logp(), value)
    return pt.grad(pt.sum(first), value)


def test_second_derivatives(inputs, rng):
    point = unconstrained(random_point(rng))
    with pytest.raises(
        NotImplementedError, match=r"not available\. Pass block_size=False"
    ) as error:
        second_derivative(family_model("poisson", inputs))
    assert str(error.value).count(".") == 3  # one of them in gp.likelihood
    model = family_model("poisson", inputs, block_size=False)
    fn = model.compile_fn(second_derivative(model), mode=RAW, on_unused_input="ignore")
    assert np.all(np.isfinite(fn(point)))


@pytest.mark.long
@pytest.mark.slow
def test_jax_differentiates_it(inputs, rng):
    """JAX's own gradient, and the Hessian by forward over reverse mode."""
    jax = pytest.importorskip("jax")
    from pymc.sampling.jax import get_jaxified_logp

    point = unconstrained(random_point(rng))
    results = []
    for block_size in (7, False):
        model = family_model("poisson", inputs, block_size=block_size)
        logp = get_jaxified_logp(model)
        at = [np.asarray(point[v.name]) for v in model.value_vars]
        where = [v.name for v in model.value_vars].index("u_whitened__")

        def derivatives(at, logp=logp, where=where):
            def of_u(u):
                return logp([u if i == where else x for i, x in enumerate(at)])

            value, gradient = jax.value_and_grad(logp)(at)
            many = jax.vmap(jax.grad(of_u))(jax.numpy.stack([at[where], 0.5 * at[where]]))
            return [value, *gradient, jax.hessian(of_u)(at[where]), many]

        results.append(jax.jit(derivatives)(at))
    same(*results)


@pytest.mark.slow
def test_parameters_held_in_shared_variables(inputs, rng):
    X, Xu = inputs
    sigma = pytensor.shared(0.5, name="sigma")
    fns = []
    for block_size in (7, False):
        with pm.Model() as model:
            gp = pm.gp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(D, ls=sigma + 1.0))
            gp.prior("u", Xu=Xu)
            gp.likelihood("y", vsgp.Gaussian(sigma=sigma), X=X, y=X[:, 0], block_size=block_size)
        fns.append(value_and_gradient(model, REWRITTEN if block_size else RAW))
    point = {"u_whitened__": rng.normal(size=M)}
    for value in (0.5, 0.8):
        sigma.set_value(value)
        same(*(fn(point) for fn in fns))


def test_automatic_block():
    assert [automatic_block(m) for m in (0, 1, 50, 200, 10_000)] == [4096, 4096, 960, 192, 128]


# A copy of X would take 51 MB.
MEMMAP = """
import resource, sys
import numpy as np, pymc as pm, pytensor
import pymc_vsgp as vsgp
from pytensor.compile.mode import Mode
from pytensor.link.vm import VMLinker

N, D, ROOM = 400_000, 16, 35_000_000
path = sys.argv[1]
FAST = Mode(VMLinker(use_cloop=False, c_thunks=False), "fast_run").excluding("fusion")
X = np.memmap(path, dtype="float64", mode="w+", shape=(N, D))
for start in range(0, N, 10_000):
    X[start : start + 10_000] = np.random.default_rng(start).normal(size=(10_000, D))
X = np.memmap(path, dtype="float64", mode="r", shape=(N, D))

def in_little_memory(function):
    # Writable memory of this process alone: pages of the mapped file do not count.
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[5]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (used + ROOM, hard))
    try:
        return function()
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))

try:
    in_little_memory(lambda: np.array(X))
    print("no limit")
except MemoryError:
    print("limited")
with pm.Model() as model:
    gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(D, ls=pm.Gamma("ls", 4, 1)))
    gp.prior("u", Xu=np.array(X[:20]))
    in_little_memory(lambda: gp.likelihood("y", vsgp.Gaussian(sigma=1.0), X=X, y=np.zeros(N)))
logp = model.logp()
outputs = [logp, *pytensor.grad(logp, model.value_vars)]
point = model.initial_point()
for mode in (FAST, "NUMBA"):
    fn = model.compile_fn(outputs, mode=mode)
    first = fn(point)[0]
    value, *gradient = in_little_memory(lambda: fn(point))
    assert value == first and all(np.isfinite(g).all() for g in gradient)
    print("evaluated")
"""


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not enforce RLIMIT_DATA")
@pytest.mark.slow
def test_a_memmap_is_never_copied_whole(tmp_path):
    run = subprocess.run(
        [sys.executable, "-W", "error::RuntimeWarning", "-c", MEMMAP, str(tmp_path / "X")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.stdout.split()[-3:] == ["limited", "evaluated", "evaluated"], run.stderr


# What a stage and draws add to the memory of the process, in parts of X; the first time is for all
# that does not depend on its size.
GROWTH = """
import sys, threading, time
import numpy as np, pymc as pm
import pymc_vsgp as vsgp

D = 8192

def resident():
    with open("/proc/self/status") as file:  # pages of a mapped file do not count
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("RssAnon"))

def growth(function):
    top, done = [resident()] * 2, threading.Event()
    def watch():
        while not done.wait(0.02):
            top[1] = max(top[1], resident())
    thread = threading.Thread(target=watch)
    thread.start()
    function()
    done.set()
    thread.join()
    return top[1] - top[0]

def run(N):
    x = np.linspace(-2.0, 2.0, N)
    X = np.memmap(sys.argv[1], dtype="float64", mode="w+", shape=(N, D))
    X[:, 0] = x
    X = np.memmap(sys.argv[1], dtype="float64", mode="r", shape=(N, D))
    y = np.random.default_rng(1).poisson(np.exp(np.sin(2.0 * x)))
    Xu = np.zeros((5, D))
    Xu[:, 0] = np.linspace(-2.0, 2.0, 5)
    with pm.Model():
        eta = pm.Gamma("eta", 4.0, 4.0)
        gp = vsgp.VariationalSparse(cov_func=eta**2 * pm.gp.cov.ExpQuad(D, 0.9, active_dims=[0]))
        gp.prior("u", Xu=Xu)
        quiet = {"progressbar": False, "random_seed": 1}
        yield growth(lambda: gp.likelihood("y", vsgp.Poisson(), X=X, y=y)), X.nbytes
        few = {"maxiter": 2, "batch_size": 10}
        yield growth(lambda: vsgp.fit_gaussian("minibatch", **few, **quiet)), X.nbytes
        yield growth(lambda: vsgp.fit_gaussian(maxiter=1, copy=True, **quiet)), X.nbytes
        yield growth(lambda: vsgp.fit_gaussian(maxiter=2, **quiet)), X.nbytes
        settings = {"method": "importance", "fit_kwargs": {"maxiter": 1}, "draws": 20, **quiet}
        yield growth(lambda: vsgp.sample(**settings)), X.nbytes
        settings |= {"method": "nuts", "draws": 5, "tune": 5, "chains": 2}
        yield growth(lambda: vsgp.sample(**settings)), X.nbytes

list(run(100))
for grown, size in run(10_000):
    print(grown / size)
"""


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no /proc")
def test_sampling_takes_no_memory_for_a_memmap(tmp_path):
    run = subprocess.run(
        [sys.executable, "-c", GROWTH, str(tmp_path / "X")],
        capture_output=True,
        text=True,
        check=False,
    )
    parts = [float(line) for line in run.stdout.split()]
    assert len(parts) == 6, run.stderr
    assert max(parts) < 0.1, parts


def test_a_constant_that_stands_for_a_file_is_no_array():
    """numba's linker asks each constant; one that failed left a traceback, and slower code."""
    linked = pytest.importorskip("pymc_vsgp.ops.backends.linked_numba")
    assert not linked._is_data(NoneConst)
    assert linked._is_data(pt.constant(np.ones(2)))
