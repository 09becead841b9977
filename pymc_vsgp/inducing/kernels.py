"""What a kernel of pm.gp is made of, and what is known of it."""

import warnings

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt

from pymc.gp import cov as pm_cov
from pymc.gp.cov import BaseCovariance

from pymc_vsgp.checks import PACKAGE, known_value
from pymc_vsgp.likelihoods.base import known_shape

LITTLE = 1e-3  # white noise, in the units of the function


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


def check_methods(cov_func) -> None:
    """Raise where a class of one's own lacks one of the two methods of a kernel."""
    for part in map(type, parts_of(cov_func)):
        if part.__call__ is not BaseCovariance.__call__:
            continue
        for name, todo in (
            ("full(X, Xs)", "the covariance of the rows of X and Xs"),
            ("diag(X)", "the variance at each row"),
        ):
            method = name.partition("(")[0]
            if getattr(part, method) is getattr(BaseCovariance, method):
                raise TypeError(f"{part.__name__} has no {name}. Define the method: {todo}.")


def check_distinct_places(Xu: np.ndarray, active: Sequence[int], names: Any) -> None:
    """Raise if two rows of `Xu` are one place in the columns of the kernel, if it has any."""
    if not len(active):
        return
    distinct = len(np.unique(Xu[:, list(active)], axis=0))
    if distinct < len(Xu):
        todo = f"Xu[np.unique(Xu[:, {active}], axis=0, return_index=True)[1]]"
        if names is not None:
            todo = f"Xu.drop_duplicates({[names[d] for d in active]})"
        raise ValueError(
            f"The {len(Xu)} rows of Xu are {distinct} places in the columns {active} "
            "of the kernel, so their covariance is singular. "
            f"Pass one row for each place: {todo}."
        )


def codes_of(cov_func) -> dict[int, int]:
    """Return the columns that have codes of outputs, with how many codes there are."""
    parts = [p for p in parts_of(cov_func) if isinstance(p, pm_cov.Coregion)]
    found = {int(p.active_dims[0]): known_shape(pt.diag(p.B))[0] for p in parts}
    return {column: n for column, n in found.items() if n is not None}


def wrong_codes(X: np.ndarray, codes: Mapping[int, int]) -> str | None:
    """Say which row has a code that is none: -1 would be the last output, and 1.7 the second."""
    for column, n in codes.items():
        code = X[:, column]
        bad = np.flatnonzero(~((code >= 0) & (code < n) & (code == np.floor(code))))
        if bad.size:
            return (
                f"has {code[bad[0]]:g} in row {bad[0]} of column {column}, which has the codes of "
                f"pm.gp.cov.Coregion. Pass whole numbers from 0 to {n - 1}."
            )
    return None


def check_codes(X: np.ndarray, codes: Mapping[int, int], what: str) -> None:
    """Raise where a row has no output."""
    if wrong := wrong_codes(X, codes):
        raise ValueError(f"{what} {wrong}")


def has_noise_of_its_own(cov_func) -> bool:
    """Whether a part of a sum is white noise."""
    if isinstance(cov_func, pm_cov.Add):
        return any(map(has_noise_of_its_own, cov_func._factor_list))
    return isinstance(cov_func, pm_cov.WhiteNoise)


def is_free_of_noise(cov_func) -> bool:
    """Whether f at an input of the values is the value: no white noise is another at each row.

    A kernel that is not of pm.gp may have some.
    """
    parts = parts_of(cov_func)
    return all(type(p).__module__ == pm_cov.__name__ for p in parts) and not any(
        isinstance(p, pm_cov.WhiteNoise) for p in parts
    )


def warn_of_white_noise(cov_funcs: Sequence) -> None:
    """Warn of noise at each row that inducing values say nothing of: no draw of u explains data.

    Little of it, fixed, is what some add for Cholesky factors.
    """
    parts = [p for cov_func in cov_funcs for p in parts_of(cov_func)]
    noise = [p.sigma for p in parts if isinstance(p, pm_cov.WhiteNoise)]
    known = [known_value(pt.as_tensor(sigma)) for sigma in noise]
    if any(sigma is None or (np.abs(sigma) > LITTLE).any() for sigma in known):
        warnings.warn(
            "White noise in the kernel is independent of the inducing values, so it explains no "
            "observation, and a free scale goes to zero. Leave it out, and give the likelihood "
            "that scale: Gaussian(pm.math.sqrt(sigma**2 + scale**2)), or a family with "
            "overdispersion.",
            UserWarning,
            skip_file_prefixes=PACKAGE,
        )


def is_stationary(cov_func) -> bool:
    """Whether a kernel is known to depend on differences of inputs alone."""
    if type(cov_func).__module__ != pm_cov.__name__:
        return False
    if isinstance(cov_func, pm_cov.Combination):
        factors = [x for x in cov_func._factor_list if isinstance(x, BaseCovariance)]
        return all(map(is_stationary, factors))
    return isinstance(cov_func, pm_cov.Stationary | pm_cov.WhiteNoise | pm_cov.Constant)
