"""Which backend NUTS takes, and what is compiled for numba."""

import ctypes
import gc
import importlib.util
import json
import threading

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest

from modes import RAW
from pytensor import config
from pytensor.compile.builders import SymbolicOp
from pytensor.tensor.linalg import solve_triangular

import pymc_vsgp as vsgp

from pymc_vsgp.compile import ONCE, building, function
from pymc_vsgp.engine.streaming import BlockSum
from pymc_vsgp.engine.vectorized import MANY
from pymc_vsgp.fit import backend
from pymc_vsgp.fit.backend import JAX, LEAPFROGS, NUMBA, choose, warn_of_file


def build(n=20, cov=pm.gp.cov.Matern52, name="y", X=None):
    X = np.linspace(0.0, 1.0, n)[:, None] if X is None else X
    with pm.Model() as model:
        gp = vsgp.VariationalSparse(cov_func=cov(1, ls=pm.Gamma("ls", 2.0, 2.0)))
        gp.prior("u", Xu=np.array(X[:4]))
        gp.likelihood(name, vsgp.Poisson(), X=X, y=np.arange(n) % 3)
    return model


@pytest.fixture
def times(monkeypatch, tmp_path):
    """Keep what is remembered here, with JAX installed or not."""
    path = tmp_path / "times.json"
    monkeypatch.setattr(backend, "_path", lambda: path)
    found = {"jax": True}
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: object() if found.get(name) else None
    )
    return path, found


def chosen(model, draws=2000, sampler="nutpie"):
    return choose(model, model, False, sampler, draws)


def given_neighbors(shift, n=1000):
    Xu = np.arange(1.0 * n)[:, None]
    with pm.Model() as model:
        gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.Matern52(1, ls=pm.Gamma("ls", 10.0, 1.0)))
        gp.prior("u", inducing=vsgp.inducing.NearestNeighbors(Xu, 10))
        gp.likelihood("y", vsgp.Bernoulli(), X=Xu + shift, y=np.arange(n) % 2)
    return model


@pytest.mark.slow
def test_values_given_neighbors_are_for_numba(times):
    """They come one after another: on JAX a gradient of 1000 takes 25 ms, on numba 5."""
    at, between = given_neighbors(0.0), given_neighbors(0.5)
    assert chosen(at, 500).backend == "numba"
    # Rows away from the values take regressions of their own.
    assert chosen(between, 500).sampling > 1.8 * chosen(at, 500).sampling


@pytest.mark.slow
def test_what_is_done_first_is_chosen(times):
    """JAX for few steps of what numba has not met; numba for many, or once it has compiled it."""
    path, found = times
    model = build()
    few = chosen(model)
    assert few.backend == "jax" and "numba takes some" in few.why
    assert chosen(model, 10**6).backend == "numba"
    assert chosen(model, sampler="pymc").backend == "numba"
    found["jax"] = False
    alone = chosen(model)
    assert (alone.backend, alone.compiling) == ("numba", NUMBA.first)
    found["jax"] = True
    alone.remember(40.0)
    assert json.loads(path.read_text())["first"] == 40.0
    # The kind of a model is that of its Ops: not of its data and names.
    for again in (model, build(30, name="z")):
        assert (chosen(again).backend, chosen(again).compiling) == ("numba", NUMBA.again)
    assert chosen(build(cov=pm.gp.cov.ExpQuad)).backend == "jax"
    found["jax"] = False
    assert chosen(build(cov=pm.gp.cov.ExpQuad)).compiling == 40.0
    chosen(model).remember(5.0)
    assert chosen(model).compiling == 5.0
    assert json.loads(path.read_text())["first"] == 40.0


@pytest.mark.slow
def test_a_cache_that_is_broken_or_read_only_costs_nothing_but_its_content(times, monkeypatch):
    path, found = times
    path.write_text("{")
    choice = chosen(build())
    assert choice.backend == "jax"
    found["jax"] = False
    monkeypatch.setattr(backend, "_path", lambda: path / "no" / "folder")
    choice = chosen(build())
    choice.remember(1.0)
    assert chosen(build()).compiling == NUMBA.first


def test_estimates_are_said(times):
    choice = chosen(build(), draws=1000)
    assert choice.sampling == pytest.approx(1000 * LEAPFROGS * JAX.step, rel=0.1)
    assert str(choice).startswith("NUTS on jax (few steps")
    assert f"about {JAX.again:.0f} s to compile and" in str(choice)


