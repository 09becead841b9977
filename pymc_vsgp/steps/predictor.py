r"""The likelihood as a function of a linear predictor, and Gaussian approximations of a posterior.

With the parameters held, what the likelihood sees is :math:`\eta = c + B^\top \nu` with
:math:`\nu \sim N(0, I)` a priori: the values of the function at the data, or their means given the
inducing values. The likelihood is a product over the rows of :math:`\eta`.
"""

from typing import NamedTuple

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt

from pymc.pytensorf import pregrad_inner_graphs, rewrite_pregrad
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace, vectorize_graph
from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.graph.traversal import ancestors
from scipy.linalg import cholesky, solve_triangular

from pymc_vsgp.compile import function
from pymc_vsgp.engine.streaming import BlockSum
from pymc_vsgp.inducing.base import ConditionalMoments
from pymc_vsgp.inducing.graphs import frontier
from pymc_vsgp.model.variable import value_shapes
from pymc_vsgp.steps.latents import Latents, nodes_after, seen_by, terms_of

STOP = 1e-3  # largest change of a standard normal: more than that no proposal is better for
MOST_ITERATIONS = 100
SMALLEST_VARIANCE = 1e-12
NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(32)


class At(NamedTuple):
    """The predictor at values of the parameters."""

    nu: np.ndarray
    """Whitened values at the point of the model."""
    c: np.ndarray
    """N x K, for K functions."""
    B: np.ndarray
    """M x N x K."""
    known: list[np.ndarray]
    """What else the likelihood depends on."""

    def eta(self, nu) -> np.ndarray:
        """Return the predictor at whitened values, S x M for many."""
        return self.c + np.tensordot(nu, self.B, axes=1)


class Approximation(NamedTuple):
    """A normal approximation of whitened values, with an estimate of the log evidence."""

    mean: np.ndarray
    L: np.ndarray
    """Cholesky factor of the precision."""
    log_evidence: float
    n_iterations: int

    def draw(self, n: int, rng) -> tuple[np.ndarray, np.ndarray]:
        """Return n draws, and their log densities."""
        epsilon = rng.normal(size=(n, self.mean.size))
        draws = self.mean + solve_triangular(self.L.T, epsilon.T, lower=False).T
        return draws, self._log_density_of(epsilon)

    def log_density(self, nu) -> np.ndarray:
        """Return the log density of each row."""
        return self._log_density_of((nu - self.mean) @ self.L)

    def _log_density_of(self, epsilon) -> np.ndarray:
        constant = np.log(np.diagonal(self.L)).sum() - epsilon.shape[-1] * LOG_2PI / 2.0
        return constant - (epsilon**2).sum(axis=-1) / 2.0


LOG_2PI = np.log(2.0 * np.pi)


