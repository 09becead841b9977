"""Integrals against a Gaussian in one dimension, for likelihoods that have no closed form.

Rules, each the cheapest that holds 1e-6 for standard deviations from 0 to 10:

* `expectation` without a bend: the trapezoid rule in standard units. It converges like
  exp(-c / step) for smooth integrands, where Gauss-Hermite of the same size wastes
  most of its nodes in the tails.
* `expectation` with a bend: Gauss-Hermite, with as many nodes as the largest variance of a block
  needs; or Gauss-Legendre after a sinh stretch around the bend, which resolves the bend and the
  Gaussian at once however different their scales.
* `log_expectation` and `mean`: find the region that carries the integral, then the midpoint rule on
  that.

A bend is a pair (center, width): the singularities of the integrand nearest to the real axis are
about at ``center +- i width``. The stretch ``f = center + width sinh(z)`` moves them to
``z = +- i pi / 2``, far from the real axis on the scale of the steps in z.

Nodes are chosen, not differentiated: they are constants to `pt.grad`, so a gradient is the same
rule applied to the gradient of the integrand. It is as accurate as the value, and half the graph.
"""

from functools import partial

import numpy as np
import pytensor.tensor as pt

from pytensor.gradient import DisconnectedInputError, NullTypeGradError, disconnected_grad, grad
from scipy.special import digamma

from pymc_vsgp.ops.nodes import N_BEND, REACH, bend_nodes, stack, standard_deviation

N_PLAIN = 101
# The search for the region that carries an integral: nodes of a grid, nodes and number of zooms.
# Then the nodes of the rule.
ANY = (97, 13, 7, 128)
ONE_PEAK = (25, 13, 7, 128)  # where the log density is concave in f
WIDE = (41, 9, 5, 96)  # for one class of two, which says little of f
LEAN = (61, 13, 5, 48)  # where one integral is inside another
N_PRODUCT = {1: 101, 2: 41, 3: 25}  # by the number of functions, for each of them
DROP = 30.0  # log_expectation ignores what is this many nats below the peak
FAR = 1e8  # standard deviations: a bend as far away, or as wide, moves no node


def midpoints(n, ndim):
    """Nodes of the midpoint rule on [0, 1]."""
    return stack((np.arange(n) + 0.5) / n, ndim)


def trapezoid_nodes(n_nodes, ndim, reach=REACH):
    """Nodes t and weights of the trapezoid rule for N(0, 1)."""
    t = np.linspace(-reach, reach, n_nodes)
    w = np.exp(-(t**2) / 2.0)
    return stack(t, ndim), stack(w / w.sum(), ndim)


def expectation(fn, mu, gamma, ndim, bend=None, n_nodes=None, reach=REACH):
    """``E[fn(f)]`` for f ~ N(mu, gamma), elementwise.

    Parameters
    ----------
    fn : callable
        Takes f with the nodes on a new first axis.
    mu, gamma : TensorVariable
        Mean and variance.
    ndim : int
        Number of dimensions of the result, with whatever fn broadcasts mu and gamma against.
    bend : (center, width), optional
        Where fn bends, and the scale on which it does. Without it the rule resolves features of
        scale about 1 for a standard deviation up to 10.
    n_nodes : int, optional
        Number of nodes; by default `N_BEND` or `N_PLAIN`.
    reach : float
        Of the rule without a bend: standard deviations on either side of the mean.
    """
    sd = standard_deviation(gamma)
    if bend is None:
        t, w = trapezoid_nodes(n_nodes or N_PLAIN, ndim, reach)
    else:
        center, width = bend
        t, w = bend_nodes(mu, sd, center, width, n_nodes or N_BEND, ndim)
    return (w * fn(mu + sd * t)).sum(axis=0)


