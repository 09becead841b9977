"""What Fourier features leave out, and spectral densities: against sums in plain numpy."""

import itertools
import warnings

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest

from marks import long
from modes import RAW
from scipy import integrate, special

import pymc_vsgp as vsgp

from pymc_vsgp.inducing import Fourier
from pymc_vsgp.inducing.spectrum import spectral_density, spectrum

ALPHA = 1.9
MATERN = {"Matern12": 0.5, "Exponential": 0.5, "Matern32": 1.5, "Matern52": 2.5}
KERNELS = ["ExpQuad", "RatQuad", *MATERN]
COUNTS, PERIOD = (7, 3, 2), (1.3, 0.9, 1.1)
RATIOS = 10.0 ** np.linspace(-2.0, 1.0, 10)  # lengthscale over period
MANY = {1: 20_000, 2: 700, 3: 60}


def cov_of(name, ls, alpha=ALPHA):
    kwargs = {"alpha": alpha} if name == "RatQuad" else {}
    return getattr(pm.gp.cov, name)(ls.type.shape[0], ls=ls, **kwargs)


def density(name, z2, ls):
    """Spectral density where `z2` is the sum of squares of frequencies times lengthscales."""
    D = len(ls)
    if name == "ExpQuad":
        return (2 * np.pi) ** (D / 2) * np.prod(ls) * np.exp(-z2 / 2)
    if name == "RatQuad":
        z, nu = np.sqrt(2 * ALPHA * z2), ALPHA - D / 2
        c = 2 * (2 * np.pi * ALPHA) ** (D / 2) * np.prod(ls) / special.gamma(ALPHA)
        inner = np.where(z > 0, z, 1.0)
        return c * np.where(z > 0, (inner / 2) ** nu * special.kv(nu, inner), special.gamma(nu) / 2)
    nu = MATERN[name]
    if name == "Exponential":
        z2, ls = 4.0 * z2, 2.0 * ls
    c = 2**D * np.pi ** (D / 2) * special.gamma(nu + D / 2) * (2 * nu) ** nu / special.gamma(nu)
    return c * np.prod(ls) * (2 * nu + z2) ** (-nu - D / 2)


def kernel(name, r):
    if name == "Exponential":
        return np.exp(-r / 2)
    if name == "Matern12":
        return np.exp(-r)
    r = np.sqrt(2 * MATERN[name]) * r
    return (1 + r + (r**2 / 3 if name == "Matern52" else 0)) * np.exp(-r)


def left_out(name, ls, counts, period):
    """Sum over all frequencies that are left out; or that over all images less what is kept."""
    D = len(ls)

    def variances(k):
        z2 = sum((2 * np.pi * a * i / p) ** 2 for a, i, p in zip(ls, k, period, strict=True))
        times = 2.0 ** sum((i > 0).astype(float) for i in k)
        return times * density(name, z2, ls) / np.prod(period)

    # Rough functions have slow waves that add up slowly: there the images converge at once.
    if name in MATERN and (MATERN[name] == 0.5 or (ls / period).min() < 0.05):
        kept = np.meshgrid(*[np.arange(n + 1) for n in counts], indexing="ij")
        sides = [np.arange(-n, n + 1) for n in np.ceil(80 * ls / period).astype(int) + 2]
        grid = np.meshgrid(*[np.ravel(s) for s in sides], indexing="ij", sparse=True)
        r2 = sum((g * p / a) ** 2 for g, p, a in zip(grid, period, ls, strict=True))
        return kernel(name, np.sqrt(r2)).sum() - variances(kept).sum()
    grid = np.meshgrid(*[np.arange(MANY[D] + 1)] * D, indexing="ij", sparse=True)
    beyond = np.zeros([MANY[D] + 1] * D, bool)
    for g, n in zip(grid, counts, strict=True):
        beyond |= g > n
    return variances(grid)[beyond].sum()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "D"),
    # A sum over all frequencies of three inputs takes too long for the others.
    [*((name, 1) for name in KERNELS), ("Matern52", 2), ("Matern52", 3)]
    + long(*((name, 2) for name in KERNELS if name != "Matern52"), ("ExpQuad", 3)),
)
def test_residual_variance_is_the_sum_over_all_other_frequencies(name, D):
    """With a lengthscale from a hundredth of the period to ten of it."""
    counts, period = COUNTS[:D], np.array(PERIOD[:D])
    ls = pt.vector(shape=(D,))
    found = spectrum(cov_of(name, ls), counts, period).left_out
    fn = pytensor.function([ls], [found, pt.grad(found, ls)], mode=RAW)
    for ratio in RATIOS if D < 3 else RATIOS[3::3]:
        at = ratio * period * np.array([1.0, 0.7, 1.2])[:D]
        value, slope = fn(at)
        assert value >= 0.0
        exact = left_out(name, at, counts, period)
        # Beyond 1e-10 of the function's variance neither is known, or matters.
        np.testing.assert_allclose(value, exact, rtol={1: 1e-7, 2: 2e-6, 3: 1e-5}[D], atol=1e-10)
        assert np.isfinite(slope).all()
        h = 1e-4
        for d, step in enumerate(np.eye(D) * at * h):
            difference = (fn(at + step)[0] - fn(at - step)[0]) / (2 * h * at[d])
            np.testing.assert_allclose(slope[d], difference, rtol=1e-5, atol=1e-8 / at[d])