class Predictor:
    """The log density of a model as a function of the linear predictor and the other variables.

    The `latents` are values of one exact process, or inducing values of the processes of one
    likelihood. With `by_rows` it has the terms of single rows, too.
    """

    def __init__(self, latents: Latents, by_rows: bool = False):
        self.latents, self.by_rows = latents, by_rows
        self.e = pt.dmatrix("eta")
        eta, total, terms, self.of_loop = _cut(latents, self.e, by_rows)
        eta = eta[:, None] if eta.type.ndim == 1 else eta
        probe = pt.concatenate([pt.eye(latents.size), pt.zeros((1, latents.size))])
        (eta,) = rewrite_pregrad([eta])
        etas = vectorize_graph(eta, {latents.nu: probe})
        # Nodes of a quadrature stay constants of the gradients.
        total, *terms = rewrite_graph(
            [total, *terms],
            include=("canonicalize", "stabilize"),
            exclude=("local_view_op",),
            custom_rewrite=pregrad_inner_graphs,
        )
        gradient = pytensor.grad(total, self.e)
        self.n_functions = K = _number(eta)
        # Rows are independent, so that sums over them have the curvature of each.
        columns = [pytensor.grad(gradient[:, k].sum(), self.e) for k in range(K)]
        curvature = [total, gradient, -pt.stack(columns, axis=1)]
        many = pt.dtensor3("etas")
        totals = vectorize_graph(total, {self.e: many})
        by_row = [vectorize_graph(t, {self.e: many}) for t in terms]
        groups = [curvature, [totals], by_row]
        flat = [v for group in groups for v in group]
        known = frontier(flat, [self.e, many])
        stand_ins = [v.type() for v in known]
        rest = iter(graph_replace(flat, dict(zip(known, stand_ins, strict=True)), strict=False))
        kwargs = latents.compile_kwargs
        self.prepare = function(latents.inputs, [latents.whitened, etas, *known], **kwargs)
        self.curvature, self.totals, self.terms = (
            function([at, *stand_ins], [next(rest) for _ in group], **kwargs)
            for at, group in zip((self.e, many, many), groups, strict=True)
        )
        self.values = function([latents.nu, *latents.inputs], latents.new_values, **kwargs)
        self._check_rows(gradient)

    def _check_rows(self, gradient) -> None:
        """Raise where an observation depends on more than one row."""
        point = self.latents.model.initial_point()
        at, rng = self.at(point), np.random.default_rng(0)
        e = at.c + 0.1 * rng.normal(size=at.c.shape)
        W = self.curvature(e, *at.known)[2]
        v = rng.normal(size=e.shape)
        H_v = pytensor.grad((gradient * v).sum(), self.e)
        inputs = [self.e, *self.latents.inputs]
        found = function(inputs, H_v)(e, *(point[x.name] for x in self.latents.inputs))
        if not np.allclose(found, -np.einsum("nkj,nj->nk", W, v), rtol=1e-6, atol=1e-8):
            raise ValueError(
                "The likelihood is not a product over the latent values. "
                "Use EllipticalSlice, which takes any model."
            )
        if self.by_rows and self.of_loop is None:
            # Term n may see row n alone. Rows move whose number has a bit, then those without.
            bits = np.arange(len(e)) >> np.arange(len(e).bit_length())[:, None] & 1
            moved = np.concatenate([bits, 1 - bits])
            (terms,) = self.terms(np.concatenate([e[None], e + moved[:, :, None]]), *at.known)
            if terms.shape[1:] != (len(e),) or not np.allclose(
                (terms[1:] - terms[0])[moved == 0], 0.0, atol=1e-9
            ):
                raise not_by_rows()

    def at(self, point) -> At:
        """Evaluate what depends on the parameters alone."""
        nu, etas, *known = self.prepare(*self.latents.at(point))
        return At(nu, etas[-1], etas[:-1] - etas[-1], known)

    def log_density(self, at: At, nu: np.ndarray) -> np.ndarray:
        """Return the log density of the model and of whitened values at each row of nu."""
        (totals,) = self.totals(at.eta(nu), *at.known)
        return totals - (nu**2).sum(axis=1) / 2.0 - nu.shape[1] * LOG_2PI / 2.0

    def values_at(self, point, nu) -> dict[str, np.ndarray]:
        """Return the value variables of whitened values, at the parameters of a point."""
        found = self.values(nu, *self.latents.at(point))
        return dict(zip((v.name for v in self.latents.values), found, strict=True))


def _number(eta: Variable) -> int:
    if eta.type.shape[1] is not None:
        return eta.type.shape[1]
    raise ValueError("The number of functions is not known. Pass arrays with fixed shapes.")


def _cut(latents: Latents, e: Variable, by_rows: bool) -> tuple:
    """Return eta, and the log density of all else and its rows as functions of eta.

    Of inducing values it also returns the variance of f, the likelihood, and the observations.
    """
    nu, of_loop = latents.nu, None
    rows: list[Variable] = []
    if any(m.is_inducing for m in latents.members):
        total = latents.log_likelihood
        nodes = nodes_after([total], nu)
        loops = [n for n in nodes if isinstance(n.op, BlockSum | ConditionalMoments)]
        if len(loops) != 1 or not isinstance(loops[0].op, BlockSum):
            raise ValueError(
                "The inducing values have other than one likelihood with a loop over its data. "
                "Use EllipticalSlice, which takes any model."
            )
        (node,) = loops
        (eta, gamma), _ = terms_of(node)
        of_loop = gamma, *seen_by(node)
        _, terms = terms_of(node, e if eta.type.ndim == 2 else e[:, 0])
        terms = node.inputs[0] * terms
        swaps = {node.outputs[0]: pt.sum(terms), node.outputs[node.op.n_sums]: terms}
        (total,) = graph_replace([total], swaps, strict=False)
        rows = [terms]
    else:
        if len(latents.members) != 1:
            raise ValueError("There is more than one process. Pass the values of one of them.")
        eta, total, rows = _cut_exact(latents, e, by_rows)
    if nu in ancestors([total, *rows]):
        raise ValueError(
            "The model uses the latent values outside of a likelihood. "
            "Use EllipticalSlice, which takes any model."
        )
    if by_rows and not rows:
        raise not_by_rows()
    return eta, total, rows if by_rows else [], of_loop