@pytest.mark.slow
def test_linked_functions_serve_other_data():
    """What is called by its address: numbers in any order of memory, and results of its own."""
    pytest.importorskip("numba", reason="numba is not installed")
    from pymc_vsgp.ops.backends.linked_numba import _COMPILED

    x, at = pt.vector("x"), np.array([1.0, 2.0, 3.0])

    def compiled(data):
        R, _ = vsgp.ops.cholesky.factor(pt.constant(data) * pt.exp(x[0]))
        return pytensor.function([x], [R, x[::-1]], mode="NUMBA")

    rng = np.random.default_rng(0)
    data = [a @ a.T + np.eye(3) for a in rng.normal(size=(2, 3, 3))]
    data[1] = np.asfortranarray(data[1])
    first = compiled(data[0])
    names = {name for name in _COMPILED if "linked" in name}
    functions = [first, compiled(data[1])]
    assert {name for name in _COMPILED if "linked" in name} == names
    for fn, K in zip(functions, data, strict=True):
        R, view = fn(at)
        np.testing.assert_allclose(R @ R.T, K * np.exp(1.0), rtol=1e-5)
        np.testing.assert_array_equal(view, at[::-1])
        # Neither what was passed nor what was returned before is written to.
        view[:] = 0.0
        kept = R.copy()
        fn(2.0 * at)
        np.testing.assert_array_equal(at, [1.0, 2.0, 3.0])
        np.testing.assert_array_equal(R, kept)


def test_inputs_that_are_outputs_stay_what_they_are():
    """As in the function by which pm.sample keeps draws; one output may also stand there twice."""
    pytest.importorskip("numba", reason="numba is not installed")
    x = pt.vector("x")
    R, _ = vsgp.ops.cholesky.factor(np.eye(2) * pt.exp(x[0]))
    fn = pytensor.function([x], [x, R, pt.constant(np.ones(2)), R, 2.0 * x], mode="NUMBA")
    at = np.array([0.0, 3.0])
    for found, expected in zip(fn(at), [at, np.eye(2), [1, 1], np.eye(2), 2 * at], strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-6)  # the jitter


def test_linked_functions_of_other_types_are_others():
    """PyTensor's keys tell apart Ops; the types of what they are of are told by numba alone."""
    pytest.importorskip("numba", reason="numba is not installed")
    from pytensor.link.numba.dispatch.basic import numba_njit

    from pymc_vsgp.ops.backends.linked_numba import by_address

    def twice(x):
        return (2 * x,)

    found = []
    for dtype in ("int64", "float64"):
        fn, key = by_address(twice, [pt.vector(dtype=dtype)], "twice", "the same")
        result = numba_njit(lambda x, fn=fn: fn(x), final_function=True)(np.arange(3, dtype=dtype))
        found.append((key, result.dtype.name, result.tolist()))
    assert [r[1:] for r in found] == [("int64", [0, 2, 4]), ("float64", [0.0, 2.0, 4.0])]
    assert found[0][0] != found[1][0]


@pytest.mark.slow
def test_warm_compiles_each_kernel_with_each_likelihood(monkeypatch, capsys):
    from pymc_vsgp import warm

    models = []
    monkeypatch.setattr(warm, "_compile", models.append)
    warm.warm(["ExpQuad"], inputs=[2])
    assert len(models) == len(warm.LIKELIHOODS)
    for model in models:
        assert np.isfinite(model.compile_logp(mode=RAW)(model.initial_point()))
    assert "ExpQuad, Poisson, 2 inputs" in capsys.readouterr().out


