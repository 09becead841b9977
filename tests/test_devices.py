"""Data on several devices of JAX, which are threads of one processor here."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("jax")

# 53 rows on 8 devices: the last ones are filled up.
EQUAL = """
import jax, numpy as np, pymc as pm
import pymc_vsgp as vsgp
from pymc_vsgp.fit.bound import Bound

assert len(jax.devices()) == 8
rng = np.random.default_rng(1)
X = rng.uniform(0.0, 3.0, size=(53, 1))
models = []
with pm.Model() as model:
    ls, scale = pm.Gamma("ls", 4, 4), pm.Gamma("scale", 4, 4)
    mean, noise = (
        vsgp.VariationalSparse(
            cov_func=s**2 * pm.gp.cov.ExpQuad(1, ls=0.5 * ls), mean_func=pm.gp.mean.Constant(0.3)
        )
        for s in (scale, 0.5)
    )
    mean.prior("u", Xu=np.linspace(0.0, 3.0, 6)[:, None])
    noise.prior("g", Xu=np.linspace(0.0, 3.0, 4)[:, None])
    y = np.sin(2.0 * X[:, 0]) + 0.2 * rng.normal(size=53)
    vsgp.likelihood("y", vsgp.HeteroskedasticGaussian(), [mean, noise], X=X, y=y)
models.append(model)
with pm.Model() as model:
    cov = pm.gp.cov.ExpQuad(1, ls=pm.Gamma("ls", 4, 4))
    gp = vsgp.VariationalSparse(cov_func=cov)
    gp.prior("u", inducing=vsgp.inducing.Fourier(5.0, 9, center=1.5))
    exposure = rng.uniform(1.0, 2.0, size=53)
    gp.likelihood("y", vsgp.Poisson(exposure=exposure), X=X, y=rng.poisson(exposure))
models.append(model)
for model in models:
    alone, spread = (Bound(model, devices=jax.devices()[:n]) for n in (1, 8))
    other = Bound(model, mode="FAST_COMPILE")
    theta = alone.start + 0.1
    sites = [
        s._replace(
            linear=rng.normal(size=s.linear.shape), root=0.3 * rng.normal(size=s.root.shape)
        )
        for s in alone.no_sites()
    ]
    found = spread(theta, sites)
    for expected in (alone(theta, sites), other(theta, sites)):
        for a, b in zip(found, expected, strict=True):
            pairs = zip(a, b, strict=True) if isinstance(a, list) else [(a, b)]
            for x, z in pairs:
                np.testing.assert_allclose(x, z, rtol=1e-10, atol=1e-10 * np.abs(z).max())
    sums = [n for n in spread._fn.maker.fgraph.apply_nodes if type(n.op).__name__ == "ShardedSum"]
    rows = [v for n in sums for v in n.inputs[: n.op.n_rows]]
    places = [v.container.storage[0].sharding for v in rows if hasattr(v, "container")]
    assert len(places) >= 3 and all(len(s.device_set) == 8 for s in places)
    print("equal")
try:
    vsgp.fit_gaussian("minibatch", devices=jax.devices(), model=models[0])
except ValueError as error:
    print("refused", error)
"""


@pytest.mark.slow  # compiles on JAX
def test_eight_devices_find_what_one_does():
    flags = "--xla_force_host_platform_device_count=8"
    run = subprocess.run(
        [sys.executable, "-c", EQUAL],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
    )
    lines = run.stdout.splitlines()
    assert lines[:2] == ["equal", "equal"], run.stderr
    assert lines[2].startswith("refused Data spread over devices")