def not_by_rows() -> ValueError:
    """Return the error of what needs terms of single rows."""
    return ValueError(
        "EP and augmentation need one function, and observations in the order of its values, one "
        "for each. Use approximation='laplace', or EllipticalSlice."
    )


def _cut_exact(latents: Latents, e: Variable, by_rows: bool):
    model, (member,) = latents.model, latents.members
    shape = value_shapes(model)[member.value.name]
    f = model.named_vars.get(member.rv.name.removesuffix("_rotated_"), member.rv)
    if len(shape) not in (1, 2):
        raise ValueError(
            f"{f.name} has {len(shape)} axes, and one or two are needed: functions, and inputs. "
            "Use EllipticalSlice."
        )
    (eta,) = model.replace_rvs_by_values([f])
    (eta,) = graph_replace([eta], {member.value: latents.u[0]}, strict=False)
    eta = pt.specify_shape(eta, shape)
    at = pt.specify_shape(e[:, 0] if len(shape) == 1 else e.T, shape).astype(f.dtype)
    # What depends on f, and what doesn't.
    seen = [rv for rv in model.observed_RVs if f in ancestors([rv])]
    touched = [p for p in model.potentials if f in ancestors([p])]
    rest = [rv for rv in [*model.basic_RVs, *model.potentials] if rv not in [*seen, *touched]]
    rest.remove(member.rv)
    each = []
    for rv in seen:
        (there,) = graph_replace([rv], {f: at}, strict=False)
        each.append(pm.logp(there, model.rvs_to_values[rv], warn_rvs=False))
    potentials = graph_replace(touched, {f: at}, strict=False) if touched else []
    terms = model.replace_rvs_by_values([*each, *potentials])
    each, potentials = terms[: len(each)], terms[len(each) :]
    total = sum((x.sum() for x in terms), model.logp(vars=rest) if rest else np.float64(0.0))
    # Where the values themselves are used as well, they stand for nu, which is looked for.
    total, *each = graph_replace([total, *each], {member.value: latents.u[0]}, strict=False)
    if len(shape) != 1 or potentials or not each or any(x.type.ndim != 1 for x in each):
        each = []
    return eta if len(shape) == 1 else eta.T, total, [sum(each[1:], each[0])] if each else []


def laplace(predictor: Predictor, at: At) -> Approximation:
    """Return the normal approximation at the mode, by Newton's method from the prior mean."""
    return _newton(predictor, at)[0]


def _newton(predictor: Predictor, at: At) -> tuple[Approximation, np.ndarray, np.ndarray]:
    """Return the approximation, and gradient and curvature in eta at the mode."""
    M = at.B.shape[0]
    B = at.B.reshape(M, -1)
    nu = np.zeros(M)
    value, g, W = predictor.curvature(at.c, *at.known)
    for n in range(1, MOST_ITERATIONS + 1):  # noqa: B007  (the number is returned)
        L = _precision(at, g, W)
        step = _solve(L, B @ g.ravel() - nu)
        size = 1.0
        while True:
            new = nu + size * step
            found = predictor.curvature(at.eta(new), *at.known)
            if found[0] - new @ new / 2.0 >= value - nu @ nu / 2.0 - 1e-10 * abs(value):
                break
            size /= 2.0
            if not size > 1e-10:
                raise FloatingPointError("Newton's method found no better point.")
        nu, (value, g, W) = new, found
        if size * np.abs(step).max() < STOP:
            break
    L = _precision(at, g, W)
    evidence = float(value) - nu @ nu / 2.0 - np.log(np.diagonal(L)).sum()
    return Approximation(nu, L, evidence, n), g, W