def product_expectation(fn, mu, gamma, ndim, n_nodes=None, reach=REACH):
    """``E[fn(f, g, ...)]`` for independent normal f, g, ..., elementwise.

    `mu` and `gamma` have one column for each function; `ndim` is that of the result. The product
    of trapezoid rules: it resolves features of scale about 1 for standard deviations up to 10 with
    one function, 4 with two and 2 with three.
    """
    columns = [(mu[..., k], gamma[..., k]) for k in range(mu.type.shape[-1] or 1)]
    n_nodes = n_nodes or N_PRODUCT[len(columns)]
    return nested(partial(expectation, n_nodes=n_nodes, reach=reach), fn, columns, ndim)


def roughly(fn, mu, gamma):
    """``E[fn(f)]`` for several independent normal f, about, and that of its second derivatives.

    At a few points on either side of the mean, whose second moments are right, so that both are
    exact where fn is quadratic. The functions are on the last axis of two. Raises
    NotImplementedError where fn has no second derivatives.
    """
    if mu.type.ndim != 2:
        raise NotImplementedError("There are not several functions.")
    K = mu.type.shape[1]
    z = np.random.default_rng(K).normal(size=(max(4, K + 2), K))
    z = np.linalg.qr(z)[0] * np.sqrt(len(z))
    z = np.concatenate([z, -z])
    f = mu + standard_deviation(gamma) * z[:, None]
    values = fn(f)
    try:
        slope = grad(values.sum(), f)
        bends = [grad((slope * np.eye(K)[k]).sum(), f).mean(axis=0) for k in range(K)]
    except (DisconnectedInputError, NullTypeGradError) as error:
        raise NotImplementedError("There are no second derivatives.") from error
    return values.mean(axis=0), pt.stack(bends, axis=-1)


def nested(integral, fn, columns, ndim):
    """Integrate a function of several variables, over one after the other."""

    def nest(known, rest):
        # The outermost integral has its nodes on the axis next to the data's.
        if not rest:
            return fn(*reversed(known))
        (m, g), *others = rest
        return integral(lambda f: nest([*known, f], others), m, g, ndim + len(known))

    return nest([], columns[::-1])


def log_expectation(log_fn, mu, gamma, ndim, bend=None, lower=None, sizes=None):
    """``log E[exp(log_fn(f))]`` for f ~ N(mu, gamma), elementwise.

    A likelihood may move the mass many standard deviations away from mu, and squeeze it. So look
    for the region first: on a grid that spans all scales keep what is within `DROP` nats of the
    peak, then zoom in on that, a few times. No derivatives; works for any log_fn with one peak,
    and for several that the first grid can tell apart. Given `lower`, f below it does not count;
    the integrand must be even around it, so that the rule is as good as on the whole line. `sizes`
    are as those of `ANY`.
    """
    sd = standard_deviation(gamma)

    def height(t):
        return log_fn(mu + sd * t) - t**2 / 2.0

    lower = None if lower is None else (lower - mu) / sd
    t, slope = region_nodes(height, mu, sd, ndim, bend, lower, sizes)
    log_w = pt.log(slope / np.sqrt(2.0 * np.pi))
    t, log_w = disconnected_grad(t), disconnected_grad(log_w)
    return pt.logsumexp(height(t) + log_w, axis=0)


def folded_log_expectation(log_fn, mu, gamma, ndim):
    """Log of the expectation of the exponential of an even function, with a peak on either side.

    The negative side is folded onto the positive: the two normal densities sum to
    ``N(f; |mu|, gamma) (1 + exp(-2 f |mu| / gamma))``.
    """
    mu, variance = pt.abs(mu), standard_deviation(gamma) ** 2

    def folded(f):
        return log_fn(f) + pt.softplus(-2.0 * f * mu / variance)

    return log_expectation(folded, mu, gamma, ndim, lower=np.float64(0.0))


