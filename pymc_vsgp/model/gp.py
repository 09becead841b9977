"""A Gaussian process with inducing variables and a free-form posterior."""

from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from pymc.gp.cov import Constant
from pymc.gp.gp import Base
from pymc.gp.mean import Mean, Zero
from pymc.gp.util import stabilize
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.tensor.variable import TensorVariable

from pymc_vsgp.checks import (
    as_matrix,
    check_columns,
    check_dim,
    check_jitter,
    check_kernel,
    check_new_name,
    column_names,
    kind,
    model_of,
)
from pymc_vsgp.inducing.base import ConditionalMoments, InducingVariables
from pymc_vsgp.inducing.graphs import JITTER, Moments
from pymc_vsgp.inducing.groups import ByGroup, ByGroupPrior
from pymc_vsgp.inducing.points import Points
from pymc_vsgp.model import at_point, columns, latents
from pymc_vsgp.model.functions import (
    check_groups,
    check_one_kind,
    check_points,
    checked_kind,
    conditioning_process,
    covariates_of,
    mean_at,
)
from pymc_vsgp.model.latents import Prior
from pymc_vsgp.model.observation import data_inputs
from pymc_vsgp.model.variable import inducing_variable
from pymc_vsgp.ops.distance import warn_of_offset
from pymc_vsgp.rvs import check_graphs