def _precision(at: At, g, W) -> np.ndarray:
    """Return the Cholesky factor of the precision of whitened values."""
    if not all(np.isfinite(x).all() for x in (at.B, g, W)):
        raise FloatingPointError("The kernel or the likelihood is not finite.")
    if np.linalg.eigvalsh(W).min() < -1e-6 * max(1.0, np.abs(W).max()):
        raise ValueError(
            "The likelihood is not log-concave in the function, which this approximation needs. "
            "Use EllipticalSlice or NUTS."
        )
    M = at.B.shape[0]
    BW = np.einsum("mnk,nkj->mnj", at.B, W).reshape(M, -1)
    return cholesky(np.eye(M) + BW @ at.B.reshape(M, -1).T, lower=True)


def _solve(L, b):
    return solve_triangular(L.T, solve_triangular(L, b, lower=True), lower=False)


def expectation_propagation(predictor: Predictor, at: At) -> Approximation:
    """Return the normal approximation by expectation propagation, or Laplace's if that diverges."""
    start, *sites = _newton(predictor, at)
    try:
        return _propagated(predictor, at, start, *sites)
    except (FloatingPointError, np.linalg.LinAlgError):
        # Failing would take these parameters out of the posterior. Any approximation keeps them.
        return start


def _propagated(predictor: Predictor, at: At, start: Approximation, g, W) -> Approximation:
    """Propagate expectations, all sites at once.

    Moments are by Gauss-Hermite quadrature around the current marginals, which are those of the
    tilted distributions where it converges.
    """
    c, B = at.c[:, 0], at.B[:, :, 0]
    # From the sites of Laplace's approximation, whose marginals are where the mass is.
    tau = W[:, 0, 0]
    nu, nu_mean = g[:, 0] + tau * at.eta(start.mean)[:, 0], start.mean
    (terms,) = predictor.terms(at.c[None], *at.known)
    rest = float(predictor.curvature(at.c, *at.known)[0]) - terms[0].sum()
    for n in range(1, MOST_ITERATIONS + 1):
        L = cholesky(np.eye(len(B)) + (B * tau) @ B.T, lower=True)
        before, nu_mean = nu_mean, _solve(L, B @ (nu - tau * c))
        mean = c + nu_mean @ B
        var = (solve_triangular(L, B, lower=True) ** 2).sum(axis=0)
        var = np.maximum(var, SMALLEST_VARIANCE)  # zero far from all inducing points
        tau_c, nu_c = 1.0 / var - tau, mean / var - nu
        eta = mean + np.sqrt(var) * NODES[:, None]
        (terms,) = predictor.terms(eta[:, :, None], *at.known)
        # Cavity over the normal of the nodes, which is cavity times site.
        log_w = terms - (nu * eta - tau * eta**2 / 2.0)
        top = log_w.max(axis=0)
        w = WEIGHTS[:, None] * np.exp(log_w - top)
        Z = w.sum(axis=0)
        m = (w * eta).sum(axis=0) / Z
        v = (w * (eta - m) ** 2).sum(axis=0) / Z
        if not (np.isfinite(v).all() and v.min() > 1e-200):  # whose inverse may overflow
            raise FloatingPointError("Expectation propagation diverged.")
        done = n > 1 and np.abs(nu_mean - before).max() < STOP
        if done or n == MOST_ITERATIONS:
            break
        tau, nu = np.maximum(1.0 / v - tau_c, 0.0), m / v - nu_c
    # Each site is scaled such that it gives the tilted normalizer.
    log_site = top + np.log(Z / np.sqrt(2.0 * np.pi))
    evidence = rest + log_site.sum() + (nu * c - tau * c**2 / 2.0).sum()
    h = solve_triangular(L, B @ (nu - tau * c), lower=True)
    evidence += h @ h / 2.0 - np.log(np.diagonal(L)).sum()
    return Approximation(nu_mean, L, evidence, start.n_iterations + n)
