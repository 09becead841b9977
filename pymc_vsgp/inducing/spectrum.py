"""Spectral densities of the kernels of pm.gp, products over separate inputs included."""

from functools import reduce
from operator import mul

import pytensor.tensor as pt

from pymc.gp.cov import Add, BaseCovariance, Covariance, Prod
from pytensor.tensor.variable import TensorVariable

__all__ = ["spectral_density"]


def spectral_density(cov_func: BaseCovariance, omega: TensorVariable) -> TensorVariable:
    r"""Return the spectral density of a stationary kernel at the rows of `omega`.

    With the convention :math:`k(x) = (2\pi)^{-D} \int S(\omega) e^{i \omega x} d\omega`. What
    pm.gp's own method lacks is the product of kernels of separate inputs.
    """
    density, dims = _density(cov_func, omega)
    every = set(range(omega.type.shape[1]))
    if dims != every:
        raise ValueError(
            f"The kernel depends on the columns {sorted(dims)} of {len(every)} alone, so its "
            "spectral density in all of them does not exist. Use a process for those columns: "
            "one for each term of an additive kernel."
        )
    return density


def _density(cov, omega):
    """Return the density in the inputs that a kernel depends on, and these inputs."""
    if isinstance(cov, Add | Prod):
        parts = [_density(f, omega) for f in cov._factor_list if isinstance(f, BaseCovariance)]
        scalars = [pt.as_tensor(f) for f in cov._factor_list if not isinstance(f, BaseCovariance)]
        if parts and all(s.type.ndim == 0 or s.type.broadcastable == (True,) for s in scalars):
            densities, dims = [d for d, _ in parts], [s for _, s in parts]
            scalars = [s.reshape(()) if s.type.ndim else s for s in scalars]
            if isinstance(cov, Add) and not scalars and all(d == dims[0] for d in dims):
                return sum(densities[1:], densities[0]), dims[0]
            if isinstance(cov, Prod) and sum(map(len, dims)) == len(set().union(*dims)):
                return reduce(mul, [*scalars, *densities]), set().union(*dims)
    elif isinstance(cov, Covariance) and hasattr(cov, "power_spectral_density"):
        dims = [int(d) for d in cov.active_dims]
        try:
            return cov.power_spectral_density(omega[:, dims]), set(dims)
        except NotImplementedError:
            pass
    raise ValueError(
        f"The kernel has no spectral density in closed form: {type(cov).__name__}. Use stationary "
        "ones of pm.gp.cov: their multiples, sums, and products over separate columns."
    )
