"""A Gaussian process with inducing variables and a free-form posterior."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt

from pymc.gp.cov import BaseCovariance, Constant, Covariance
from pymc.gp.gp import Base
from pymc.gp.mean import Mean, Zero
from pymc.gp.util import stabilize
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors
from pytensor.tensor.variable import TensorVariable

from pymc_vsgp.checks import (
    as_matrix,
    as_target,
    check_columns,
    check_jitter,
    depends_on_random,
    known_value,
)
from pymc_vsgp.inducing.coordinates import whiten
from pymc_vsgp.inducing.variable import Inducing
from pymc_vsgp.likelihoods import Likelihood, as_likelihood
from pymc_vsgp.potential import Moments, conditional_moments, observe, total
from pymc_vsgp.potential.moments import JITTER, joint_moments, prior_factor

__all__ = ["VariationalSparse"]


@dataclass
class _Prior:
    """What `prior` leaves behind for everything that conditions on u."""

    u: TensorVariable
    Xu: TensorVariable
    R: TensorVariable
    mean: TensorVariable
    n_columns: int
    n_inducing: int
    feature_dim: str
    n_data: int = 0
    likelihoods: dict[str, tuple[Likelihood, int]] = field(default_factory=dict)

    @property
    def v(self) -> TensorVariable:
        return whiten(self.u, self.mean, self.R)


class VariationalSparse(Base):
    R"""
    Variationally sparse Gaussian process.

    The `gp.VariationalSparse` class puts a Gaussian process with any likelihood into a model at a
    cost of :math:`\mathcal{O}(N M^2)` an evaluation, where :math:`M` is the number of inducing
    points. The inducing values :math:`u = f(X_u)` are random variables of the model and nothing is
    assumed about the shape of their posterior, which is sampled jointly with the parameters of the
    kernel and with the rest of the model [1]_:

    .. math::

       \log q(u, \theta) = \sum_n \mathbb{E}_{p(f_n \mid u, \theta)} \log p(y_n \mid f_n)
       + \log p(u \mid \theta) + \log p(\theta) + \text{const}

    Of all processes that see the data through :math:`u`, this is the one closest to the exact
    posterior in Kullback-Leibler divergence. With :math:`X_u = X` it is the exact posterior.

    Parameters
    ----------
    mean_func : Mean, default ~pymc.gp.mean.Zero
        The mean function.
    cov_func : Covariance
        The covariance function.

    Examples
    --------
    .. code-block:: python

        with pm.Model() as model:
            lengthscale = pm.Gamma("lengthscale", 2, 1)
            gp = pm.gp.VariationalSparse(cov_func=pm.gp.cov.Matern52(1, ls=lengthscale))
            gp.prior("u", Xu=vsgp.inducing.kmeans(X, 30, random_seed=1))
            gp.likelihood("y", vsgp.Poisson(), X=X, y=counts)
            idata = pm.sample()

            gp.conditional("f_new", Xnew)
            pm.sample_posterior_predictive(idata, var_names=["f_new"], predictions=True)

    References
    ----------
    .. [1] Hensman, J., Matthews, A. G. de G., Filippone, M., and Ghahramani, Z. (2015). MCMC for
       Variationally Sparse Gaussian Processes. Advances in Neural Information Processing Systems.
    """

    def __init__(self, *, mean_func=Zero(), cov_func=Constant(0.0)):
        if not isinstance(cov_func, BaseCovariance):
            raise TypeError(
                f"cov_func is {_kind(cov_func)}, not a covariance function. "
                "Pass one of pm.gp.cov, for example pm.gp.cov.Matern52(1, ls=1.0)."
            )
        if not isinstance(mean_func, Mean):
            raise TypeError(
                f"mean_func is {_kind(mean_func)}, not a mean function. "
                "Pass one of pm.gp.mean, for example pm.gp.mean.Constant(0.5)."
            )
        super().__init__(mean_func=mean_func, cov_func=cov_func)
        self._prior: _Prior | None = None

    def prior(
        self,
        name: str,
        Xu: Any,
        *,
        inducing_dims: str | None = None,
        jitter: float = JITTER,
        model: pm.Model | None = None,
    ) -> TensorVariable:
        R"""
        Put the values of the function at the inducing inputs into the model.

        Parameters
        ----------
        name : str
            Name of the inducing values. A sampler moves them in whitened coordinates; the trace
            has them in the units of the function.
        Xu : array_like or pm.Data, shape (M, D)
            Inducing inputs; see :mod:`pymc_vsgp.inducing` for where to put them. Arrays are kept
            in the model as the data variable ``{name}_Xu``, and so are saved with the draws.
        inducing_dims : str, optional
            Name of the dimension of the inducing values. By default ``{name}_inducing``.
        jitter : float
            Added to the diagonal of the prior covariance, as a fraction of its mean.
        model : Model, optional
            By default the model on the context stack.

        Returns
        -------
        u : TensorVariable, shape (M,)
        """
        model = pm.modelcontext(model)
        if self._prior is not None:
            raise RuntimeError(
                f"This process already has the inducing values {self._prior.u.name!r}. "
                "Make another VariationalSparse for another function."
            )
        _check_new_name(model, name)
        check_jitter(jitter)
        Xu_tensor, Xu_value = as_matrix(Xu, "Xu")
        if Xu_value is None:
            raise TypeError(
                "Xu depends on random variables of the model, but inducing inputs are not sampled. "
                "Pass numbers or a pm.Data container."
            )
        _check_distinct(Xu_value)
        self._check_kernel(Xu_value)
        self._check_shapes(Xu_value)

        n_inducing, n_columns = Xu_value.shape
        inducing_dim = inducing_dims if inducing_dims is not None else f"{name}_inducing"
        _check_dim(model, inducing_dim, n_inducing, "Xu")
        feature_dim = f"{name}_feature"
        if Xu_tensor is not Xu:  # an array: keep it with the model
            _check_new_name(model, f"{name}_Xu")
            columns = getattr(Xu, "columns", None)
            coords = {} if columns is None else {feature_dim: [str(c) for c in columns]}
            with model:
                Xu_tensor = pm.Data(
                    f"{name}_Xu",
                    Xu_value,
                    dims=(inducing_dim, feature_dim),
                    coords=coords,
                    shape=Xu_value.shape,
                )
        elif inducing_dim not in model.dim_lengths:
            model.add_coord(inducing_dim, length=n_inducing)

        R = prior_factor(self.cov_func, Xu_tensor, jitter)
        mean = _mean_at(self.mean_func, Xu_tensor)
        with model:
            u = Inducing(name, mean, R, dims=inducing_dim)
        self._prior = _Prior(
            u=u,
            Xu=Xu_tensor,
            R=R,
            mean=mean,
            n_columns=n_columns,
            n_inducing=n_inducing,
            feature_dim=feature_dim,
        )
        return u

    def likelihood(
        self,
        name: str,
        likelihood: Any,
        X: Any,
        y: Any,
        *,
        dims: str | None = None,
        block_size: int | bool | None = None,
        model: pm.Model | None = None,
    ) -> TensorVariable:
        R"""
        Put observations of the function into the model.

        The log density of the observed variable at each point is the expectation of
        :math:`\log p(y_n \mid f_n)` over the function given the inducing values. Its random draws
        are draws of y. A process may have several likelihoods.

        Parameters
        ----------
        name : str
            Name of the observed variable.
        likelihood : Likelihood or callable
            One of :mod:`pymc_vsgp.likelihoods`, or a function of the latent function that returns
            a PyMC distribution, such as ``lambda f: pm.Poisson.dist(pm.math.exp(f))``.
        X : array_like or pm.Data, shape (N, D)
            Inputs. Arrays are kept in the model as the data variable ``{name}_X``.
        y : array_like or pm.Data, shape (N,)
            Observations.
        dims : str, optional
            Dimension of the observations. By default that of `X` where `X` is a ``pm.Data`` with
            dims, else ``{name}_obs``.
        block_size : int or False, optional
            Rows of `X` that are worked on at a time; memory does not grow with the rest. By
            default as many as keep a block in the processor's cache. False builds an ordinary
            graph that holds all rows at once, which has second derivatives.
        model : Model, optional
            By default the model on the context stack.

        Returns
        -------
        y : TensorVariable, shape (N,)
        """
        model = pm.modelcontext(model)
        prior = self._require_prior("likelihood")
        lik, X_tensor, y_value, dims = self._data(model, name, likelihood, X, y, dims)
        with model:
            observed = observe(
                name,
                lik,
                self._moments(prior, X_tensor),
                block_size=block_size,
                observed=y if _is_symbolic(y) else y_value,
                dims=dims,
            )
        prior.likelihoods[name] = (lik, len(y_value))
        prior.n_data += len(y_value)
        return observed

    def potential(
        self,
        name: str,
        likelihood: Any,
        X: Any,
        y: Any,
        *,
        block_size: int | bool | None = None,
        model: pm.Model | None = None,
    ) -> TensorVariable:
        """
        Add the same term as `likelihood` as a bare ``pm.Potential``.

        There is then no observed variable: predictive checks and pointwise groups, which need one,
        are not available.

        Parameters
        ----------
        name : str
            Name of the potential.
        likelihood : Likelihood or callable
            As in :meth:`likelihood`.
        X : array_like or pm.Data, shape (N, D)
            Inputs.
        y : array_like or pm.Data, shape (N,)
            Observations.
        block_size : int or False, optional
            As in :meth:`likelihood`.
        model : Model, optional
            By default the model on the context stack.

        Returns
        -------
        potential : TensorVariable, scalar
        """
        model = pm.modelcontext(model)
        prior = self._require_prior("potential")
        if not _is_symbolic(y):
            _check_new_name(model, f"{name}_y")
        lik, X_tensor, y_value, dims = self._data(model, name, likelihood, X, y, None)
        with model:
            y_tensor = y if _is_symbolic(y) else pm.Data(f"{name}_y", y_value, dims=dims)
            moments = self._moments(prior, X_tensor)
            potential = pm.Potential(name, total(lik, moments, y_tensor, block_size))
        prior.n_data += len(y_value)
        return potential

    def conditional(
        self,
        name: str,
        Xnew: Any,
        given: dict[str, Any] | None = None,
        diag: bool = False,
        jitter: float = JITTER,
        **kwargs,
    ) -> TensorVariable:
        R"""
        Put the function at new inputs into the model, given the inducing values.

        Parameters
        ----------
        name : str
            Name of the variable.
        Xnew : array_like or pm.Data, shape (N, D)
            New inputs.
        given : dict, optional
            ``{"gp": total}`` gives the conditional of this component of the sum ``total``, which
            has the inducing values.
        diag : bool
            Whether to draw the function at each input on its own, at a cost linear in their
            number. Draws then have the right mean and variance everywhere, and no correlation
            beyond that through u. By default they are joint draws.
        jitter : float
            Added to the diagonal of the covariance of joint draws.
        **kwargs
            Passed to the distribution's constructor, for example ``dims``.

        Returns
        -------
        f : TensorVariable, shape (N,)
        """
        check_jitter(jitter)
        moments = self._conditional(Xnew, given, diag)
        _check_new_name(pm.modelcontext(None), name)
        if diag:
            return pm.Normal(name, moments.mu, pt.sqrt(moments.gamma), **kwargs)
        # As in pm.gp.Latent.conditional: a posterior covariance is often singular to rounding.
        kwargs.setdefault("method", "svd")
        return pm.MvNormal(name, moments.mu, cov=stabilize(moments.gamma, jitter), **kwargs)

    def predictive(
        self,
        name: str,
        Xnew: Any,
        likelihood: Any = None,
        *,
        given: dict[str, Any] | None = None,
        **kwargs,
    ) -> TensorVariable:
        """
        Put new observations at new inputs into the model.

        Parameters
        ----------
        name : str
            Name of the variable.
        Xnew : array_like or pm.Data, shape (N, D)
            New inputs.
        likelihood : Likelihood, callable or str, optional
            The distribution of an observation: by default that of the only `likelihood` of this
            process. With several, the name of one. One whose parameters go with the rows of X,
            such as an exposure, needs to be given anew for the rows of Xnew.
        given : dict, optional
            As in :meth:`conditional`.
        **kwargs
            Passed to the distribution's constructor, for example ``dims``.

        Returns
        -------
        y : TensorVariable, shape (N,)
        """
        moments = self._conditional(Xnew, given, True, "predictive")
        lik = self._predictive_likelihood(likelihood, known_value(Xnew), given)
        _check_new_name(pm.modelcontext(None), name)
        return observe(name, lik, moments, **kwargs)

    def predict(
        self,
        Xnew: Any,
        point: dict[str, Any] | None = None,
        given: dict[str, Any] | None = None,
        diag: bool = False,
        model: pm.Model | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """
        Return mean and covariance of the function at new inputs, at a `point` of the model.

        Parameters
        ----------
        Xnew : array_like, shape (N, D)
            New inputs.
        point : dict
            Values of the random variables, for example the result of ``pm.find_MAP()``.
        given : dict, optional
            As in :meth:`conditional`.
        diag : bool
            Whether to return the variance at each input in place of the covariance.
        model : Model, optional
            By default the model on the context stack.
        """
        model = pm.modelcontext(model)
        point = {} if point is None else point
        moments = self._conditional(Xnew, given, diag, "predict")
        values = {rv: pt.constant(point[rv.name]) for rv in model.free_RVs if rv.name in point}
        mu, cov = graph_replace(list(moments), values, strict=False)
        if missing := [
            rv.name for rv in model.free_RVs if rv in ancestors([mu, cov]) and rv not in values
        ]:
            raise ValueError(
                f"point has no value for {missing}. Pass a value for each of them, for example "
                "the result of pm.find_MAP()."
            )
        # Evaluated once, so compiling for speed would not pay.
        return pytensor.function([], [mu, cov], mode="FAST_COMPILE")()

    def _require_prior(self, method: str) -> _Prior:
        if self._prior is None:
            given = ", or for a component of a sum pass given={'gp': the_sum}"
            if method in ("likelihood", "potential"):
                given = ""
            raise RuntimeError(
                f"{method} needs the inducing values, and this process has none yet. "
                f"Call prior first{given}."
            )
        return self._prior

    def _moments(self, prior: _Prior, X: TensorVariable, diag: bool = True) -> Moments:
        moments = conditional_moments if diag else joint_moments
        return moments(
            lambda x: _mean_at(self.mean_func, x), self.cov_func, X, prior.Xu, prior.R, prior.v
        )

    def _conditional(
        self, Xnew: Any, given: dict[str, Any] | None, diag: bool, method: str = "conditional"
    ) -> Moments:
        # In a sum the inducing values belong to the total: their factor and their mean are the
        # total's, and only the covariance between f and u, and f's own prior, are the component's.
        prior = _conditioning_process(self, given)._require_prior(method)
        X, value = as_matrix(Xnew, "Xnew")
        if value is not None:
            check_columns(value, prior.n_columns, "Xnew", "Xu")
        return self._moments(prior, X, diag)

    def _data(self, model, name, likelihood, X, y, dims):
        prior = self._require_prior("likelihood")
        _check_new_name(model, name)
        lik = as_likelihood(likelihood)
        X_tensor, X_value = as_matrix(X, "X")
        if X_value is not None:
            check_columns(X_value, prior.n_columns, "X", "Xu")
        y_value = as_target(y, None if X_value is None else len(X_value))
        n_data = len(y_value)
        if prior.n_inducing > prior.n_data + n_data:
            raise ValueError(
                f"Xu has {prior.n_inducing} rows, but there are only {prior.n_data + n_data} "
                f"observations. Use at most {n_data} inducing points: Xu = X is already exact."
            )
        _check_param_shapes(lik, n_data)
        lik.check_observed(y_value)

        if dims is None:
            known = model.named_vars_to_dims.get(getattr(X, "name", None)) or (None,)
            dims = known[0] or f"{name}_obs"
        if X_tensor is not X:
            _check_new_name(model, f"{name}_X")
        if X_value is not None:
            _check_dim(model, dims, n_data, "X")
        if dims not in model.dim_lengths:
            model.add_coord(dims, length=X_tensor.shape[0] if X_tensor is X else n_data)
        if X_tensor is not X:
            with model:
                X_tensor = pm.Data(f"{name}_X", X_value, dims=(dims, self._feature_dim(model)))
        return lik, X_tensor, y_value, dims

    def _feature_dim(self, model: pm.Model) -> str:
        prior = self._require_prior("likelihood")
        if prior.feature_dim not in model.dim_lengths:
            model.add_coord(prior.feature_dim, length=prior.n_columns)
        return prior.feature_dim

    def _check_kernel(self, Xu: np.ndarray) -> None:
        if isinstance(self.cov_func, Covariance) and self.cov_func.input_dim != Xu.shape[1]:
            raise ValueError(
                f"The covariance function has input_dim {self.cov_func.input_dim}, but Xu has "
                f"{Xu.shape[1]} columns. Give it input_dim={Xu.shape[1]}, with active_dims to use "
                "some of them only."
            )
        diagonal = pt.as_tensor(self.cov_func(pt.constant(Xu), diag=True))
        if depends_on_random(diagonal):
            return
        values = known_value(diagonal)
        if values is None:
            return
        bad = ~(np.isfinite(values) & (values > 0))
        if bad.any():
            raise ValueError(
                f"The covariance function gives the variance {values[bad][0]:g}, so there is no "
                "function to learn. Pass a cov_func with positive variance."
            )

    def _check_shapes(self, Xu: np.ndarray) -> None:
        # What the two raise, they raise here, before the model has new variables.
        for what, function in (("cov_func", self.cov_func), ("mean_func", self.mean_func)):
            try:
                function(pt.constant(Xu))
            except (IndexError, TypeError, ValueError) as error:
                raise ValueError(
                    f"{what} cannot be evaluated at Xu, shape {Xu.shape}: {error}. "
                    "Give its parameters one entry for each column of Xu that it uses."
                ) from error

    def _predictive_likelihood(self, likelihood, Xnew, given) -> Likelihood:
        if likelihood is not None and not isinstance(likelihood, str):
            lik = as_likelihood(likelihood)
            n_data = None
        else:
            known = _conditioning_process(self, given)._require_prior("predictive").likelihoods
            if not known:
                raise ValueError(
                    "This process has no likelihood that an observation could follow. "
                    "Pass one, for example likelihood=vsgp.Poisson()."
                )
            if likelihood is None and len(known) > 1:
                raise ValueError(
                    f"This process has {len(known)} likelihoods. "
                    f"Say which one an observation follows: pass one of {list(known)}."
                )
            name = next(iter(known)) if likelihood is None else likelihood
            if name not in known:
                raise ValueError(
                    f"This process has no likelihood named {name!r}. Pass one of {list(known)}."
                )
            lik, n_data = known[name]
        n_new = None if Xnew is None else len(Xnew)
        if n_new is not None and n_new != n_data:
            try:
                _check_param_shapes(lik, n_new, "Xnew")
            except ValueError as error:
                raise ValueError(
                    f"{error} For example likelihood=vsgp.{type(lik).__name__}(...)."
                ) from None
        return lik


def _mean_at(mean_func: Mean, X: TensorVariable) -> TensorVariable:
    # Some of pm.gp.mean return a scalar or an int vector; a sum over the data needs one a row.
    mean = pt.as_tensor(mean_func(X))
    return pt.broadcast_to(mean, (X.shape[0],)).astype("float64")


def _conditioning_process(gp: VariationalSparse, given: dict[str, Any] | None) -> VariationalSparse:
    if not given:
        return gp
    if not isinstance(given, dict):
        raise TypeError(
            f"given is {_kind(given)}, not a dict. "
            "Pass given={'gp': total}, where total is the sum that has the inducing values."
        )
    unknown = set(given) - {"gp"}
    if unknown:
        raise ValueError(
            f"given has the entries {sorted(unknown)}, which are not used here. "
            "Pass given={'gp': total}, where total is the sum that has the inducing values."
        )
    if not isinstance(given["gp"], VariationalSparse):
        raise TypeError(
            f"given['gp'] is {_kind(given['gp'])}. "
            "Pass the VariationalSparse that has the inducing values."
        )
    return given["gp"]


def _check_new_name(model: pm.Model, name: str) -> None:
    if not isinstance(name, str):
        raise TypeError(
            f"The first argument is {_kind(name)}, but it is the name of the new variable. "
            "Pass a string."
        )
    if model.name_for(name) in model.named_vars:
        raise ValueError(f"The model already has a variable named {name!r}. Choose another name.")


def _check_dim(model: pm.Model, dim: str, length: int, what: str) -> None:
    if dim not in model.dim_lengths:
        return
    known = known_value(model.dim_lengths[dim])
    if known is not None and int(known) != length:
        raise ValueError(
            f"Dimension {dim!r} has length {known}, but {what} has {length} rows. "
            "Choose another name for the dimension."
        )


def _kind(thing: Any) -> str:
    if isinstance(thing, type):
        return f"the class {thing.__name__}"
    return f"of type {type(thing).__name__}"


def _check_distinct(Xu: np.ndarray) -> None:
    _, first, counts = np.unique(Xu, axis=0, return_index=True, return_counts=True)
    if (counts > 1).any():
        row = int(first[counts > 1][0])
        twin = int(np.flatnonzero((Xu == Xu[row]).all(axis=1))[1])
        raise ValueError(
            f"Rows {row} and {twin} of Xu are equal, so its covariance is singular. "
            "Drop the repeated rows, or use vsgp.inducing.kmeans, which never repeats one."
        )


def _check_param_shapes(lik: Likelihood, n_data: int, rows_of: str = "X") -> None:
    for name, param in lik.params.items():
        if param.type.ndim == 0:
            continue
        value = known_value(param)
        shape = param.type.shape if value is None else value.shape
        if len(shape) > 1 or shape[0] not in (1, n_data, None):
            raise ValueError(
                f"{name} of {type(lik).__name__} has shape {tuple(shape)}, but {rows_of} has "
                f"{n_data} rows. Pass one value, or one for each row of {rows_of}."
            )


def _is_symbolic(y: Any) -> bool:
    return isinstance(y, pytensor.graph.basic.Variable)