@pytest.mark.parametrize("name", ["Matern32", "RatQuad"])
def test_with_short_lengthscales_it_is_the_variance_less_what_is_kept(name):
    """Sums, multiples and products over separate inputs included."""
    make = getattr(pm.gp.cov, name)
    kwargs = {"alpha": 30.0} if name == "RatQuad" else {}
    one = make(2, ls=0.03, active_dims=[0], **kwargs)
    other = pm.gp.cov.Matern52(2, ls=0.05, active_dims=[1])
    cov = 1.7 * (one + 0.5 * pm.gp.cov.ExpQuad(2, ls=0.02, active_dims=[0])) * other
    features = Fourier((1.3, 1.1), (6, 9))
    total, left = (x.eval(mode=RAW) for x in features.spectrum(cov))
    np.testing.assert_allclose(total, 1.7 * 1.5, rtol=1e-9)
    np.testing.assert_allclose(
        left, total - features.variances(cov).eval(mode=RAW).sum(), rtol=1e-9
    )


@pytest.mark.parametrize("D", [1, 2, 3])
@pytest.mark.parametrize("name", KERNELS)
def test_density_is_the_transform_of_the_kernel(name, D):
    """A radial transform by quadrature, to more than the digits of single precision."""
    ls = 0.8
    cov = cov_of(name, pt.constant(np.full(D, ls)), alpha=8.0)
    line = cov_of(name, pt.constant(np.array([ls])), alpha=8.0)
    r = np.linspace(0.0, 60.0, 30_001)
    values = line.full_from_distance(pt.constant(r / ls)).eval(mode=RAW)
    omega = np.array([0.3, 1.7, 4.0])
    rows = omega[:, None] * np.ones(D) / np.sqrt(D)
    found = spectral_density(cov, pt.constant(rows)).eval(mode=RAW)
    for w, ours in zip(omega, found, strict=True):
        transform = {
            1: lambda r, w=w: 2 * np.cos(w * r),
            2: lambda r, w=w: 2 * np.pi * r * special.j0(w * r),
            3: lambda r, w=w: 4 * np.pi * r**2 * np.sinc(w * r / np.pi),
        }[D]
        exact = integrate.simpson(transform(r) * values, x=r)
        np.testing.assert_allclose(ours, exact, rtol=1e-8, atol=1e-9)


def test_gradient_in_alpha():
    alpha = pt.scalar("alpha")
    cov = pm.gp.cov.RatQuad(1, alpha=alpha, ls=0.2)
    features = Fourier(1.5, 4)
    outputs = [features.variances(cov)[3], features.spectrum(cov).left_out]
    slopes = [pytensor.grad(x, alpha) for x in outputs]
    fn = pytensor.function([alpha], [*outputs, *slopes], mode=RAW)
    for a in (0.7, 2.0, 40.0):
        up, down, here = fn(a + 1e-4), fn(a - 1e-4), fn(a)
        for i in range(2):
            difference = (up[i] - down[i]) / 2e-4
            np.testing.assert_allclose(here[2 + i], difference, rtol=1e-5, atol=1e-12)


def test_tails_too_heavy_are_refused():
    with pytest.raises(ValueError, match="Use alpha above 0.5"):
        Fourier(1.5, 4).variances(pm.gp.cov.RatQuad(1, alpha=0.4, ls=0.2))