def peaked_log_expectation(each, mu, gamma, sizes=None):
    """Log of the integral of the density over the one function of a row.

    `each` is the log density of each output, on the last axis, and takes the function with such an
    axis. Heavy tails keep the region wide that carries the integral, however narrow the peak. So
    the nodes are dense where the density is highest, and that is near the peak of some output.
    """

    def log_prob(f):
        return each(f[..., None]).sum(axis=-1)

    ndim = mu.type.ndim
    if sizes is not None:  # the density of each output is concave, and so is their product
        return log_expectation(log_prob, mu, gamma, ndim, sizes=sizes)
    sd = standard_deviation(gamma)

    def height(t):
        return log_prob(mu + sd * t) - t**2 / 2.0

    m, s = mu[..., None], sd[..., None]
    of_each = _peak(lambda t: each(m + s * t) - t**2 / 2.0, m, ndim + 1)
    t, width = (pt.moveaxis(v, -1, 0) for v in of_each)
    h = height(t)
    highest = pt.ge(h, pt.switch(pt.lt(h, np.inf), h, -np.inf).max(axis=0))
    t = pt.max(pt.switch(highest, t, -np.inf), axis=0)
    width = pt.min(pt.switch(highest, width, np.inf), axis=0)
    z, of_z = _peak(lambda z: height(t + width * z), mu, ndim)
    bend = mu + sd * (t + width * z), sd * width * of_z
    return log_expectation(log_prob, mu, gamma, ndim, bend)


def _peak(height, like, ndim):
    """Return where a function is highest, and about how wide it is there."""
    # Times this, the region of the rule ends 2 nats below the peak.
    t, _ = region_nodes(lambda t: 15.0 * height(t), like, 1.0, ndim, sizes=(97, 13, 7, 2))
    return t.mean(axis=0), (t[1] - t[0]) / 2.0


def mean(fn, mu, gamma, ndim, bend=None, sizes=None):
    """``E[fn(f)]`` for f ~ N(mu, gamma), elementwise, where fn may grow like ``exp(f)``.

    An integrand that grows has its mass where the normal density alone has none: it is looked for,
    as in `log_expectation`.
    """
    sd = standard_deviation(gamma)

    def height(t):
        size = pt.abs(fn(mu + sd * t))
        # Where fn overflows the density of f is far below every number.
        size = pt.switch(pt.isinf(size), np.float64(0.0), size)
        return pt.log(size + np.float64(1e-300)) - t**2 / 2.0

    t, slope = region_nodes(height, mu, sd, ndim, bend, None, sizes)
    w = slope * pt.exp(-(t**2) / 2.0) / np.sqrt(2.0 * np.pi)
    return (disconnected_grad(w) * fn(mu + sd * disconnected_grad(t))).sum(axis=0)


def region_nodes(height, mu, sd, ndim, bend=None, lower=None, sizes=None):
    """Nodes t over the region that carries the integral of exp(height), and their weights."""
    n_coarse, n_refine, n_zoom, n_rule = sizes or ANY
    grid = np.sinh(np.linspace(-12.0, 12.0, n_coarse))  # up to 8e4 standard deviations
    t, below, above = (
        stack(g, ndim) for g in (grid, np.r_[grid[0], grid[:-1]], np.r_[grid[1:], grid[-1]])
    )
    if lower is not None:
        t, below, above = (pt.maximum(g, lower) for g in (t, below, above))
    unit = stack(np.linspace(0.0, 1.0, n_refine), ndim)
    for _ in range(n_zoom):
        h = height(t)
        # Far out there may be NaN, as of 0 * inf, or infinity, as of a logarithm that underflows.
        h = pt.switch(pt.lt(h, np.inf), h, -np.inf)
        keep = h >= h.max(axis=0) - DROP  # all, where the density is 0 everywhere
        lo = pt.min(pt.switch(keep, below, np.inf), axis=0)
        hi = pt.max(pt.switch(keep, above, -np.inf), axis=0)
        step = (hi - lo) * unit[1:2]
        t = lo + (hi - lo) * unit
        below, above = pt.maximum(t - step, lo), pt.minimum(t + step, hi)
    unit = midpoints(n_rule, ndim)
    if bend is None:
        t, slope = lo + (hi - lo) * unit, hi - lo
    else:
        center, width = bend
        at, scale = pt.clip((center - mu) / sd, -FAR, FAR), pt.minimum(width / sd, FAR)
        z_lo, z_hi = pt.arcsinh((lo - at) / scale), pt.arcsinh((hi - at) / scale)
        z = z_lo + (z_hi - z_lo) * unit
        t, slope = at + scale * pt.sinh(z), scale * pt.cosh(z) * (z_hi - z_lo)
    return t, slope / n_rule


