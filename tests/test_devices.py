"""Data on several devices of JAX, which are threads of one processor here."""

import os
import subprocess
import sys

import pytest

import pymc_vsgp as vsgp

pytest.importorskip("jax")

# 53 rows on 8 devices: the last ones are filled up.
EQUAL = """
import jax, numpy as np, pymc as pm
import pymc_vsgp as vsgp
from pymc_vsgp.engine.sharded import mesh_of
from pymc_vsgp.fit.bound import Bound
from pymc_vsgp.fit.gaussian import Fitter
from pymc_vsgp.fit.spread import spread

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
devices = jax.devices()
mesh = mesh_of(devices)
for model in models:
    fitter, other = Fitter(model, mesh=mesh), Bound(model, mode="FAST_COMPILE")
    bound = fitter.bound
    theta = bound.start + 0.1
    sites = [
        s._replace(
            linear=rng.normal(size=s.linear.shape), root=0.3 * rng.normal(size=s.root.shape)
        )
        for s in bound.no_sites()
    ]
    for a, b in zip(bound(theta, sites), other(theta, sites), strict=True):
        pairs = zip(a, b, strict=True) if isinstance(a, list) else [(a, b)]
        for x, z in pairs:
            np.testing.assert_allclose(x, z, rtol=1e-10, atol=1e-10 * np.abs(z).max(initial=0.0))
    sums = [n for n in bound._fn.maker.fgraph.apply_nodes if type(n.op).__name__ == "ShardedSum"]
    rows = [v for n in sums for v in n.inputs[: n.op.n_rows]]
    places = [v.get_value().sharding for v in rows if hasattr(v, "container")]
    assert len(places) >= 3 and all(len(s.device_set) == 8 for s in places)
    stage = fitter(progressbar=False)
    stage.apply()
    print("equal")

# What NUTS and the importance stage evaluate, for points and for Fourier coefficients.
target = spread(models[0], mesh)
names = [v.name for v in models[0].value_vars]
assert [v.name for v in target.value_vars] == names and not target.observed_RVs
x = 0.1 * rng.normal(size=sum(np.size(v) for v in target.initial_point().values()))
modes = (target, "JAX"), (models[0], "FAST_COMPILE")
found, expected = (m.logp_dlogp_function(ravel_inputs=True, mode=mode)(x) for m, mode in modes)
for a, b in zip(found, expected, strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10 * np.abs(b).max())
settings = {"chains": 2, "random_seed": 1, "progressbar": False, "method": "importance"}
settings |= {"stage": stage, "model": model}
idata = vsgp.sample(20, **settings)
table = np.reshape(devices, (2, 4))
tables = devices, table, jax.sharding.Mesh(table.T, ("rows", "draws"))
assert [mesh_of(d).shape for d in tables] == [{"draws": a, "rows": 8 // a} for a in (1, 2, 2)]
assert mesh_of(tables[1]) == mesh_of(tables[2]) == mesh_of(table.tolist())
for some in tables[:2]:
    on_eight = vsgp.sample(20, devices=some, **settings)
    assert list(idata.posterior) == list(on_eight.posterior)
    for name, x in idata.posterior.items():
        scale = np.abs(x.values).max()
        np.testing.assert_allclose(on_eight.posterior[name], x, rtol=1e-10, atol=1e-10 * scale)
print("drawn")

# Chains on the rows of the table, at the same time. Few draws: NUTS multiplies rounding.
settings |= {"method": "nuts", "tune": 2, "draws": 2, "model": model}
on_one = vsgp.sample(devices=devices[:1], **settings)
rows, set_mesh = set(), jax.set_mesh

def seen(mesh):
    rows.add(tuple(mesh.devices.flat))
    return set_mesh(mesh)

jax.set_mesh = seen
on_table = vsgp.sample(devices=table, **settings)
jax.set_mesh = set_mesh
assert rows == set(map(tuple, table)), rows
for name, x in on_one.posterior.items():
    found = on_table.posterior[name].sel(chain=x.chain)
    np.testing.assert_allclose(found, x, rtol=1e-8, atol=1e-8 * np.abs(x).max())
print("chains")

# JAX does not know how many rows a slice has, so numpy takes what goes with an exposure.
Xnew = np.linspace(0.0, 3.0, 7)[:, None]
more = {"at": np.array([0.0, 1.0]), "likelihood": vsgp.Poisson(exposure=np.linspace(1.0, 2.0, 7))}
for what, more in {"f": {}, "moments": {}, "density": more}.items():
    kwargs = {"random_seed": 1, "progressbar": False, "model": model, **more}
    a, b = (vsgp.predict(idata, Xnew, what, **d, **kwargs) for d in ({}, {"devices": table}))
    for x, z in zip(*(d.values() if what == "moments" else [d] for d in (a, b)), strict=True):
        np.testing.assert_allclose(x, z, rtol=1e-9, atol=1e-9)
mean = {"likelihood": vsgp.Poisson(), "random_seed": 1, "progressbar": False, "model": model}
a, b = (vsgp.predict(idata, Xnew, "mean", **d, **mean) for d in ({}, {"devices": devices}))
np.testing.assert_allclose(a, b, rtol=1e-9)
print("predicted")

few = {"devices": devices, "model": models[0], "progressbar": False}
with pm.Model() as grid:
    gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(1, ls=pm.Gamma("ls", 4, 4)))
    gp.prior("u", Xu=np.linspace(0.0, 3.0, 4)[:, None])
    gp.likelihood("y", vsgp.Poisson(), X=X[:5], y=np.arange(5))
with pm.Model() as whole:
    gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(1, ls=pm.Gamma("ls", 4, 4)))
    gp.prior("u", Xu=np.linspace(0.0, 3.0, 4)[:, None])
    gp.likelihood("y", vsgp.Poisson(), X=X[:9], y=np.arange(9), block_size=False)
fitted = vsgp.fit_gaussian(model=grid, progressbar=False)
for function, kwargs in [
    (vsgp.fit_gaussian, {"method": "minibatch", **few}),
    (vsgp.fit_gaussian, few | {"devices": ["cpu"]}),
    (vsgp.fit_gaussian, few | {"devices": [devices, devices]}),
    (vsgp.sample, few | {"devices": [devices[:3], devices[3:]]}),
    (vsgp.sample, few | {"devices": jax.sharding.Mesh(table, ("x", "y"))}),
    (vsgp.fit_gaussian, few | {"model": grid}),
    (vsgp.fit_gaussian, few | {"model": whole}),
    (vsgp.sample, {"fit_kwargs": {"method": "minibatch"}, **few}),
    (vsgp.sample, {"backend": "numba", **few}),
    (vsgp.sample, {"nuts_sampler": "pymc", **few}),
    (vsgp.sample, {"collapse": True, **few}),
    (vsgp.sample, {"cores": 2, **few}),
    (vsgp.sample, {"stage": fitted, "method": "importance", **few | {"model": grid}}),
    (vsgp.predict, {"idata": idata, "compile_kwargs": {"mode": "NUMBA"}, **few}),
]:
    try:
        function(**kwargs)
    except Exception as error:
        print("refused", type(error).__name__, error)
"""

