"""Several outputs, each a mixture of the same latent functions."""

from collections.abc import Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from pytensor.graph.basic import Constant

from pymc_vsgp.labels import coord_labels, own_dims
from pymc_vsgp.likelihoods.base import (
    Likelihood,
    Rule,
    as_float,
    check_output_order,
    known_shape,
)
from pymc_vsgp.likelihoods.custom import Custom
from pymc_vsgp.likelihoods.gaussian import Gaussian
from pymc_vsgp.likelihoods.joint import N_NODES, filtered, integrated
from pymc_vsgp.likelihoods.log_normal import LogNormal
from pymc_vsgp.likelihoods.quadrature import folded_log_expectation, peaked_log_expectation

NORMAL = (Gaussian, LogNormal)  # families whose joint density of outputs has a closed form
SOMEWHERE = {"float64": 0.5, "int64": 1}  # values in the support of families


class Mixed(Likelihood):
    r"""Outputs ``f = W g`` of Q latent functions g, observed with one family.

    .. math:: E \log p(y | g) = \sum_p E \log p(y_p | f_p), \quad
              \mu_f = W \mu_g, \quad \gamma_f = (W \circ W) \gamma_g

    where the sum leaves out missing entries (nan). Parameters of the family are numbers, vectors
    with one entry for each output, or matrices with a row for each observation.

    Parameters
    ----------
    family : Likelihood
        The distribution of one output given its function.
    W : tensor_like, shape (P, Q) or (Q,)
        Mixing matrix. A vector makes one output without a dimension of its own.
    n_latent : int, optional
        Number of functions, Q, where the type of W does not say it.
    """

    def __init__(self, family, W, n_latent=None):
        if family.n_latent != 1:
            raise ValueError(
                f"{type(family).__name__} needs {family.n_latent} latent functions, but each "
                "output has one. Use a family of one function."
            )
        W = as_float(W, "W")
        if W.type.ndim not in (1, 2):
            raise ValueError(
                f"W has {W.type.ndim} dimensions, but it must be a matrix, or a vector for one "
                "output. Pass one row for each output and one column for each process."
            )
        self.family = family
        self.ndim_y, self.n_latent = W.type.ndim - 1, W.type.shape[-1] or n_latent
        self.rules = {"W": Rule(np.isfinite, "finite"), **family.rules}
        super().__init__(W=W, **family.params)
        # Everything but parameters with a row for each observation.
        vectors = [n for n, p in self._params.items() if p.type.ndim == 1 and self.ndim_y]
        self.shared_params = ("W", *family.shared_params, *vectors)

    @property
    def title(self):
        return self.family.title

    def said(self, name):
        return super().said(name) if name == "W" else self.family.said(name)

    def anew(self, name):
        return self.family.anew(name)

    @property
    def n_outputs(self) -> int | None:
        """Number of outputs, where there is a dimension of them and it is known."""
        return known_shape(self.W)[0] if self.ndim_y else None

    @property
    def of_output(self):
        return self._now

    @property
    def of_draws(self):
        return Mixed(self._now.of_draws, self.W, self.n_latent)

    @property
    def _now(self):
        """The family with the current parameters."""
        return self.family.replace(**{n: p for n, p in self._params.items() if n != "W"})

    def _moments(self, mu, gamma):
        """Moments of the outputs from those of the functions."""
        return self._mix(mu, self.W), self._mix(gamma, self.W**2)

    def _mix(self, f, W):
        # A single function has no dimension of functions.
        return pt.matmul(f[..., None] if self.n_latent == 1 else f, W.T)

    def _over_seen(self, fn, y):
        y = pt.as_tensor(y)
        if not self.ndim_y:
            return fn(y)
        seen, missing = self._seen(y)
        each = fn(seen)
        return _where_seen(each, missing).sum(axis=-1)

    def _seen(self, y):
        """Return observations with a value where there is none, and where that is, if it may be."""
        if not y.dtype.startswith("float"):
            return y, None
        missing = pt.isnan(y)
        return pt.switch(missing, SOMEWHERE[self._dtype], y).astype(self._dtype), missing

    @cached_property
    def _dtype(self):
        """Dtype of what is observed, where nothing is missing."""
        return "float64" if self.family.dist(pt.dmatrix()).dtype.startswith("float") else "int64"

    def log_prob(self, f, y):
        """Log density of the outputs that are there."""
        outputs = self._mix(f, self.W)
        return self._over_seen(lambda at: self._now.log_prob(outputs, at), y)

    def dist(self, f, **kwargs):
        return self._now.dist(self._mix(f, self.W), **kwargs)

    def conditional_mean(self, f):
        return self._now.conditional_mean(self._mix(f, self.W))

    @property
    def has_mean(self):
        return self.family.has_mean

    def mean(self, mu, gamma):
        return self._now.mean(*self._moments(mu, gamma))

    def expected_logp(self, mu, gamma, y):
        """Sum over the outputs of ``E[log p(y | f)]``."""
        mu, gamma = self._moments(mu, gamma)
        return self._over_seen(lambda at: self._now.expected_logp(mu, gamma, at), y)

    def _expected_over_means(self, mu, gamma, spread, y):
        mu, gamma = self._moments(mu, gamma)
        spread = self._mix(spread, self.W**2)
        return self._over_seen(lambda at: self._now._expected_over_means(mu, gamma, spread, at), y)

    def log_predictive(self, mu, gamma, y):
        """``log E[p(y | f)]`` of the outputs that are there, jointly: they share functions."""
        mu, gamma, y = (pt.as_tensor(v) for v in (mu, gamma, y))
        n_outputs = 1 if not self.ndim_y else y.type.shape[-1] or self.n_outputs
        if n_outputs is None:
            raise ValueError("The number of outputs is not known. Pass a W of known shape.")
        if n_outputs == 1:  # whose function is all that counts
            mu, gamma = self._moments(mu, gamma)
            return self._over_seen(lambda at: self._now.log_predictive(mu, gamma, at), y)
        normal = isinstance(self.family, NORMAL)
        # Quadrature takes one peak, and the square of a function has two.
        two_peaks = getattr(getattr(self.family, "link", None), "name", None) == "square"
        if self.n_latent == 1 and not normal:
            if two_peaks:
                return folded_log_expectation(lambda f: self.log_prob(f, y), mu, gamma, 1)
            return peaked_log_expectation(self._each_density(y), mu, gamma, self.family.sizes)
        if self.n_latent == 1:
            mu, gamma = mu[:, None], gamma[:, None]
        W = pt.specify_shape(self.W, (n_outputs, self.n_latent))
        density, precision = self._output_density(y), self._precision(y) if normal else None
        total, given = filtered(density, W, mu, gamma, n_outputs, precision)
        if normal or two_peaks or self.n_latent not in N_NODES:
            return total
        mu, gamma = (pt.specify_shape(v, (None, self.n_latent)) for v in (mu, gamma))
        found = integrated(partial(self._log_prob_of, W, y), mu, gamma, given)
        _, missing = self._seen(y)
        if missing is None or isinstance(self.family, Custom):
            return found
        # The density of one output is that of the family.
        return pt.switch((~missing).sum(axis=-1) <= 1, total, found)

    def _log_prob_of(self, W, y, functions):
        """Log density of the outputs, of a list of the functions."""
        if isinstance(self.family, Custom):  # whose graph is large, and takes long to compile
            return self.log_prob(pt.stack(functions, axis=-1), y)
        seen, missing = self._seen(y)
        total = np.float64(0.0)
        for p in range(int(W.type.shape[0])):  # sums over a short axis take numpy long
            f = sum(W[p, k] * g for k, g in enumerate(functions))
            at = slice(p, p + 1)
            each = self._of_outputs(at).log_prob(f[..., None], seen[:, at])[..., 0]
            total += _where_seen(each, missing, p)
        return total

    def _each_density(self, y):
        """Return the log density of each output as a function of what the last axis has for it."""
        seen, missing = self._seen(y)

        def fn(g):
            each = self._now.log_prob(g * self.W[:, 0], seen)
            return _where_seen(each, missing)

        return fn

    def _precision(self, y):
        """Return the precision of normal noise as a function of an output's number."""
        _, missing = self._seen(y)

        def fn(p):
            sigma = self._of_outputs(slice(p, p + 1)).sigma
            found = (pt.zeros_like(y[:, p : p + 1], dtype="float64") + 1.0 / sigma**2)[:, 0]
            return _where_seen(found, missing, p)

        return fn

    def _output_density(self, y):
        """Return log predictive densities as a function of an output's number and of moments."""
        seen, missing = self._seen(y)
        # A callable may hold arrays of all outputs, and takes no part of them.
        whole = isinstance(self.family, Custom) and self.family.holds_arrays

        def fn(p, *moments):
            at = slice(None) if whole else slice(p, p + 1)
            wide = [v[..., None] + pt.zeros_like(seen[:, at], dtype="float64") for v in moments]
            family = self._of_outputs(at)
            is_call = isinstance(family, Custom)
            log_predictive = family.by_one_rule if is_call else family.log_predictive
            each = log_predictive(*wide, seen[:, at])
            return _where_seen(each[..., p if whole else 0], missing, p)

        return fn

    def _of_outputs(self, some: slice):
        """Return the family of some of the outputs, still on the last axis."""
        own = {n: v for n, v in self._params.items() if n != "W"}
        for name, v in own.items():
            if v.type.ndim and name not in self.family.shared_params:
                own[name] = v if v.type.broadcastable[-1] else v[..., some]
        return self.family.replace(**own)

    def check_observed(self, y):
        if not self.ndim_y:
            self._now.check_observed(y)
            return
        n_outputs = self.n_outputs
        if n_outputs is not None and y.shape[1] != n_outputs:
            raise ValueError(
                f"y has {y.shape[1]} columns, but W has {n_outputs} rows. "
                "Pass one column of y for each row of W, with nan where it was not observed."
            )
        self.check_widths(y.shape[1])
        y = np.asarray(y)
        if y.dtype.kind == "f":
            missing = np.isnan(y)
            seen = [c[~m] for c, m in zip(y.T, missing.T, strict=True)]
            some = np.array([s[0] if len(s) else SOMEWHERE["float64"] for s in seen])
            # A count of 0 goes with any number of trials, which may differ by row.
            y = np.where(missing, 0.0 if self._dtype == "int64" else some, y)
        self._now.check_observed(y)

    def check_values(self, y):
        self._now.check_values(y)

    def check_data(self, y):
        super().check_data(y)
        if self.ndim_y and (empty := np.isnan(y).all(axis=0)).any():
            column = int(empty.argmax())
            raise ValueError(
                f"Column {column} of y has no observation. Drop it, and that row of W."
            )

    def check_widths(self, n_outputs):
        """Raise ValueError if the last axis of a parameter is not that of the outputs."""
        for name, param in self._params.items():
            if name == "W" or name in self.family.shared_params or param.type.ndim == 0:
                continue
            shape = known_shape(param)
            if shape[-1] in (None, n_outputs) or param.type.broadcastable[-1]:
                continue
            todo = "Pass one number, one for each output, or a matrix with a row for each row of X."
            if len(shape) == 1 and not isinstance(self.family, Custom):
                todo = (
                    "A vector has one number for each output: "
                    f"write {name}={name}[:, None] for one for each row of X."
                )
            if shape[-1] == 1:  # which may change, so PyTensor does not repeat it
                todo = "Pass one number, or one for each output."
                if len(shape) > 1:
                    todo = f"Keep a vector e there, and write {name}=e[:, None]."
            raise ValueError(
                f"{self.said(name)} has shape {shape}, but there are {n_outputs} outputs. {todo}"
            )

    def __repr__(self):
        """Show the family and the shape of W."""
        return f"Mixed({self.family!r}, W={self.W.type.shape})"


