"""What a kernel of pm.gp is made of, and what is known of it."""

from pymc.gp import cov as pm_cov
from pymc.gp.cov import BaseCovariance


def parts_of(cov_func) -> list[BaseCovariance]:
    """Return the kernels that a sum, a product, a power or the like is made of, or itself.

    What is in a kernel that is not of pm.gp only that kernel knows.
    """
    if type(cov_func).__module__ != pm_cov.__name__:
        return [cov_func]
    within = [getattr(cov_func, name, None) for name in ("cov_func", "kernel")]
    within += getattr(cov_func, "_factor_list", [])
    found = [p for part in within if isinstance(part, BaseCovariance) for p in parts_of(part)]
    return found or [cov_func]


def is_free_of_noise(cov_func) -> bool:
    """Whether f at an input of the values is the value: no white noise is another at each row.

    A kernel that is not of pm.gp may have some.
    """
    parts = parts_of(cov_func)
    return all(type(p).__module__ == pm_cov.__name__ for p in parts) and not any(
        isinstance(p, pm_cov.WhiteNoise) for p in parts
    )


def is_stationary(cov_func) -> bool:
    """Whether a kernel is known to depend on differences of inputs alone."""
    if type(cov_func).__module__ != pm_cov.__name__:
        return False
    if isinstance(cov_func, pm_cov.Combination):
        factors = [x for x in cov_func._factor_list if isinstance(x, BaseCovariance)]
        return all(map(is_stationary, factors))
    return isinstance(cov_func, pm_cov.Stationary | pm_cov.WhiteNoise | pm_cov.Constant)