@pytest.mark.slow
def test_what_nutpie_calls_has_the_codes_of_nutpie():
    """Those of its own functions: of wrong sizes, of errors, of what is not finite."""
    module = pytest.importorskip("nutpie.compile_pymc")
    numba = pytest.importorskip("numba")
    from pymc_vsgp.fit.callables import lean_callables

    @numba.njit
    def density(x):
        if x[0] == 7.0:
            raise ValueError
        return np.array(1.0 / x[1] if x[1] != 9.0 else np.inf), np.sqrt(x)

    @numba.njit
    def expand(x):
        return (np.append(density(x)[1], 5.0),)

    theirs = [getattr(module, name) for name in ("_make_c_logp_func", "_make_c_expand_func")]
    user = module.make_user_data({}, {})
    compile_model = module._compile_pymc_model_numba
    with lean_callables():
        assert module._compile_pymc_model_numba.__wrapped__ is compile_model
        makers = [getattr(module, f.__name__) for f in theirs]
        raw = makers[0](3, density, user, [], {}), makers[1](3, 4, expand, user, [], {})
    assert not set(makers) & set(theirs)
    assert theirs == [getattr(module, f.__name__) for f in theirs]
    assert module._compile_pymc_model_numba is compile_model
    logp, expanded = (numba.cfunc(types)(function) for function, types in raw)
    arrays = [np.array([1.0, 4.0, 9.0]), np.zeros(3), np.zeros(1), np.zeros(4)]
    at = [a.ctypes.data_as(ctypes.POINTER(ctypes.c_double)) for a in arrays]
    assert logp.ctypes(3, *at[:3], None) == expanded.ctypes(3, 4, at[0], at[3], None) == 0
    np.testing.assert_array_equal(np.concatenate(arrays[1:]), [1, 2, 3, 0.25, 1, 2, 3, 5])
    assert logp.ctypes(2, *at[:3], None) == -1
    assert expanded.ctypes(3, 5, at[0], at[3], None) == expanded.ctypes(2, 4, *at[:2], None) == -1
    for x, code in (([7, 2, 3], 1), ([-1, 2, 3], 3), ([1, 2, np.nan], 3), ([1, 9, 3], 4)):
        arrays[0][:] = x
        assert logp.ctypes(3, *at[:3], None) == code
    arrays[0][0] = 7.0
    assert expanded.ctypes(3, 4, at[0], at[3], None) == -2


def test_code_that_waits_for_its_callers_does_what_it_did():
    """Recursion, Python, errors with values; and functions that Python calls by themselves."""
    numba = pytest.importorskip("numba")
    from pytensor.link.numba.dispatch.basic import numba_njit

    from pymc_vsgp.ops.backends.linked_numba import by_address

    @numba.njit
    def power(x, n):
        return x if n <= 1 else x * power(x, n - 1)

    @numba_njit
    def root(x):
        with numba.objmode(y="float64"):
            y = float(np.cbrt(x))
        return y

    @numba_njit
    def checked(x):
        if x < 0.0:
            raise ValueError("negative", x)
        return x

    def third(x):
        y = np.zeros(len(x))
        for i in range(len(x)):
            y[i] = power(root(checked(x[i])), 3)
        return (y,)

    fn, _ = by_address(third, [pt.vector()], "third", None)
    call = numba_njit(lambda x: fn(x), final_function=True)
    np.testing.assert_allclose(call(np.arange(5.0)), np.arange(5.0))
    with pytest.raises(ValueError, match="negative"):
        call(np.array([1.0, -2.0]))
    # Compiled on the way there, for the same types.
    assert (numba.float64, numba.int64) in power.signatures
    assert power(2.0, 10) == 1024.0
    address = next(iter(checked.overloads.values()))
    symbol = address.fndesc.llvm_func_name
    assert address.library._waits and address.library.get_pointer_to_function(symbol)
    assert not address.library._waits
    np.testing.assert_allclose(call(np.arange(5.0)), np.arange(5.0))


def test_compiled_code_is_known_by_its_version_and_by_fastmath(monkeypatch):
    """Else a change of either would take what is on disk."""
    pytest.importorskip("numba")
    from pytensor.link.numba.dispatch.basic import numba_funcify_and_cache_key

    from pymc_vsgp.ops.backends import cholesky_numba, linked_numba

    node = vsgp.ops.cholesky.factor(pt.matrix("K"))[0].owner
    before = numba_funcify_and_cache_key(node.op, node=node)[1]
    monkeypatch.setattr(cholesky_numba, "VERSION", 99)
    assert numba_funcify_and_cache_key(node.op, node=node)[1] != before

    keys = set()
    for fastmath in (True, False):
        with pytensor.config.change_flags(numba__fastmath=fastmath):
            keys.add(linked_numba.by_address(lambda x: (x,), [pt.vector()], "same", "same")[1])
    assert len(keys) == 2 and None not in keys


def test_one_number_is_taken_of_any_layout():
    """Views of an array are typed as not contiguous; the parameter of a kernel may be one."""
    pytest.importorskip("numba")
    from pytensor.link.numba.dispatch.basic import numba_njit

    from pymc_vsgp.ops.backends.linked_numba import by_address

    fn, _ = by_address(lambda x, y: (x * y.item(),), [pt.vector(), pt.scalar()], "scaled", None)

    @numba_njit(final_function=True)
    def last(x):
        one = np.lib.stride_tricks.as_strided(x[-1:], shape=(), strides=())
        return fn(x, one)

    np.testing.assert_allclose(last(np.arange(3.0)), [0.0, 2.0, 4.0])


