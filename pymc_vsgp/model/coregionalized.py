"""Several outputs that share latent functions: the linear model of coregionalization."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import xarray as xr

from pytensor.tensor.variable import TensorVariable

from pymc_vsgp.checks import (
    as_array,
    check_names,
    check_new_name,
    is_symbolic,
    known_value,
    model_of,
)
from pymc_vsgp.labels import dims_of, own_dims, row_labels
from pymc_vsgp.likelihoods import as_likelihood
from pymc_vsgp.likelihoods.base import as_float, known_shape
from pymc_vsgp.likelihoods.mixed import Mixed, by_dims
from pymc_vsgp.model import at_point, columns, latents
from pymc_vsgp.rvs import check_graphs


class Coregionalized:
    r"""
    Multi-output process, each output a linear combination of latent processes.

    .. math:: f_p(x) = \sum_q W_{pq} \, g_q(x)

    The outputs see the data of each other through the functions that they share. Each observation
    may miss some of them.

    Parameters
    ----------
    W : tensor_like, shape (P, Q) or (Q,)
        Mixing matrix: numbers, or a random variable of the model. A column of W and the scale of
        its process say the same thing twice, so fix one: with W random, give kernels variance one.
        A vector makes a single output: ``[1.0, 1.0]`` is the sum of two functions. Where this page
        says P there is then no such dimension, and y is a vector.
    processes : list of VariationalSparse
        The processes that are mixed, Q functions in all; each has its inducing values.

    Examples
    --------
    .. code-block:: python

        with pm.Model(coords={"output": ["Cd", "Ni", "Zn"]}):
            W = pm.Normal("W", shape=(3, 2))
            g = vsgp.VariationalSparse(cov_func=pm.gp.cov.Matern52(2, ls=1.0))
            g.prior("u", Xu=Xu, n_outputs=2)
            f = vsgp.Coregionalized(W, g)
            f.likelihood("y", vsgp.Gaussian(sigma=0.1), X=X, y=Y, dims=("obs", "output"))
    """

    def __init__(self, W: Any, processes: Any):
        self.processes = latents.check_processes(processes, "Coregionalized")
        self.W, self.labels = as_float(W), row_labels(W)
        number = self.n_latent = sum(gp._prior.n_outputs for gp in self.processes)
        shape = known_shape(self.W)
        if self.W.type.ndim not in (1, 2) or shape[-1] not in (None, number):
            raise ValueError(
                f"W has shape {shape}, but there are {number} latent functions. Pass a matrix with "
                f"one row for each output and {number} columns, or a vector of {number} for one."
            )

    def likelihood(
        self,
        name: str,
        likelihood: Any,
        X: Any,
        y: Any,
        *,
        dims: str | Sequence[str] | None = None,
        block_size: int | bool | None = None,
        model: pm.Model | None = None,
    ) -> TensorVariable:
        """
        Put observations of the outputs into the model.

        Parameters
        ----------
        name : str
            Name of the observed variable.
        likelihood : Likelihood or callable
            The distribution of an output given its function, the same for all. A vector in a
            parameter has one number for each output: write ``exposure=effort[:, None]`` for one for
            each row of X. A DataArray, or a variable with dims, is taken by its `dims`.
        X : array_like or pm.Data, shape (N, D)
            Inputs.
        y : array_like, shape (N, P)
            Observations, nan where there is none, or masked. Random draws have all of them. A row
            for each output needs `dims` that say so.
        dims : sequence of str, optional
            Dimensions of `y`, in its order: of the rows of X and of the outputs. The outputs may
            come first where the model knows one of the two, from its coords or the dims of W or X.
            With as many rows as outputs the dims of W or X have to say which is which.
        block_size : int or False, optional
            As in :meth:`VariationalSparse.likelihood`.
        model : Model, optional
            By default the model on the context stack.

        Returns
        -------
        y : TensorVariable, shape (N, P)
        """
        model = model_of(model)
        given = y
        if self.W.type.ndim == 2:
            y, dims = self._rows_first(model, X, y, dims)
        mixed = self._mixed(likelihood, X, dims, model, given)
        return latents.likelihood(
            name, mixed, self.processes, X, y, dims=dims, block_size=block_size, model=model
        )

    def conditional(
        self, name: str, Xnew: Any, *, diag: bool = False, dims: Sequence[str] | None = None
    ) -> TensorVariable:
        """
        Put the outputs' functions at new inputs into the model, given the inducing values.

        Parameters
        ----------
        name : str
            Name of the variable. The latent functions are ``{name}_latent0`` and so on.
        Xnew : array_like or pm.Data, shape (N, D)
            New inputs.
        diag : bool
            As in :meth:`VariationalSparse.conditional`. Outputs at the same input are correlated
            either way.
        dims : sequence of str, optional
            Dimensions of the outputs and of the inputs.

        Returns
        -------
        f : TensorVariable, shape (P, N)
        """
        check_new_name(model_of(None), name)
        check_graphs([self.W], model_of(None), anew=True)
        Xnew = columns.coded_for_all(model_of(None), self.processes, Xnew)
        drawn = []
        for i, gp in enumerate(self.processes):
            g = gp.conditional(f"{name}_latent{i}", Xnew, diag=diag)
            drawn.append(g if g.type.ndim == 2 else g[None, :])
        return pm.Deterministic(name, pt.dot(self.W, pt.concatenate(drawn)), dims=dims)

    def predict(
        self,
        Xnew: Any,
        point: dict[str, Any] | None = None,
        *,
        diag: bool = False,
        model: pm.Model | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """
        Return mean and covariance of the outputs' functions at new inputs, at a `point`.

        For draws of a posterior use :func:`pymc_vsgp.predict`: its "mean" and "y" are those of the
        outputs, its "f" are the latent functions that W mixes.

        Parameters
        ----------
        Xnew : array_like, shape (N, D)
            New inputs.
        point : dict
            Values of the random variables, W among them where it is one.
        diag : bool
            Whether to return the variance at each input in place of the covariance.
        model : Model, optional
            By default the model on the context stack.

        Returns
        -------
        mean : ndarray, shape (P, N)
        covariance : ndarray, shape (P, N, N), or (P, N) with `diag`
            Of each output; that between outputs p and r has ``W[p] * W[r]`` where this has the
            square of ``W[p]``.
        """
        model = model_of(model)
        (W,) = at_point.evaluate_at([self.W], point, model)
        Xnew = columns.coded_for_all(model, self.processes, Xnew)
        means, spreads = [], []
        for gp in self.processes:
            mean, spread = gp.predict(Xnew, point, diag=diag, model=model)
            n = gp._prior.n_outputs
            means.append(mean.reshape(n, -1))
            spreads += [spread] * n
        return W @ np.concatenate(means), np.tensordot(W**2, np.stack(spreads), 1)

    def predictive(
        self, name: str, Xnew: Any, likelihood: Any = None, **kwargs: Any
    ) -> TensorVariable:
        """
        Put new observations of the outputs at new inputs into the model.

        Parameters
        ----------
        name : str
            Name of the variable.
        Xnew : array_like or pm.Data, shape (N, D)
            New inputs.
        likelihood : Likelihood, callable or str, optional
            As in :meth:`VariationalSparse.predictive`.
        **kwargs
            Passed to the distribution's constructor, for example ``dims``.

        Returns
        -------
        y : TensorVariable, shape (N, P)
        """
        if likelihood is None or isinstance(likelihood, str):
            known = latents.known_likelihood(self.processes, likelihood, kwargs.get("given"))
            mixed = Mixed(known.likelihood.of_output, self.W, self.n_latent)
            likelihood = known._replace(likelihood=mixed)
        else:
            likelihood = self._mixed(likelihood, Xnew, kwargs.get("dims"), model_of(None))
        return latents.predictive(name, self.processes, Xnew, likelihood, **kwargs)

    def _rows_first(self, model, X, y, dims):
        """Return y with a row for each input, and its dims in that order."""
        check_names("dims", dims)
        X_value, n_outputs = known_value(X, "X"), known_shape(self.W)[0]
        n_rows = None if X_value is None or not X_value.ndim else len(X_value)
        own = own_dims(model, y)
        given = None if isinstance(dims, str) else dims
        pair = tuple(given or own or ())
        pair = pair if len(pair) == 2 else ()
        # A DataArray goes by the names of its dims where `dims` has them in another order.
        named = isinstance(y, xr.DataArray) and len(own) == len(pair)
        if named and any(d in pair and pair[i] != d for i, d in enumerate(own)):
            y = y.T
        # Data containers stay as they are: what is observed has to be the container itself.
        shape = None if is_symbolic(y) else as_array(y, "y").shape
        turned = self._are_turned(model, pair, X, n_rows)
        of_y = own if len(own) == 2 else pair if n_rows == n_outputs else ()
        if shape is None and self._are_turned(model, of_y, X, n_rows):
            raise ValueError(
                f"y is a data container with the dims {of_y}, and its rows are those of X. "
                f"Pass pm.Data with the dims {of_y[::-1]}."
            )
        if pair and n_rows == n_outputs and turned is None:
            raise ValueError(
                f"X and W have {n_rows} rows each, so nothing says which of the dims {pair} is "
                "that of the outputs. Give W dims, with that of the outputs first."
            )
        rows_first = shape[::-1] if turned and shape else shape
        if rows_first == (n_outputs, n_rows) and n_rows != n_outputs:
            says = f" and the dims {pair}" if pair else ""
            raise ValueError(
                f"y has shape {shape}{says}, but X has {n_rows} rows and W has {n_outputs}. Pass "
                "one row for each row of X, or dims in the order of y, with coords in the model."
            )
        y = as_array(y, "y").T if turned and shape else y
        return y, (dims[::-1] if turned and given else dims)

    def _mixed(self, likelihood, X, dims, model, y=None):
        """Return the likelihood of all outputs, with what is labeled in their order."""
        lik = as_likelihood(likelihood)
        if self.W.type.ndim == 2:
            named = [dims_of(model, v) for v in (X, self.W)]
            own = [dims] if isinstance(dims, str) else list(dims or [])
            known = [d[0] if d else None for d in named]
            rows, outputs = (d or e for d, e in zip([*own, None, None], known, strict=False))
            labeled = [("W", self.labels), ("y", y)]
            lik = by_dims(lik, rows, outputs, model, labeled=labeled)
        return Mixed(lik, self.W, self.n_latent)

    def _are_turned(self, model, pair, X, n_rows):
        """Whether the first of two dims is that of the outputs; None if the model does not know."""
        known = [self._is_output(model, dim, X, n_rows) for dim in pair]
        if not pair or known == [None, None]:
            return None
        return known[0] is True or known[1] is False

    def _is_output(self, model, dim, X, n_rows):
        """Whether a dimension is that of the outputs; None if the model does not know."""
        for variable, answer in ((self.W, True), (X, False)):
            known = own_dims(model, variable)
            if known and known[0] is not None and known[0] == dim:
                return answer
        length = known_value(model.dim_lengths[dim]) if dim in model.dim_lengths else None
        n_outputs = known_shape(self.W)[0]
        if length is None or n_rows == n_outputs:
            return None
        return {n_outputs: True, n_rows: False}.get(int(length))

    def __repr__(self):
        """Show the shape of W."""
        return f"Coregionalized({self.W.type.shape}, {len(self.processes)} processes)"
