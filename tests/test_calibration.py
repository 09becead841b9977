"""Simulation-based calibration."""

import numpy as np
import pymc as pm
import pytest

import pymc_vsgp as vsgp

from pymc_vsgp.calibration import Calibration
from pymc_vsgp.plots import plot_calibration

X = np.linspace(0.0, 4.0, 30)[:, None]


def build(y, n_inducing=12, likelihood=None):
    with pm.Model() as model:
        ls = pm.LogNormal("ls", 0.3, 0.3)
        gp = pm.gp.VariationalSparse(cov_func=pm.gp.cov.ExpQuad(1, ls=ls))
        gp.prior("u", Xu=vsgp.inducing.grid(X, n_inducing))
        gp.likelihood("y", likelihood or vsgp.Poisson(exposure=3.0), X=X, y=y)
    return model


def test_verdict(rng):
    uniform = Calibration({"a": rng.integers(0, 50, size=300)}, 49)
    assert uniform.calibrated
    assert "uniform ranks" in repr(uniform)
    assert uniform.counts("a").sum() == 300
    narrow = Calibration({"a": np.where(rng.random(300) < 0.5, 0, 49)}, 49)
    assert not narrow.calibrated
    assert "NOT uniform" in repr(narrow)


@pytest.mark.parametrize("kind", ["ecdf", "hist"])
def test_plot(kind, rng):
    plt = pytest.importorskip("matplotlib.pyplot", reason="matplotlib is not installed")
    low = rng.integers(0, 25, size=100)
    result = Calibration({"a": rng.integers(0, 50, size=100), "b": low}, 49)
    axes = plot_calibration(result, kind=kind)
    assert [ax.get_title(loc="left") for ax in axes] == ["a", "b: not uniform"]
    assert "99% of uniform" in axes[0].get_legend_handles_labels()[1][0]
    if kind == "ecdf":
        # Half of the range has all ranks, so that the curve is half a unit above.
        curve = axes[1].lines[-1]
        np.testing.assert_allclose(max(curve.get_ydata()), 0.5, atol=0.06)
        band = axes[0].collections[0].get_paths()[0].vertices
        assert 0.1 < band[:, 1].max() < 0.25  # 99 % of 100: 1.63 / sqrt(100), more or less
    _, given = plt.subplots()
    (same,) = result.plot(given, names=["a"], kind=kind)
    assert same is given
    same.figure.canvas.draw()
    plt.close("all")


def test_refusals_of_the_plot(rng):
    result = Calibration({"a": rng.integers(0, 50, size=100)}, 49)
    with pytest.raises(TypeError, match="not a Calibration. Pass the result"):
        plot_calibration(result.ranks)
    with pytest.raises(ValueError, match="kind is 'bars'"):
        plot_calibration(result, kind="bars")
    with pytest.raises(ValueError, match=r"no ranks of \['z'\]. Choose from"):
        plot_calibration(result, names=["z"])


def test_bad_input():
    with pytest.raises(ValueError, match="20 replicates say little.*Take 50 or more"):
        vsgp.calibrate(build, np.ones(30), 20)
    with pytest.raises(ValueError, match="needs as many.*Raise draws"):
        vsgp.calibrate(build, np.ones(30), 50, draws=20)


@pytest.mark.slow
def test_poisson_is_calibrated():
    pytest.importorskip("nutpie", reason="nutpie is not installed")
    result = vsgp.calibrate(
        build, np.ones(30, dtype="int64"), 50, draws=99, tune=60, random_seed=3, progressbar=False
    )
    assert result.calibrated, result
    assert set(result.ranks) == {"ls", "u[0]", "u[5]", "u[11]"}