def test_sums_over_an_axis():
    """Of any order in memory, and of no rows; the Op takes the place of PyTensor's."""
    pytest.importorskip("numba", reason="numba is not installed")
    A = pt.matrix("A")
    R, _ = vsgp.ops.cholesky.factor(pt.dot(A.T, A) + np.eye(3))
    outputs = [R, pt.sum(A[::-1], axis=0), A.sum(axis=1), pt.sum(R.T, axis=1)]
    fn = pytensor.function([A], outputs, mode="NUMBA")
    (linked,) = (n.op for n in fn.maker.fgraph.apply_nodes if type(n.op).__name__ == "Linked")
    found = [n.op.axis for n in linked.fgraph.apply_nodes if type(n.op).__name__ == "AxisSum"]
    assert sorted(found) == [0, 1, 1]
    whole = np.random.default_rng(0).normal(size=(6, 3))
    for given in (whole, np.asfortranarray(whole), whole[::2], whole[:0]):
        R, down, across, of_R = fn(given)
        expected = given.sum(axis=0), given.sum(axis=1), R.T.sum(axis=1)
        for a, b in zip((down, across, of_R), expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14)


def test_sums_of_several_matrices_over_an_axis():
    pytest.importorskip("numba", reason="numba is not installed")
    A, B = pt.matrix("A"), pt.tensor3("B")
    R, _ = vsgp.ops.cholesky.factor(pt.dot(A.T, A) + np.eye(3))
    whole = np.random.default_rng(0).normal(size=(4, 5, 3))
    fn = pytensor.function([A, B], [R, *(B.sum(axis=i) for i in range(3))], mode="NUMBA")
    for given in (whole, whole[::-2], whole.transpose(1, 0, 2), whole[:0], whole[:, :0]):
        for i, found in enumerate(fn(whole[0], given)[1:]):
            np.testing.assert_allclose(found, given.sum(axis=i), rtol=1e-12, atol=1e-14)


def test_what_reads_a_factor_reads_it_before_its_panels_are_inverted():
    """A block may solve with a factor and use its diagonal, too; else it takes no more inputs."""
    linalg = pytest.importorskip("pymc_vsgp.ops.backends.linalg_numba")
    x, R = pt.matrix("x", shape=(None, 3)), pt.matrix("R", shape=(3, 3))
    A = solve_triangular(R, x.T, lower=True, b_ndim=2)
    A = solve_triangular(R, A, trans=1, lower=True, b_ndim=2)
    for block, reads in ((A, 0), (A / pt.diagonal(R)[:, None], 1), (pt.dot(R.T, A), 1)):
        op = BlockSum([x, R], [pt.sum(block)], n_rows=1, n_sums=1, rules=[None, None])
        node = linalg.solve_by_panels(op.make_node(x, R))
        assert isinstance(node.inputs[1].owner.op, linalg.InvertPanels)
        assert node.inputs[2:] == [R] * reads and len(node.op.rules) == 2 + reads
        fgraph = node.op.fgraph
        panels = {client.op for client, _ in fgraph.clients[fgraph.inputs[1]]}
        assert panels == {linalg.PanelSolve(False), linalg.PanelSolve(True)}


def test_products_and_solves_of_several_matrices_know_how_many():
    """Else PyTensor would check their shapes, with messages that compile for a second."""
    linalg = pytest.importorskip("pymc_vsgp.ops.backends.linalg_numba")
    six, one, some = (pt.tensor(dtype="float64", shape=(k, 2, 2)) for k in (6, 1, None))
    for a, b, n in (
        (six, some, 6),
        (some, six, 6),
        (one, six, 6),
        (one, one, 1),
        (some, one, None),
    ):
        assert linalg.LeanDot()(a, b).type.shape[0] == n
        assert linalg.LeanSolve(True)(a, b).type.shape[0] == n


@pytest.mark.parametrize("enabled", [True, False])
def test_garbage_is_collected_again_after_the_last_one_has_compiled(enabled):
    """Whoever is first and last: one within another, or a thread that ends before."""
    was, inside, limit = gc.isenabled(), threading.Event(), config.traceback__limit

    def other():
        with building:
            inside.wait()

    try:
        (gc.enable if enabled else gc.disable)()
        thread = threading.Thread(target=other)
        with pytest.raises(KeyError), building, building:
            thread.start()
            raise KeyError
        assert not gc.isenabled() and config.traceback__limit == 0
        inside.set()
        thread.join()
        assert gc.isenabled() == enabled and config.traceback__limit == limit
        function([], pt.as_tensor(1.0))
        assert gc.isenabled() == enabled
    finally:
        (gc.enable if was else gc.disable)()