class VariationalSparse(Base):
    R"""
    Variationally sparse Gaussian process; ``pm.gp.VariationalSparse`` is the same class.

    It puts a Gaussian process with any likelihood into a model at a
    cost of :math:`\mathcal{O}(N M^2)` an evaluation, where :math:`M` is the number of inducing
    points. The inducing values :math:`u = f(X_u)` are random variables of the model. Nothing is
    assumed about the shape of their posterior. It is sampled jointly with the parameters of the
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
            gp = vsgp.VariationalSparse(cov_func=pm.gp.cov.Matern52(1, ls=lengthscale))
            gp.prior("u", Xu=vsgp.inducing.kmeans(X, 30, random_seed=1))
            gp.likelihood("y", vsgp.Poisson(), X=X, y=counts)
            idata = vsgp.sample(random_seed=1)

            gp.conditional("f_new", Xnew)
            pm.sample_posterior_predictive(idata, var_names=["f_new"], predictions=True)

    References
    ----------
    .. [1] Hensman, J., Matthews, A. G. de G., Filippone, M., and Ghahramani, Z. (2015). MCMC for
       Variationally Sparse Gaussian Processes. Advances in Neural Information Processing Systems.
    """

    def __init__(self, *, mean_func=Zero(), cov_func=Constant(0.0)):
        check_kernel(cov_func)
        if not isinstance(mean_func, Mean):
            raise TypeError(
                f"mean_func is {kind(mean_func)}, not a mean function. "
                "Pass one of pm.gp.mean, for example pm.gp.mean.Constant(0.5)."
            )
        super().__init__(mean_func=mean_func, cov_func=cov_func)
        self._prior: Prior | None = None

    def prior(
        self,
        name: str,
        Xu: Any = None,
        *,
        inducing: InducingVariables | None = None,
        by: str | None = None,
        n_outputs: int = 1,
        output_dims: str | None = None,
        inducing_dims: str | None = None,
        jitter: float = JITTER,
        model: pm.Model | None = None,
    ) -> TensorVariable:
        R"""
        Put the inducing variables of the function into the model.

        They are its values at inducing inputs, or its Fourier coefficients.

        Parameters
        ----------
        name : str
            Name of the inducing values. A sampler moves them in whitened coordinates; the trace
            has them in the units of the function.
        Xu : array_like or pm.Data, shape (M, D)
            Inducing inputs; see :mod:`pymc_vsgp.inducing` for where to put them. Arrays are kept
            in the model as the data variable ``{name}_Xu``, and so are saved with the draws. Names
            of columns are the coordinate ``{name}_feature``, and other inputs are matched by them.
            Values of an expression such as ``X[::10]`` are kept, too: ``pm.set_data`` of X leaves
            them alone.
            Columns of it that only the mean uses, such as covariates, need no thought: `likelihood`
            fills them with averages of X over the observations nearest in the other columns.
        inducing : Fourier, NearestNeighbors or Kronecker, optional
            In place of `Xu`: Fourier coefficients as inducing variables, for stationary kernels of
            one to three of the inputs; values given their nearest neighbors; or values at all pairs
            of sites and times, say. See :mod:`pymc_vsgp.inducing`.
        by : str, optional
            Dimension of the model whose entries are groups with a function each: independent, with
            this mean and this kernel. Inputs of data then have the group in one more column: a
            table in the column with this name, by labels, an array in the last, by numbers.
            Needs `Xu`, which are the inducing inputs of each.
        n_outputs : int
            Number of independent functions with this mean and this kernel, for a likelihood of
            several: one for each class, for example. What the data cost hardly grows with it.
        output_dims : str, optional
            Name of the dimension of the functions. By default ``{name}_output``; none for one
            function.
        inducing_dims : str, optional
            Name of the dimension of the inducing values. By default ``{name}_inducing``.
        jitter : float
            Added to the diagonal of the prior covariance, as a fraction of its mean. Where it is
            not enough for a Cholesky factor, ten times as much is added, and so on. Fourier
            coefficients are independent and take none.
        model : Model, optional
            By default the model on the context stack.

        Returns
        -------
        u : TensorVariable, shape (M,), or (n_outputs, M) for several functions; (G, M) for G groups
        """
        model = model_of(model)
        check_one_kind(Xu, inducing)
        if self._prior is not None:
            raise RuntimeError(
                f"This process already has the inducing values {self._prior.u.name!r}. "
                "Make another VariationalSparse for another function."
            )
        check_new_name(model, name)
        check_jitter(jitter)
        output_dim = latents.output_coord(model, name, n_outputs, output_dims)
        inducing_dim = latents.inducing_coord(model, name, inducing_dims, (output_dim, by))
        n_groups = check_groups(model, by, inducing, n_outputs, output_dims)
        variables: InducingVariables
        if inducing is not None:
            variables = checked_kind(self, model, name, inducing, inducing_dim)
        elif by is None:
            variables = self._points(model, name, Xu, inducing_dim)
        else:
            points = self._points(model, name, Xu, inducing_dim, by)
            variables, output_dim = ByGroup(points, by, n_groups), by
        with model:
            kind = variables.under(name, self.cov_func, self._mean_at, jitter)
            if output_dim is None:
                u = inducing_variable(name, kind, dims=inducing_dim)
            else:
                if output_dim not in model.dim_lengths:
                    model.add_coord(output_dim, length=int(n_outputs))
                u = inducing_variable(
                    name,
                    kind,
                    shape=(n_groups or n_outputs, variables.n_inducing),
                    dims=(output_dim, inducing_dim),
                )
        self._prior = Prior(
            u=u,
            kind=kind,
            n_columns=variables.n_columns,
            n_inducing=variables.n_inducing,
            feature_dim=model.name_for(f"{name}_feature"),
            n_outputs=int(n_outputs),
            output_dim=None if by else output_dim,
            covariates=covariates_of(self, model, name, kind, Xu),
        )
        return u

    def _mean_at(self, X: TensorVariable) -> TensorVariable:
        return mean_at(self.mean_func, X)

    def _points(self, model, name, Xu, inducing_dim, by=None) -> Points:
        """Put Xu into the model, and return the values there as inducing variables."""
        Xu_tensor, Xu_value = as_matrix(Xu, "Xu")
        if Xu_value is None:
            raise TypeError(
                "Xu depends on random variables of the model, but inducing inputs are not sampled. "
                "Pass numbers or a pm.Data container."
            )
        warn_of_offset(Xu_value)
        check_points(self, model, Xu_value, column_names(Xu, "Xu"))
        n_inducing, n_columns = Xu_value.shape
        check_dim(model, inducing_dim, n_inducing, "Xu")
        names = column_names(Xu, "Xu", model, numbers=by is None)
        if isinstance(Xu, SharedVariable):
            columns.check_own_data([Xu], data_inputs(model))
            if inducing_dim not in model.dim_lengths:
                model.add_coord(inducing_dim, length=n_inducing)
        else:
            check_new_name(model, f"{name}_Xu")
        feature_dim = model.name_for(f"{name}_feature")
        if by is not None:  # one more column of data than of Xu
            of_data = None if names is None else (*names, by)
            columns.name_columns(model, feature_dim, n_columns + 1, of_data)
            feature_dim = model.name_for(f"{name}_Xu_feature")
        columns.name_columns(model, feature_dim, n_columns, names)
        if not isinstance(Xu, SharedVariable):  # the model keeps it, apart from other data
            with model:
                Xu_tensor = pm.Data(
                    f"{name}_Xu",
                    Xu_value,
                    dims=(inducing_dim, feature_dim),
                    shape=Xu_value.shape,
                )
        return Points(Xu_tensor, n_inducing, n_columns)

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
            Inputs. Arrays are kept in the model as the data variable ``{name}_X``. Columns are
            matched by name where these and those of Xu have names; else they are in order.
        y : array_like or pm.Data, shape (N,)
            Observations, in the order of the rows of X. Labels in another order are an error.
        dims : str, optional
            Dimension of the observations. By default that of `X` where `X` is a ``pm.Data`` with
            dims, else ``{name}_obs``.
        block_size : int or False, optional
            Observations that are worked on at a time; memory does not grow with the rest. By
            default as many as keep a block in the processor's cache. False builds an ordinary
            graph of all at once, with second derivatives and without a Gaussian stage.
        model : Model, optional
            By default the model on the context stack.

        Returns
        -------
        y : TensorVariable, shape (N,)
        """
        return latents.likelihood(
            name, likelihood, [self], X, y, dims=dims, block_size=block_size, model=model
        )

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

        There is then no observed variable, so PyMC has none to draw or to score. Functions of this
        package, such as :func:`predict` and :func:`loo`, take it like a likelihood.

        Parameters
        ----------
        name : str
            Name of the potential.
        likelihood : Likelihood or callable
            As in :meth:`likelihood`.
        X : array_like or pm.Data, shape (N, D)
            Inputs.
        y : array_like or pm.Data, shape (N,)
            Observations, as in :meth:`likelihood`.
        block_size : int or False, optional
            As in :meth:`likelihood`.
        model : Model, optional
            By default the model on the context stack.

        Returns
        -------
        potential : TensorVariable, scalar
        """
        return latents.potential(name, likelihood, [self], X, y, block_size=block_size, model=model)

    def marginal_likelihood(self, *args, **kwargs):
        """Refuse what `pm.gp.Marginal` alone has."""
        raise TypeError("It is for Marginal. Call prior('u', Xu), then likelihood('y', ...).")

    def conditional(
        self,
        name: str,
        Xnew: Any,
        given: dict[str, Any] | None = None,
        diag: bool = False,
        jitter: float = 1e-6,
        **kwargs,
    ) -> TensorVariable:
        R"""
        Put the function at new inputs into the model, given the inducing values.

        Inducing inputs are those that the model has. Before you use draws of another model, set
        them to those of the draws: ``pm.set_data({"u_Xu": idata["constant_data"]["u_Xu"]})``.

        Parameters
        ----------
        name : str
            Name of the variable.
        Xnew : array_like or pm.Data, shape (N, D)
            New inputs. Columns with names are matched by name.
        given : dict, optional
            ``{"gp": total}`` gives the conditional of this component of the sum ``total``, which
            has the inducing values.
        diag : bool
            Whether to draw the function at each input on its own, at a cost linear in their
            number. Draws then have the right mean and variance everywhere, and no correlation
            beyond that through u. By default they are joint draws.
        jitter : float
            Added to the diagonal of the covariance of joint draws, as a fraction of its mean.
        **kwargs
            Passed to the distribution's constructor, for example ``dims``.

        Returns
        -------
        f : TensorVariable, shape (N,), or (n_outputs, N) for several functions
        """
        if "pred_noise" in kwargs:
            raise TypeError("conditional is of the function. Call predictive for observations.")
        check_jitter(jitter)
        moments = self._conditional(Xnew, given, diag)
        check_new_name(model_of(None), name)
        mu = moments.mu.T  # several functions, if there are, in front
        if diag:
            return pm.Normal(name, mu, pt.sqrt(moments.gamma), **kwargs)
        # As in pm.gp.Latent.conditional: a posterior covariance is often singular to rounding.
        kwargs.setdefault("method", "svd")
        cov = stabilize(moments.gamma, jitter * pt.mean(pt.diagonal(moments.gamma)))
        return pm.MvNormal(name, mu, cov=cov, **kwargs)

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
        Put new observations at new inputs into the model: what ``y`` would be where X is Xnew.

        It is to :meth:`likelihood` what :meth:`conditional` is to :meth:`prior`. In
        ``pm.gp.Marginal`` this is ``conditional(..., pred_noise=True)``; here the noise may be any
        likelihood. To predict from draws without changing the model, see :func:`predict`.

        Parameters
        ----------
        name : str
            Name of the variable.
        Xnew : array_like or pm.Data, shape (N, D)
            New inputs.
        likelihood : Likelihood, callable or str, optional
            The distribution of an observation: by default that of the only `likelihood` of this
            process. With several, the name of one. One with a parameter for each observation,
            such as an exposure, needs to be given anew for Xnew.
        given : dict, optional
            As in :meth:`conditional`.
        **kwargs
            Passed to the distribution's constructor, for example ``dims``.

        Returns
        -------
        y : TensorVariable, shape (N,)
        """
        return latents.predictive(name, [self], Xnew, likelihood, given=given, **kwargs)

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
            Values of the random variables, with the inducing values. For draws of a posterior, or
            of a Gaussian stage, use :func:`pymc_vsgp.predict`.
        given : dict, optional
            As in :meth:`conditional`.
        diag : bool
            Whether to return the variance at each input in place of the covariance.
        model : Model, optional
            By default the model on the context stack.

        Returns
        -------
        mean : ndarray, shape (N,), or (n_outputs, N) for several functions
        covariance : ndarray, shape (N, N), or (N,) with `diag`
            The functions of a process with several have the same one.
        """
        model = model_of(model)
        moments = self._conditional(Xnew, given, diag, "predict", model)
        mean, covariance = at_point.evaluate_at([moments.mu.T, moments.gamma], point, model)
        return mean, covariance

    def _require_prior(self, method: str) -> Prior:
        if self._prior is None:
            more = ", or for a component of a sum pass given={'gp': the_sum}"
            if method in ("likelihood", "potential"):
                more = "; a sum of processes needs one of its own"
            raise RuntimeError(
                f"{method} needs inducing values, and the process has none. Call prior first{more}."
            )
        return self._prior

    def _moments(
        self, prior: Prior, X: TensorVariable, diag=True, layout: Any = None, order: Any = None
    ) -> Moments:
        given, args = prior.kind.given(prior.u, self.cov_func, self._mean_at, X, layout)
        return ConditionalMoments.at(given, X, args, order) if diag else given.joint(X, args)

    def _conditional(
        self,
        Xnew: Any,
        given: dict[str, Any] | None,
        diag: bool,
        method: str = "conditional",
        model: pm.Model | None = None,
    ) -> Moments:
        # In a sum the inducing values belong to the total: their factor and their mean are the
        # total's, and only the covariance between f and u, and f's own prior, are the component's.
        source = conditioning_process(self, given)
        prior = source._require_prior(method)
        model = latents.model_with([source], model)
        Xnew = columns.coded_for(model, [source], Xnew, prior.kind.by, "Xnew")
        X, value = as_matrix(Xnew, "Xnew")
        if value is not None:
            what = "Xu" if prior.kind.inputs else "inducing"
            check_columns(value, prior.n_columns, "Xnew", what)
        names = column_names(Xnew, "Xnew", model, numbers=True)
        X, value = columns.in_order(model, [source], names, X, value, "Xnew")
        if isinstance(prior.kind, ByGroupPrior) and value is not None:
            prior.kind.cover(value, "Xnew")
        return check_graphs(self._moments(prior, X, diag), model, anew=True)