def test_a_prior_of_tails_too_heavy_is_told():
    with pm.Model():
        for alpha, told in (
            (pm.HalfNormal("a", 1.0), True),
            (1.0 + pm.HalfNormal("b", 1.0), False),
        ):
            cov = pm.gp.cov.RatQuad(2, alpha=alpha, ls=0.2)
            gp = vsgp.VariationalSparse(cov_func=0.5 * cov)
            with warnings.catch_warnings(record=True) as found:
                warnings.simplefilter("always")
                gp.prior(f"u_{told}", inducing=Fourier((1.5, 1.5), 2))
            said = [str(w.message) for w in found if "RatQuad" in str(w.message)]
            assert len(said) == told
            if told:
                assert "of the draws from its prior" in said[0]


class Own(pm.gp.cov.Matern32):
    """A kernel of somebody's own."""


def test_a_kernel_of_ones_own_is_never_clipped():
    features = Fourier(1.0, 10)
    for ls in (0.1, 5.0):
        own = features.spectrum(Own(1, ls=ls)).left_out.eval(mode=RAW)
        exact = features.spectrum(pm.gp.cov.Matern32(1, ls=ls)).left_out.eval(mode=RAW)
        if ls < 1.0:
            np.testing.assert_allclose(own, exact, rtol=1e-4)
        else:
            assert np.isnan(own)  # images that far do not add up, and that is said


class Smoother(pm.gp.cov.Matern32):
    """One with the density of its parent, which is another kernel's."""

    def full_from_distance(self, dist, squared=False):
        return super().full_from_distance(dist, squared) ** 2


class Waved(pm.gp.cov.ExpQuad):
    """Another one."""

    def full(self, X, Xs=None):
        other = X if Xs is None else Xs
        return super().full(X, Xs) * pt.cos(3.0 * (X[:, :1] - other[:, :1].T))


@pytest.mark.parametrize("kernel", [Smoother, Waved])
def test_a_density_of_another_kernel_is_refused(kernel):
    with pm.Model():
        gp = vsgp.VariationalSparse(cov_func=2.0 * kernel(1, ls=1.0))
        with pytest.raises(ValueError, match=f"closed form: {kernel.__name__}"):
            gp.prior("u", inducing=Fourier(20.0, 10))


class Turned(pm.gp.cov.Matern32):
    """One whose ridges lie askew, unless the factor is zero."""

    askew = 0.9

    def _turn(self, X):
        return pt.stack([X[:, 0], self.askew * X[:, 0] + X[:, 1]], axis=1)

    def full(self, X, Xs=None):
        return super().full(self._turn(X), None if Xs is None else self._turn(Xs))

    def power_spectral_density(self, omega):
        back = pt.stack([omega[:, 0] - self.askew * omega[:, 1], omega[:, 1]], axis=1)
        return super().power_spectral_density(back)


class Upright(Turned):
    askew = 0.0


@pytest.mark.slow
@pytest.mark.parametrize("draw", [pm.HalfNormal, pm.HalfFlat])
def test_a_density_that_is_not_even_in_each_input_is_refused(draw):
    """Products of waves of each input cannot have it."""
    X = np.random.default_rng(0).uniform(size=(40, 2))
    with pm.Model():
        ls = draw("ls")
        turned = 2.0 * Turned(2, ls=ls) + pm.gp.cov.ExpQuad(2, ls=1.0)
        with pytest.raises(ValueError, match="density of Turned .*Use inducing points"):
            vsgp.VariationalSparse(cov_func=turned).prior("u", inducing=Fourier((3.0, 2.0), 3))
        vsgp.VariationalSparse(cov_func=Upright(2, ls=ls)).prior("v", inducing=Fourier(3.0, 3))
    notes = vsgp.suggest_inducing(X, Turned(2, ls=1.0), draws=1).notes
    assert any("Turned" in note for note in notes)


def test_variances_of_equal_frequencies_are_equal():
    features = Fourier((1.0, 2.0), (2, 3))
    cov = pm.gp.cov.Matern32(2, ls=[0.4, 0.3])
    found = features.variances(cov).eval(mode=RAW)
    for (i, a), (j, b) in itertools.combinations(enumerate(features.omega), 2):
        if np.array_equal(a, b):
            assert found[i] == found[j]
    direct = spectral_density(cov, pt.constant(features.omega)).eval(mode=RAW) / 2.0
    np.testing.assert_allclose(found, direct, rtol=1e-12)
