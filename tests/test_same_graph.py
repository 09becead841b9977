"""The same model is the same graph, to the last bit, in every process."""

import os
import subprocess
import sys

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
print(bound._sizes(), [str(node.op) for node in bound._fn.maker.fgraph.toposort()])
print(float(model.compile_logp(mode="FAST_COMPILE")(model.initial_point())).hex())
"""


def run(seed):
    program = PROGRAM.format(seed=seed)
    environment = {**os.environ, "PYTHONHASHSEED": str(seed)}
    found = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    return found.stdout


def test_processes_agree():
    assert run(1) == run(2)
