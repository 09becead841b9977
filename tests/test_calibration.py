"""Simulation-based calibration."""

import numpy as np
import pymc as pm
import pytest

import pymc_vsgp as vsgp

from pymc_vsgp.calibration import Calibration

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


def test_plot(rng):
    plt = pytest.importorskip("matplotlib.pyplot", reason="matplotlib is not installed")
    ranks = {name: rng.integers(0, 50, size=100) for name in ("a", "b")}
    axes = Calibration(ranks, 49).plot()
    assert [ax.get_title() for ax in axes[:2]] == ["a", "b"]
    plt.close("all")


def test_bad_input():
    with pytest.raises(ValueError, match="20 replicates say little.*Take 50 or more"):
        vsgp.calibrate(build, np.ones(30), 20)
    with pytest.raises(ValueError, match="needs as many.*Raise draws"):
        vsgp.calibrate(build, np.ones(30), 50, draws=20)


@pytest.mark.slow
def test_poisson_is_calibrated():
    pytest.importorskip("nutpie", reason="nutpie is not installed")
    result = vsgp.calibrate(
        build, np.ones(30, dtype="int64"), 50, draws=150, tune=150, random_seed=3, progressbar=False
    )
    assert result.calibrated, result
    assert set(result.ranks) == {"ls", "u[0]", "u[5]", "u[11]"}