REFUSED = [
    "ValueError Data spread over devices with method='natural' alone",
    "TypeError devices is ['cpu'], but different devices of JAX are needed",
    "TypeError devices is [[",
    "TypeError devices is [[",
    "ValueError The axes of the mesh are ('x', 'y'). Name them 'rows' and 'draws'",
    "ValueError There are 5 rows of the data for 8 devices",
    "ValueError The likelihood 'y' has block_size=False, and the Gaussian stage works on blocks",
    "ValueError Data spread over devices with method='natural' alone",
    'ValueError With devices nutpie samples the whole model on JAX, and sample got ["backend',
    'ValueError With devices nutpie samples the whole model on JAX, and sample got ["nuts_sampler',
    "ValueError With devices nutpie samples the whole model on JAX, and sample got ['collapse",
    "ValueError cores is 2, but 1 is how many chains devices run at once",
    "ValueError There are 5 rows of the data for 8 devices",
    "ValueError Devices take JAX, and compile_kwargs has a mode",
]


@pytest.mark.long
@pytest.mark.slow  # compiles on JAX
def test_eight_devices_find_what_one_does():
    flags = "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0"
    run = subprocess.run(
        [sys.executable, "-c", EQUAL],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
    )
    lines = run.stdout.splitlines()
    assert lines[:5] == ["equal", "equal", "drawn", "chains", "predicted"], run.stderr
    for line, expected in zip(lines[5:], REFUSED, strict=True):
        assert line.startswith(f"refused {expected}"), lines


def test_devices_take_jax(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match="Devices are those of JAX, which is not installed"):
        vsgp.local_rows(3)
    with pytest.raises(ImportError, match="Run pip install jax"):
        vsgp.predict({}, devices=[None])
