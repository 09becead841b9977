r"""The bound of the Gaussian stage, as a function of theta and of the sites.

For each process with inducing points q(v) is the Gaussian that its sites make of the prior,

.. math::

   P = I + R^\top \Lambda R, \quad q(v) = N(P^{-1} R^\top (\lambda - \Lambda m(Z)),\; P^{-1}),
   \quad \Lambda = B B^\top,

so that q follows theta while the sites are held. The bound is

.. math:: \sum_n E_{q} \log p(y_n | f_n) - KL(q(v) \| N(0, I)) + \log p(\theta).

One pass over the data gives its value, its gradient in theta, and what a natural-gradient step of
the sites needs.

A few Fourier coefficients are treated alike, but that their sites are of them and not of v. Many
have sites with a diagonal :math:`\Lambda`. Steps of all of them at once would overshoot, so their q
has parameters that move with theta besides: an offset e of the mean and logarithms t of factors of
the deviations, both in units of what the sites make of it,

.. math:: q(v) = N(P^{-1} R \lambda + P^{-1/2} e,\; P^{-1} e^{2t}).

Of values given neighbors see `neighbors`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import pytensor
import pytensor.tensor as pt
import scipy.linalg

from pymc.distributions.transforms import ZeroSumTransform
from pymc.model.core import Model
from pytensor.compile.mode import get_mode
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors, graph_inputs
from pytensor.link.jax.linker import JAXLinker
from pytensor.tensor.sharedvar import TensorSharedVariable
from pytensor.tensor.variable import TensorVariable

from pymc_vsgp.compile import evaluate, function, simplify
from pymc_vsgp.engine.blocks import stream_gaussian
from pymc_vsgp.engine.pointwise import ObservationRV
from pymc_vsgp.engine.sharded import Placed, gathered, on_devices, placed
from pymc_vsgp.engine.streaming import block_sums
from pymc_vsgp.fit.approximation import Approximation, Density, approximation
from pymc_vsgp.fit.compiled import of_stage
from pymc_vsgp.inducing.coordinates import (
    Sites,
)
from pymc_vsgp.model.observation import parameters, processes, require_inducing
from pymc_vsgp.model.variable import (
    inducing_variables,
    whitened,
)
from pymc_vsgp.ops.cholesky import guarded


def unconstrained(model: Model, rvs) -> list[TensorVariable]:
    """Return random variables as a sampler sees them: graphs of the variables themselves."""
    transforms = [model.rvs_to_transforms[rv] for rv in rvs]
    return [
        rv if t is None else t.forward(rv, *rv.owner.inputs)
        for rv, t in zip(rvs, transforms, strict=True)
    ]


def of_prior(model: Model, rvs) -> list[TensorVariable]:
    """Return unconstrained variables to draw from the prior, given what is observed above them."""
    graphs = unconstrained(model, rvs)
    above = set(ancestors(graphs))
    observed = {rv: model.rvs_to_values[rv] for rv in model.observed_RVs if rv in above}
    return graph_replace(graphs, observed, strict=False) if observed else graphs


def split(flat: Any, shapes: Iterable[tuple[int, ...]]) -> list[Any]:
    """Return arrays of these shapes from what they were raveled into, on the last axis."""
    out, at = [], 0
    for shape in shapes:
        size = int(np.prod(shape))
        out.append(flat[..., at : at + size].reshape((*flat.shape[:-1], *shape)))
        at += size
    return out


@contextmanager
def whitened_coordinates(model: Model, of: Iterable[Variable] | None = None) -> Iterator[None]:
    """Context in which inducing values of a model, by default all, have whitened coordinates."""
    transforms = model.rvs_to_transforms
    kept = {u: transforms[u] for u in (inducing_variables(model) if of is None else of)}
    transforms.update({u: whitened(u) for u in kept})
    try:
        yield
    finally:
        transforms.update(kept)


class Evaluation(NamedTuple):
    """The bound at a point, and what improves it."""

    value: float
    gradient: np.ndarray
    """In the unconstrained theta, and after it in what else moves."""
    linear: list[np.ndarray]
    """Of each process: the sites that a full natural-gradient step leads to, ..."""
    precision: list[np.ndarray]
    """... in whitened coordinates at this theta; for Fourier coefficients in their own."""
    mean: list[np.ndarray]
    """Of q(v)."""
    factor: list[np.ndarray]
    """L, the Cholesky factor of the precision of q(v), or its diagonal."""
    R: list[np.ndarray]
    prior_mean: list[np.ndarray]
    whole: Sequence[Any] = ()
    """Of processes whose q is found outside of the graph: all that is known of it."""
    theta: Any = None
    """Where it is."""

    def pull(self, i: int, p: Approximation) -> np.ndarray:
        """Return the gradient in u of the expected log density of the data, at the mean of q."""
        m, R = self.mean[i], self.R[i]
        if p.folded:
            return self.linear[i]
        if p.sparse or p.independent:
            m = self.prior_mean[i] + R * m
        if p.sparse or p.diagonal:
            return self.linear[i] - self.precision[i] * m
        pull = self.linear[i] - (self.precision[i] @ m[:, :, None])[:, :, 0]
        if p.independent:
            return pull
        return scipy.linalg.solve_triangular(R, pull.T, lower=True, trans=1).T


def slope_in_v(R: np.ndarray, pull: np.ndarray) -> np.ndarray:
    """Return the gradient in v of one in u."""
    return R * pull if R.ndim == 1 else pull @ R


class Variables:
    """The variables of a model: its processes, and all others as one vector theta."""

    moving: Sequence[TensorSharedVariable] = ()
    """Inducing inputs that are fitted, too."""
    on_jax = False
    """Whether a step of q can be made where JAX evaluates it."""
    _placed: Mapping[SharedVariable, Placed] = {}

    def __init__(self, model: Model, whole: bool = False):
        self.model = model
        us = require_inducing(model)
        discrete = [v.name for v in model.discrete_value_vars]
        if discrete:
            raise ValueError(
                f"The model has the discrete variables {discrete}, and a Gaussian stage needs "
                "continuous ones. Sum them out, for example with pm.Mixture, or skip the stage."
            )
        self.others = [rv for rv in model.free_RVs if rv not in us]
        with whitened_coordinates(model):
            start = model.initial_point(random_seed=0)  # of variables with initval="prior"
        if lost := [u.name for u in us if model.rvs_to_values[u].name not in start]:
            raise ValueError(
                f"The inducing values {lost[0]!r} have lost their transform, which the Gaussian "
                f"stage needs. Leave {lost[0]!r} out of what remove_value_transforms gets."
            )
        self.values = [model.rvs_to_values[rv] for rv in self.others]
        self.names = [v.name for v in self.values]
        self.shapes = [np.shape(start[name]) for name in self.names]
        self.start = self.ravel(start)
        self._in_units: Any = None
        known = processes(model)
        self.processes = [approximation(model, u, known.get(u.name), start, whole) for u in us]
        names = [rv.name for rv in self.others]
        where = self.unravel(np.arange(self.start.size))
        for p in self.processes:
            of = [self.values[names.index(rv.name)] for rv in parameters(model, p.u)]
            if of:
                p.at = np.concatenate([where[v.name].ravel() for v in of]).astype(int)
                p.parameters = pt.concatenate([v.ravel() for v in of])

    def ravel(self, point) -> np.ndarray:
        """Return theta as a vector."""
        parts = [np.ravel(point[name]) for name in self.names]
        return np.concatenate(parts).astype("float64") if parts else np.empty(0)

    def unravel(self, theta) -> dict[str, np.ndarray]:
        """Return theta by the names of the value variables."""
        return dict(zip(self.names, split(np.asarray(theta), self.shapes), strict=True))

    def in_units(self, theta) -> dict[str, np.ndarray]:
        """Return theta by the names of the variables, in the user's units."""
        if self._in_units is None:
            graphs = self.model.replace_rvs_by_values(self.others)
            self._in_units = function(self.values, graphs)
        values = map(np.asarray, self._in_units(*self.unravel(theta).values()))
        return dict(zip([rv.name for rv in self.others], values, strict=True))

    def has_units(self) -> np.ndarray:
        """Return whether each of theta has units of its own: it is no logarithm, nor the like."""
        transforms = [self.model.rvs_to_transforms[rv] for rv in self.others]
        own = [t is None or isinstance(t, ZeroSumTransform) for t in transforms]
        return np.repeat(own, [int(np.prod(shape)) for shape in self.shapes]).astype(bool)

    def no_sites(self) -> list[Sites]:
        """Return sites that make q the prior."""
        out = []
        for p in self.processes:
            shape = (p.n_functions, p.n_inducing)
            alone = p.diagonal or p.sparse
            root = shape if alone else (*shape, p.n_inducing)
            out.append(Sites(np.zeros(shape), np.zeros(root)))
        return out

    def no_offsets(self) -> list[np.ndarray]:
        """Return offsets that leave q as the sites make it."""
        shapes = [(p.n_functions, p.n_inducing) for p in self.processes for _ in p.offset]
        return [np.zeros(shape) for shape in shapes]

    def check_enough_data(self, i: int, n_data: int) -> None:
        """Raise where a process has more inducing points than observations."""
        p = self.processes[i]
        if p.Xu is not None and p.n_inducing > n_data:
            raise ValueError(
                f"{p.u.name} has {p.n_inducing} inducing points, but there are only {n_data} "
                "observations. Use at most as many points: Xu = X is already exact."
            )


