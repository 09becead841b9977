"""What is wrong with a log density at a point, in words."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from pytensor.graph.traversal import ancestors

from pymc_vsgp.checks import check_point, known_value, model_of
from pymc_vsgp.compile import evaluate, function
from pymc_vsgp.engine.blocks import stack_latents
from pymc_vsgp.model.data import check_data
from pymc_vsgp.model.observation import Observation, observations, warnings_at
from pymc_vsgp.model.variable import inducing_variables, is_independent, is_sparse
from pymc_vsgp.ops.cholesky import SafeCholesky

# A condition number that leaves fewer than six digits of the values at the inducing inputs.
ILL_CONDITIONED = 1e10
ROWS = 2048  # of the data that are looked at together
# Correlation of two inducing values above which one of them says nothing new.
NEARLY_EQUAL = 1.0 - 1e-6


@dataclass(frozen=True)
class PriorCheck:
    """What `check_model` found of one prior of inducing values.

    Attributes
    ----------
    name : str
        Name of the inducing values.
    condition : float
        Condition number of the prior covariance at the inducing inputs, before any jitter.
    jitter, added : float
        Jitter that was asked for and that was added, as fractions of the mean prior variance.
        The second is infinite if the covariance could not be factorized.
    sd : tuple of float
        Smallest and largest prior standard deviation at the inducing inputs.
    closest : tuple
        The two inducing inputs with the largest prior correlation, as row numbers, and that
        correlation. Empty for a single inducing input.
    advice : tuple of str
        What is wrong, and what to do.
    """

    name: str
    condition: float
    jitter: float
    added: float
    sd: tuple[float, float]
    closest: tuple
    advice: tuple[str, ...]

    @property
    def failed(self) -> bool:
        """Whether the covariance could not be factorized."""
        return not np.isfinite(self.added)

    def __str__(self):
        """Return a few lines."""
        lines = [
            f"{self.name}: prior covariance at the inducing inputs",
            f"  condition number   {self.condition:.2g}",
            f"  jitter             {self.added:.2g} of the variance ({self.jitter:.2g} asked)",
            f"  prior sd           {self.sd[0]:.3g} to {self.sd[1]:.3g}",
        ]
        if self.failed:
            lines[2] = f"  jitter             no factor found ({self.jitter:.2g} asked)"
        if self.closest:
            i, j, r = self.closest
            lines.append(f"  closest pair       rows {i} and {j}, correlation {r:.9g}")
        return "\n".join([*lines, *(f"  * {a}" for a in self.advice)])


@dataclass(frozen=True, repr=False)
class ModelCheck:
    """What `check_model` found; printing it shows everything.

    Attributes
    ----------
    logp : dict
        Log density of each variable of the model, at the point.
    priors : tuple of PriorCheck
        One for each set of inducing values.
    advice : tuple of str
        What is wrong with the model as a whole, and what to do.
    """

    logp: dict[str, float]
    priors: tuple[PriorCheck, ...]
    advice: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing was found to be wrong."""
        return not self.advice and not any(p.advice for p in self.priors)

    def __repr__(self):
        """Return a report."""
        lines = [f"log density {sum(self.logp.values()):.6g}"]
        lines += [f"  {name:18s} {value:.6g}" for name, value in self.logp.items()]
        lines += [f"  * {a}" for a in self.advice]
        lines += [str(p) for p in self.priors]
        lines.append("Nothing wrong was found." if self.ok else "* marks what to change.")
        return "\n".join(lines)


