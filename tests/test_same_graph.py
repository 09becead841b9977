"""The same model is the same graph, to the last bit, in every process."""

import importlib.util
import os
import subprocess
import sys

import cloudpickle
import numpy as np
import pymc as pm
import pytensor
import pytest

import pymc_vsgp as vsgp

PROGRAM = """
import gc, numpy as np, pymc as pm, pytensor.tensor as pt
import pymc_vsgp as vsgp
from pymc_vsgp.fit.bound import Bound

# Holes in memory give variables other addresses, and so other places in a set.
junk = [pt.scalar() + k for k in range(3000)]
for k in np.random.default_rng({seed}).permutation(3000)[:1500]:
    junk[k] = None
gc.collect()
rng = np.random.default_rng(1)
X = np.linspace(0, 3, 20)[:, None]
with pm.Model() as model:
    ls = pm.Gamma("ls", 3, 2)
    gp = pm.gp.VariationalSparse(cov_func=pm.gp.cov.Matern52(1, ls=ls))
    gp.prior("u", Xu=X[::3])
    for k in range(4):
        gp.likelihood(f"y{{k}}", vsgp.Poisson(), X=X[k:], y=rng.poisson(10.0**k, 20 - k))
bound = Bound(model, mode="FAST_COMPILE")
value = bound(bound.start + 0.1, bound.no_sites())
print(float(value.value).hex(), value.gradient.tobytes().hex(), value.linear[0].tobytes().hex())
print(bound.sizes(), [str(node.op) for node in bound._fn.maker.fgraph.toposort()])
print(float(model.compile_logp(mode="FAST_COMPILE")(model.initial_point())).hex())
"""


def run(seed):
    program = PROGRAM.format(seed=seed)
    environment = {**os.environ, "PYTHONHASHSEED": str(seed)}
    found = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    return found.stdout


@pytest.mark.long
@pytest.mark.slow
def test_processes_agree():
    assert run(1) == run(2)


PLAIN = """
import sys
import numpy as np, pymc as pm, pytensor, pytensor.tensor as pt
from pytensor.compile.mode import get_mode
from pytensor.graph.fg import FunctionGraph
{importing}

K, v, x = pt.dmatrix("K"), pt.dvector("v"), pt.dmatrix("x")
L = pt.linalg.cholesky(K)
product = pt.linalg.solve_triangular(L, pt.dot(L, v), lower=True)
squares = pt.clip(x @ x.T, 0.0, np.inf)
sums = [pt.sum(pt.exp(x)), pt.exp(x).sum(axis=0), pt.maximum(squares, 0.0).sum()]
graphs = [product, *pt.grad(product.sum(), [K, v]), *sums, pt.grad(squares.sum(), x)]
with pm.Model() as model:
    ls = pm.Gamma("ls", 2, 1)
    gp = pm.gp.Latent(cov_func=pm.gp.cov.ExpQuad(1, ls=ls))
    f = gp.prior("f", np.linspace(0, 1, 5)[:, None])
    pm.Poisson("y", pm.math.exp(f), observed=np.arange(5))
logp = [model.logp(), *model.dlogp()]
for mode in {modes}:
    for inputs, outputs in (([K, v, x], graphs), (model.value_vars, logp)):
        mine = FunctionGraph(inputs, outputs, clone=True)
        mode = get_mode(mode)
        with pytensor.config.change_flags(mode=mode):
            mode.optimizer.rewrite(mine)
        print(pytensor.dprint(mine, file="str", id_type="int"))
print([name for name in sys.modules if name.startswith("pymc_vsgp") and "backends." in name],
      file=sys.stderr)
"""


# What importing does, and what it does not.
IMPORTING = """
assert not hasattr(pm.gp, "VariationalSparse")
import pymc_vsgp
assert pm.gp.VariationalSparse is pymc_vsgp.VariationalSparse
"""


@pytest.mark.long
def test_graphs_without_our_ops_are_left_alone():
    """Importing the package changes neither how they are rewritten, nor what they load."""
    modes = ["FAST_COMPILE", "NUMBA", *(["JAX"] if importlib.util.find_spec("jax") else [])]
    found = []
    for importing in ("", IMPORTING):
        program = PLAIN.format(importing=importing, modes=modes)
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert done.stderr.splitlines()[-1] == "[]"
        found.append(done.stdout)
    assert "SolveTriangular" in found[0]
    assert found[0] == found[1]


UNPICKLED = """
import pickle, sys, warnings
warnings.simplefilter("error")
warnings.filterwarnings("ignore", category=DeprecationWarning)
fn = pickle.loads(sys.stdin.buffer.read())
print(float(fn([0.3] * 5, 0.2)).hex())
"""


@pytest.mark.long
def test_numba_compiles_functions_that_were_pickled():
    """PyMC sends them to processes that it spawns, which don't rewrite them."""
    X = np.linspace(0.0, 3.0, 20)[:, None]
    with pm.Model() as model:
        gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.Matern52(1, ls=pm.Gamma("ls", 3, 2)))
        gp.prior("u", Xu=X[::4])
        gp.likelihood("y", vsgp.Poisson(), X=X, y=np.arange(20))
    u, ls = model.rvs_to_values[model["u"]], model.rvs_to_values[model["ls"]]
    fn = pytensor.function([u, ls], model.logp(), mode="NUMBA")
    command = [sys.executable, "-c", UNPICKLED]
    done = subprocess.run(command, input=cloudpickle.dumps(fn), capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    np.testing.assert_allclose(float.fromhex(done.stdout.decode()), fn([0.3] * 5, 0.2), rtol=1e-12)