class Bound(Variables):
    """The bound of a model, compiled.

    Parameters
    ----------
    model : Model
        With one or more variationally sparse processes.
    move_inducing : bool
        Whether the gradient has the inducing inputs, too.
    n_rows : int, optional
        Rows of a minibatch. By default all data are used.
    mode : str or Mode, optional
        How to compile it.
    mesh : jax.sharding.Mesh, optional
        Devices that the rows of the data live on.
    held : bool
        Whether q(v) of inducing points is given by its mean and the factor of its precision, and
        not by sites. It stays while theta moves then, and the gradient costs a third.
    """

    def __init__(
        self, model: Model, move_inducing=False, n_rows=None, mode=None, mesh=None, held=False
    ):
        super().__init__(model, n_rows is None and mesh is None and not move_inducing)
        self.mesh = mesh
        for p in self.processes:
            if held and not p.independent:
                p.hold()
            elif p.parameters is not None and n_rows is None and not p.diagonal:
                shape = (p.n_functions, p.n_inducing, len(p.at))
                p.slope = pt.tensor(dtype="float64", shape=shape)
        with whitened_coordinates(model):
            self._build(move_inducing, n_rows, mode)

    def _build(self, move_inducing, n_rows, mode):
        model = self.model
        if move_inducing:
            if not any(p.Xu is not None for p in self.processes):
                if any(isinstance(of.points, Constant) for of in processes(model).values()):
                    raise ValueError(
                        "The inducing points are constants, as in a frozen model, so they can't "
                        "move. Fit the model before you freeze it, or pass move_inducing=False."
                    )
                raise ValueError(
                    "No process has inducing points, so there is nothing to move. "
                    "Pass Xu to prior, or move_inducing=False."
                )
        # Processes may share their inducing inputs.
        points = dict.fromkeys(p.Xu for p in self.processes if p.Xu is not None)
        self.moving = moving = list(points) if move_inducing else []
        offsets = [x for p in self.processes for x in p.offset]

        terms = [*self.others, *model.observed_RVs, *model.potentials]
        logp = simplify(model.logp(vars=terms))
        of_u = [model.replace_rvs_by_values(p.u.owner.inputs[1:3]) for p in self.processes]
        q = [p.q(*prior) for p, prior in zip(self.processes, of_u, strict=True)]
        bound, loops = self._integrate(logp, q, n_rows)
        outputs = []
        for p, of, found in zip(self.processes, q, loops, strict=True):
            bound = guarded(bound - self._divergence(p, of), of.R)
            slopes, grams = zip(*((e.slopes[j], e.grams[j]) for e, j in found), strict=True)
            linear, precision = sum(slopes), -sum(grams)
            if p.sparse:
                precision = pt.maximum(precision, 0.0)
            # The gradient in m, less what the quadratic part explains.
            m = of.prior_mean + of.R * of.mean if p.independent or p.sparse else of.mean
            if p.folded:
                pass  # the precision is folded, too
            elif p.diagonal or p.sparse:
                linear += precision * m
            else:
                linear += pt.matmul(precision, m[:, :, None])[:, :, 0]
            outputs += [linear, precision, of.mean, of.factor, of.R, of.prior_mean]

        # With its size, which JAX has to know.
        size = sum(int(np.prod(shape)) for shape in self.shapes)
        theta = pt.dvector("theta", shape=(size,))
        moved = [pt.dmatrix() for _ in moving]
        others = [*split(theta, self.shapes), *moved]
        given = dict(zip([*self.values, *moving], others, strict=True))
        bound, *rest = simplify(graph_replace([bound, *outputs], given, strict=False))
        moved += offsets
        gradient = pytensor.grad(bound, [theta, *moved], disconnected_inputs="ignore")
        gradient = pt.concatenate([g.ravel() for g in gradient])
        inputs = [theta, *moved, *(x for p in self.processes for x in p.inputs)]
        if self._rows is not None:
            inputs.append(self._rows)
        self._n_moved = len(moved)
        outputs = [bound, gradient, *rest]
        if self.mesh is not None:
            outputs, mode = on_devices(outputs, self.mesh), "JAX"
        on_jax = n_rows is not None and isinstance(get_mode(mode).linker, JAXLinker)
        if on_jax:
            data = [v for v in graph_inputs(outputs) if isinstance(v, SharedVariable)]
            self._placed = {v: placed(v) for v in data}
            outputs = graph_replace(outputs, self._placed, strict=False)
        # Minibatches go on as they began, and JAX takes values given neighbors one after another.
        may_switch = n_rows is None and not any(p.sparse for p in self.processes)
        self._fn = (
            of_stage(model, inputs, outputs, mode)
            if may_switch
            else function(inputs, outputs, mode)
        )
        if on_jax:
            self.on_jax = all(p.held for p in self.processes)
            # To look at arrays of JAX it would bring them to the host.
            self._fn.trust_input = self.on_jax

    @property
    def n_rows(self) -> int:
        """Rows of the data of all loops."""
        return sum(self.sizes())

    @property
    def work(self) -> int:
        """Operations of an evaluation, about."""
        return self.n_rows * sum(p.n_functions * p.n_inducing**2 for p in self.processes)

    def prior_roots(self, theta: np.ndarray) -> list[np.ndarray]:
        """Return a root of the prior covariance of each process."""
        moved = [*(x.get_value() for x in self.moving), *self.no_offsets()]
        return self(theta, self.no_sites(), moved).R

    def bring_data(self) -> None:
        """Bring the data that the model has now to the device of JAX, where they stay."""
        for shared, here in self._placed.items():
            here.bring(shared.get_value(borrow=True))

    def _divergence(self, p: Approximation, q: Density) -> TensorVariable:
        return q.divergence(p)

    def _integrate(self, logp, q, n_rows):
        """Replace each loop over the data by its expectation under q."""
        self._rows = pt.lvector("rows") if n_rows else None
        loops: list[list] = [[] for _ in self.processes]
        swaps: dict[Any, Any] = {}
        nodes = block_sums(logp)
        self._n_rows = [node.inputs[0].shape[0] for node in nodes]
        owners_of = [
            [self._process_of(p.conditional.process) for p in n.op.recipe.parts] for n in nodes
        ]
        for node, owners in zip(nodes, owners_of, strict=True):
            means, roots = zip(*(q[i].in_loop(self.processes[i]) for i in owners), strict=True)
            whole = [q[i].covariance is not None for i in owners]
            new = stream_gaussian(node, means, roots, self._rows, whole)
            for j, i in enumerate(owners):
                loops[i].append((new, j))
            swaps |= {node.outputs[0]: new.value, node.outputs[node.op.n_sums]: new.terms}
        bound = graph_replace(logp, swaps, strict=False) if swaps else logp
        values = {p.value for p in self.processes}
        if not all(loops) or values & set(ancestors([bound])):
            raise ValueError(self._no_bound())
        self._check_numbers(owners_of)
        return bound, loops

    def _no_bound(self) -> str:
        """Say which part of the model has no ELBO."""
        ops = {rv.name: rv.owner.op for rv in self.model.observed_RVs}
        whole = [
            name
            for name, op in ops.items()
            if isinstance(op, ObservationRV) and op.block_size is False
        ]
        if whole:
            return (
                f"The likelihood {whole[0]!r} has block_size=False, and the Gaussian stage works "
                "on blocks of the data. Leave block_size out, or use pm.sample()."
            )
        return (
            "The model uses inducing values outside of a likelihood of their process, so the "
            "Gaussian stage has no ELBO for them. Use fit_gaussian(method='advi'), "
            "sample(fit_kwargs={'method': 'advi'}) or pm.sample()."
        )

    def _check_numbers(self, owners_of) -> None:
        """Raise where there are more inducing points than observations."""
        sizes = self.sizes()
        for i in range(len(self.processes)):
            n_data = sum(n for n, owners in zip(sizes, owners_of, strict=True) if i in owners)
            self.check_enough_data(i, n_data)

    def _process_of(self, name: str) -> int:
        names = [p.u.name for p in self.processes]
        if name not in names:
            raise ValueError(
                f"The inducing values {name!r} are fixed, so the Gaussian stage has no ELBO for "
                "them. Use fit_gaussian(method='advi')."
            )
        return names.index(name)

    def __call__(self, theta, sites: list[Sites], moved=(), rows=None) -> Evaluation:
        """Evaluate at theta, and at what else moves: inducing inputs, then offsets."""
        ev = self.where_it_is(theta, sites, moved, rows)
        of_q = ([np.asarray(x) for x in some] for some in ev[2:8])
        return Evaluation(ev.value, ev.gradient, *of_q)._replace(theta=ev.theta)

    def where_it_is(self, theta, sites: list[Sites], moved=(), rows=None) -> Evaluation:
        """Return the same; what JAX found of q stays on its device."""
        arguments = [np.asarray(theta, dtype="float64")]
        if self._n_moved:
            arguments += [np.asarray(x) for x in moved]
        for p, s in zip(self.processes, sites, strict=True):
            arguments += p.arguments(s, arguments[0])
        if self._rows is not None:
            arguments.append(rows)
        with np.errstate(invalid="ignore"):  # of a slope that is infinite, which steps look for
            value, gradient, *rest = self._fn(*arguments)
        found = Evaluation(float(value), np.asarray(gradient), *(rest[i::6] for i in range(6)))
        return found._replace(theta=arguments[0])

    def sizes(self) -> list[int]:
        """Return the number of rows of the data of each loop, in all processes."""
        return gathered(self.mesh, [int(n) for n in evaluate(self._n_rows)]).sum(axis=0).tolist()

    def n_data(self) -> int:
        """Return the number of rows of the data, where all likelihoods have the same."""
        sizes = set(self.sizes())
        if len(sizes) != 1:
            raise ValueError(
                f"The likelihoods have {sorted(sizes)} rows, and a minibatch takes the same of "
                "each. Use method='natural'."
            )
        return sizes.pop()