def check_model(point: dict[str, Any] | None = None, model: pm.Model | None = None) -> ModelCheck:
    """
    Say what is wrong with the log density of a model at a point.

    For each set of inducing values it reports how well the prior covariance at the inducing inputs
    is conditioned, and the jitter that its factorization took. Data that no likelihood takes, as
    after a ``pm.set_data``, are an error, as they are in :func:`fit_gaussian` and :func:`sample`.

    Parameters
    ----------
    point : dict, optional
        Values by name: of the variables of the model, or in the sampler's coordinates
        (``"variance_log__"``), also mixed. What it leaves out is taken from the initial point,
        which is also the default.
    model : Model, optional
        By default the model on the context stack.

    Returns
    -------
    check : ModelCheck
        Prints as a report.

    Examples
    --------
    .. code-block:: python

        vsgp.check_model(model=model)
        vsgp.check_model({"lengthscale": 1e6}, model=model)
    """
    model = model_of(model)
    check_data(model)
    at = _values(model, check_point(point))
    logp = _logp(model, at)
    priors = tuple(
        _check_prior(model, rv, at)
        for rv in inducing_variables(model)
        if not (is_independent(rv) or is_sparse(rv))  # these have no covariance matrix
    )
    advice = tuple(
        f"The log density of {name!r} is {value}{_remedy(model, name, at, priors)}"
        for name, value in logp.items()
        if not np.isfinite(value)
    )
    return ModelCheck(logp, priors, (*advice, *warnings_at(model, at)))


def _values(model: pm.Model, point: dict[str, Any]) -> dict[str, np.ndarray]:
    """Return the point in the sampler's coordinates, complete."""
    at = dict(model.initial_point())
    known = set(at) | {rv.name for rv in model.free_RVs}
    if unknown := sorted(set(point) - known):
        raise ValueError(
            f"point has a value for {unknown[0]!r}, which is no variable of the model. "
            f"Use some of {sorted(known)}."
        )
    shapes = model.eval_rv_shapes() if point else {}
    for name, value in point.items():
        if np.shape(value) != (shape := tuple(map(int, shapes[name]))):
            raise ValueError(
                f"point[{name!r}] has shape {np.shape(value)}, and the variable has shape {shape}. "
                "Pass values of that shape."
            )
    at.update({k: np.asarray(v) for k, v in point.items() if k in at})
    # In order: a transform may depend on variables that come before its own.
    for rv in model.free_RVs:
        value_var, transform = model.rvs_to_values[rv], model.rvs_to_transforms[rv]
        if rv.name not in point or value_var.name in point:
            continue
        given = np.asarray(point[rv.name], dtype=rv.dtype)
        if transform is None:
            at[value_var.name] = given
            continue
        inputs = model.replace_rvs_by_values(list(rv.owner.inputs))
        (at[value_var.name],) = _evaluate(
            model, [transform.forward(pt.as_tensor(given), *inputs)], at
        )
    return at