def product_mean(fn, mu, gamma, ndim):
    """``E[fn(f, g, ...)]`` for independent normal f, g, ..., where fn may grow like ``exp(f)``.

    With three functions for standard deviations up to 2; with one or two, for any.
    """
    columns = [(mu[..., k], gamma[..., k]) for k in range(mu.type.shape[-1])]
    if len(columns) > 2:
        n, reach = N_PRODUCT[len(columns)], REACH + 2.0
        return product_expectation(fn, mu, gamma, ndim, round(n * reach / REACH), reach)
    return nested(partial(mean, sizes=LEAN), fn, columns, ndim)


def product_log_expectation(log_fn, mu, gamma, ndim):
    """``log E[exp(log_fn(f, g, ...))]`` for independent normal f, g, ..., elementwise.

    With three functions by the rule of `product_expectation`, which has to resolve the likelihood;
    with one or two, wherever the mass is.
    """
    columns = [(mu[..., k], gamma[..., k]) for k in range(mu.type.shape[-1])]
    if len(columns) > 2:
        t, w = trapezoid_nodes(N_PRODUCT[len(columns)], 0)
        t, log_w = t.ravel(), np.log(w.ravel())
        grids = np.meshgrid(*[t] * len(columns), indexing="ij")
        weight = sum(np.meshgrid(*[log_w] * len(columns), indexing="ij"))
        f = [
            m + standard_deviation(g) * stack(x.ravel(), ndim)
            for (m, g), x in zip(columns, grids, strict=True)
        ]
        return pt.logsumexp(log_fn(*f) + stack(weight.ravel(), ndim), axis=0)
    return nested(partial(log_expectation, sizes=LEAN), log_fn, columns, ndim)


def _log_square_rule():
    """Nodes and weights such that ``I(x) = sum(-w expm1(-k x)) + tail * x`` for x up to 100."""
    h, n = 0.22, 40
    z = h * np.arange(n)
    w = np.r_[h, np.full(n - 1, 2.0 * h)]
    # Past the last node the integrand is 4 x exp(-2 z): a geometric series.
    tail = 8.0 * h * np.exp(-2.0 * h * n) / -np.expm1(-2.0 * h)
    return 1.0 / np.cosh(z) ** 2, w, tail


def expected_log_square(mu, gamma):
    r"""``E[log f^2]`` for f ~ N(mu, gamma).

    .. math:: \log(2 \gamma) + \psi(1/2) + 2 \int_0^\infty 1 - \exp(-x\, \mathrm{sech}^2 z)\, dz,
              \quad x = \mu^2 / (2 \gamma),

    by the trapezoid rule; for x above 100 the expansion in ``gamma / mu^2``, which is then shorter.
    """
    square = mu**2
    far = square > 200.0 * gamma
    near_gamma, far_square = pt.switch(far, 1.0, gamma), pt.switch(far, square, 1.0)
    x = pt.switch(far, 1.0, square / (2.0 * near_gamma))
    k, w, tail = _log_square_rule()
    integral = -(stack(w, x.ndim) * pt.expm1(-stack(k, x.ndim) * x)).sum(axis=0) + tail * x
    near = pt.log(near_gamma) + (np.log(2.0) + digamma(0.5)) + integral
    r = gamma / far_square
    series = pt.log(far_square) - r * (1.0 + r * (1.5 + r * (5.0 + r * 26.25)))
    return pt.switch(far, series, near)