def _where_seen(x, missing, p: int | None = None):
    """Return x, and zero where nothing was seen, of output number p alone if one is asked for."""
    if missing is None:
        return x
    return pt.switch(missing if p is None else missing[:, p], np.float64(0.0), x)


def by_dims(
    family: Likelihood,
    rows: str | None,
    outputs: str | None,
    model: pm.Model,
    new: str | None = None,
    labeled: Sequence[tuple[str, Any]] = (),
) -> Likelihood:
    """Return a family with the rows of labeled parameters first, and their outputs last.

    Rows at new inputs may have another dimension, `new`. Outputs have to be in the order of the
    coords, and of what else is `labeled`.
    """
    coords = ("coords", coord_labels(model.coords, outputs))
    check_output_order(family, outputs, coords, *labeled)
    if isinstance(family, Custom) or rows == outputs:
        return family
    turned = {}
    for name, param in family.params.items():
        if name in family.shared_params:
            continue
        dims = own_dims(model, param)
        value = param.data if isinstance(param, Constant) else param
        if len(dims) == 1 and dims[0] in {rows, new} - {outputs, None}:
            turned[name] = value[:, None]
        first, last = (dims[0], dims[-1]) if len(dims) == 2 else (None, None)
        if outputs is not None and first == outputs or rows is not None and last == rows:
            turned[name] = value.T
    return family.replace(**turned) if turned else family