def _evaluate(model: pm.Model, graphs: list, at: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Evaluate graphs over the value variables of the model."""
    with np.errstate(all="ignore"):
        return evaluate(graphs, {v: at[v.name] for v in model.value_vars})


def _logp(model: pm.Model, at: dict[str, np.ndarray]) -> dict[str, float]:
    parts = [*model.basic_RVs, *model.potentials]
    terms = model.logp(vars=parts, sum=False)
    found = _evaluate(model, [pt.sum(t) for t in terms], at)
    return {part.name: float(value) for part, value in zip(parts, found, strict=True)}


def _check_prior(model: pm.Model, rv, at: dict[str, np.ndarray]) -> PriorCheck:
    _, _, chol = rv.owner.inputs[:3]
    node = chol.owner
    if node is None or not isinstance(node.op, SafeCholesky):
        raise TypeError(
            f"The factor of the prior covariance of {rv.name!r} is not one of SafeCholesky. "
            "Make inducing values with gp.prior."
        )
    K, jitter = node.inputs
    graphs = model.replace_rvs_by_values([K, jitter, node.outputs[1]])
    K, *levels = _evaluate(model, graphs, at)
    asked, added = (float(level) for level in levels)
    advice = []
    variances = np.diag(K)
    with np.errstate(all="ignore"):
        sd = np.sqrt(variances)
    finite = bool(np.all(np.isfinite(K)))
    closest: tuple = ()
    condition = np.inf
    if finite:
        condition = _condition(K)
        if np.all(sd > 0.0) and len(K) > 1:
            correlation = np.abs(K / np.outer(sd, sd))
            np.fill_diagonal(correlation, 0.0)
            i, j = sorted(int(a) for a in np.unravel_index(np.argmax(correlation), K.shape))
            closest = (i, j, float(correlation[i, j]))
    if not finite:
        names = ", ".join(_parameters(model, rv)) or "its parameters"
        advice.append(
            "The prior covariance holds numbers that are not finite. "
            f"Give {names} a prior with lighter tails (docs/priors.md), and look at the values at "
            "this point."
        )
    elif not np.all(sd > 0.0):
        advice.append(
            "The prior variance is not positive at some inducing input. "
            "Use a kernel with a positive variance, and a prior that keeps it away from zero."
        )
    elif np.isinf(added):
        advice.append(
            "The prior covariance has no Cholesky factor, even with the largest jitter. "
            "Check that the kernel is positive definite."
        )
    if closest and (added > asked or condition > ILL_CONDITIONED):
        i, j, r = closest
        if float(np.median(np.abs(K / np.outer(sd, sd)))) > 0.999:
            advice.append(
                "All inducing values are nearly equal: the lengthscales are far beyond the range "
                "of Xu, and the covariance is close to singular. "
                "Give the lengthscales a prior on the scale of the data (docs/priors.md)."
            )
        elif r > NEARLY_EQUAL:
            advice.append(
                f"Rows {i} and {j} of Xu nearly coincide, and make the covariance nearly singular. "
                "Drop one of them, or choose Xu with vsgp.inducing.kmeans."
            )
        elif added > asked:
            advice.append(
                "The inducing inputs are dense for this kernel, and the covariance is close to "
                "singular. Use fewer inducing inputs, or spread them out."
            )
    if asked < added < np.inf:
        advice.append(
            f"The jitter had to rise from {asked:.2g} to {added:.2g} of the prior variance. "
            "Remove the cause, or pass a larger jitter to gp.prior."
        )
    scale = (float(np.min(sd)), float(np.max(sd)))
    return PriorCheck(rv.name, condition, asked, added, scale, closest, tuple(advice))


def _condition(K: np.ndarray) -> float:
    # Below rounding, an eigenvalue may come out as anything.
    values = np.linalg.eigvalsh(np.tril(K) + np.tril(K, -1).T)
    smallest = max(values[0], values[-1] * np.finfo(float).eps)
    return float(values[-1] / smallest) if values[-1] > 0.0 else np.inf


def _parameters(model: pm.Model, rv) -> list[str]:
    """Names of the free variables that the prior covariance depends on."""
    upstream = set(ancestors([rv.owner.inputs[2]]))
    return [other.name for other in model.free_RVs if other is not rv and other in upstream]


def _remedy(model: pm.Model, name: str, at: dict[str, np.ndarray], priors) -> str:
    if any(p.failed for p in priors):
        return ". The covariance below has no factor: see the advice there."
    known = observations(model)
    if name in known and (row := _first_impossible(model, known[name], at)) is not None:
        i, y = row
        return (
            f", first in row {i}, where it is {y}. Correct or drop that row, or limits of the "
            "likelihood that leave it out; else narrow the priors of its parameters "
            "(docs/priors.md)."
        )
    return (
        f". Look at the values of what {name!r} depends on, and narrow their priors "
        "(docs/priors.md)."
    )


def _first_impossible(
    model: pm.Model, o: Observation, at: dict[str, np.ndarray]
) -> tuple[int, Any] | None:
    """Return the first row without a density, with its observation, where only some are."""
    y = known_value(o.y)
    if y is None:
        return None
    start, stop = pt.lscalar(), pt.lscalar()
    lik = o.likelihood.replace(**{n: o.likelihood.params[n][start:stop] for n in o.row_params})
    mu, gamma = stack_latents([p.moments(o.X[start:stop]) for p in o.parts])
    each = lik.expected_logp(mu, gamma, o.y[start:stop])
    values = model.value_vars
    fn = function([*values, start, stop], model.replace_rvs_by_values([each]), "FAST_COMPILE")
    bad = np.zeros(len(y), dtype=bool)
    for i in range(0, len(y), ROWS):
        with np.errstate(all="ignore"):
            (found,) = fn(*(at[v.name] for v in values), i, min(i + ROWS, len(y)))
        bad[i : i + ROWS] = ~np.isfinite(found)
    row = int(bad.argmax())
    return None if bad.all() or not bad.any() else (row, y[row])