def test_where_nothing_is_compiled_no_op_has_a_graph_that_is():
    """Not within the Ops either that gradients of a diagonal and of a factor are made of."""
    x = pt.tensor(shape=(2, 3, 3), dtype="float64")
    K = pt.matmul(x, x.mT) + pt.eye(3)
    log_det = 2.0 * pt.log(pt.diagonal(pt.linalg.cholesky(K), axis1=1, axis2=2)).sum()
    fn = function([x], [pytensor.grad(log_det, x), pt.diagonal(x, axis1=1, axis2=2)])
    ops = [getattr(node.op, "core_op", node.op) for node in fn.maker.fgraph.apply_nodes]
    assert not any(isinstance(op, SymbolicOp) for op in ops)
    at = np.random.default_rng(0).normal(size=(2, 3, 3))
    gradient, diagonal = fn(at)
    expected = 2.0 * np.linalg.solve(at @ at.transpose(0, 2, 1) + np.eye(3), at)
    np.testing.assert_allclose(gradient, expected, rtol=1e-10)
    np.testing.assert_array_equal(diagonal, [np.diag(a) for a in at])


@pytest.mark.slow
def test_inputs_in_a_file_are_for_numba(times, tmp_path):
    """JAX would copy them, and is chosen for this model where they are in memory."""
    X = np.memmap(tmp_path / "X", dtype="float64", mode="w+", shape=(20, 1))
    X[:, 0] = np.linspace(0.0, 1.0, 20)
    model = build(X=X)
    assert chosen(build()).backend == "jax"
    choice = chosen(model)
    assert choice.backend == "numba" and "in a file" in choice.why
    mode = {"compile_kwargs": {"mode": "JAX"}}
    for sampler, kwargs in [("numpyro", {}), ("nutpie", {"backend": "jax"}), ("nutpie", mode)]:
        with pytest.warns(UserWarning, match=r"JAX copies it into memory several times. Use nutp"):
            warn_of_file(model, sampler, kwargs)
        warn_of_file(build(), sampler, kwargs)
    warn_of_file(model, "nutpie", {"backend": "numba"})


@pytest.mark.parametrize("mode", [ONCE, MANY])
@pytest.mark.parametrize("ls", [1.5, 3.0, 0.7])
def test_constant_lengthscales_in_double_precision(mode, ls, rng):
    """1.5 is a number of single precision, and 1 / 1.5 is none."""
    X = rng.normal(size=(5, 1))
    x = pt.matrix(shape=(None, 1))
    K = pytensor.function([x], 2.0 * pm.gp.cov.Matern52(1, ls=ls)(x), mode=mode)(X)
    d = np.sqrt(5.0 * (X - X.T) ** 2 / ls**2 + 5e-12)  # as in pm.gp
    np.testing.assert_allclose(K, 2.0 * (1.0 + d + d**2 / 3.0) * np.exp(-d), rtol=1e-11)


def test_whole_numbers_in_double_precision_and_what_is_cast_to_single():
    """A quotient of small whole numbers is of single precision in PyTensor."""
    x = pt.dvector("x")
    one, three = (pt.constant(k, dtype="int8") for k in (1, 3))
    f = function([x], x * (one / three) + pt.cast(three, "float32"), ONCE)
    np.testing.assert_allclose(f(np.ones(2)), 10.0 / 3.0, rtol=1e-15)


def test_constants_of_a_shape_stay_whole_numbers(capfd):
    """What is allocated is in double precision, and its shape is none of that."""
    x = pt.dvector("x")
    third = pt.constant(np.float32(1.0)) / pt.constant(np.float32(3.0))
    f = function([x], x * pt.alloc(third, 200), ONCE)
    np.testing.assert_allclose(f(np.ones(200)), 1.0 / 3.0, rtol=1e-15)
    assert "ERROR" not in "".join(capfd.readouterr())


def test_bits_of_constants_stay_whole_numbers(capfd):
    """Numbers in double precision have none, and a rewrite that fails writes a traceback."""
    x = pt.dvector("x")
    bits = pt.constant(5, dtype="int8") ^ pt.constant(3, dtype="int8")
    f = function([x], x * (pt.cast(bits, "float32") * pt.constant(np.float32(0.5))), ONCE)
    np.testing.assert_allclose(f(np.ones(2)), 3.0, rtol=1e-15)
    assert "ERROR" not in "".join(capfd.readouterr())
