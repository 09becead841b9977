"""Draws of a posterior, and the data that were kept with them."""

import warnings

from typing import Any

import numpy as np
import xarray as xr

from pymc_vsgp.checks import PACKAGE, check_number, kind


class Draws:
    """Draws of a posterior, and the data that were kept with them.

    Parameters
    ----------
    idata : DataTree or Dataset
        With the group ``posterior``, or that group itself.
    num_samples : int, optional
        How many draws to use, spread evenly over each chain. By default all.
    """

    def __init__(self, idata: Any, num_samples: int | None = None):
        posterior, self.constant, self.observed = idata, None, None
        self._stage: xr.Dataset | None = None
        if isinstance(idata, xr.DataTree):
            whole, group = idata, idata.children.get("posterior")
            if _is_alone(idata):
                whole, group = idata.parent, idata
            if group is None:
                raise ValueError(
                    f"The draws have the groups {list(idata.children)}, but no posterior. "
                    "Pass what vsgp.sample or pm.sample returned."
                )
            posterior = group.to_dataset()
            self.constant = _data_of(whole, "constant_data")
            self.observed = _data_of(whole, "observed_data")
            self._stage = _group(whole, "gaussian_stage")
        if not isinstance(posterior, xr.Dataset):
            raise TypeError(
                f"The draws are of type {type(idata).__name__}, not a DataTree. "
                "Pass what vsgp.sample or pm.sample returned."
            )
        if "draw" not in posterior.dims or "chain" not in posterior.dims:
            raise ValueError(
                f"The draws have the dimensions {list(posterior.dims)}, but chain and draw are "
                "needed. Pass the posterior as it came from the sampler, not stacked."
            )
        if num_samples is not None:
            posterior = _thin(posterior, num_samples)
        self.posterior = posterior
        self.shape = (posterior.sizes["chain"], posterior.sizes["draw"])
        self.n = self.shape[0] * self.shape[1]
        if self.n == 0:
            raise ValueError("There are no draws. Pass some, or sample again.")
        self._flat: dict[str, np.ndarray] = {}

    def values(self, name: str) -> np.ndarray:
        """Draws of a variable, chains one after the other."""
        if name not in self._flat:
            if name not in self.posterior:
                raise ValueError(
                    f"The posterior has no draws of {name!r}, which the model needs. "
                    + self._how_to_get(name)
                )
            array = self.posterior[name].transpose("chain", "draw", ...).values
            if (bad := ~np.isfinite(array)).any():
                raise ValueError(
                    f"{bad.sum()} of {array.size} numbers in the draws of {name!r} are NaN or "
                    "infinite. Drop these draws with idata.isel, or sample again."
                )
            self._flat[name] = array.reshape(self.n, *array.shape[2:])
        return self._flat[name]

    def _how_to_get(self, name: str) -> str:
        stage = self._stage
        if stage is not None and "inducing_seed" in stage.attrs and f"{name}_mean" in stage:
            # A store lacks inducing values that were integrated out.
            return "Open the draws with vsgp.open_draws(path, model=model), which draws it, too."
        return "Sample it too, or fix it with pm.do before you pass the model."

    def unstack(self, array: np.ndarray) -> np.ndarray:
        """Split the first axis into chains and draws."""
        return array.reshape(*self.shape, *array.shape[1:])

    @property
    def coords(self) -> dict[str, Any]:
        """Labels of chains and draws."""
        return {d: self.posterior[d].values for d in ("chain", "draw") if d in self.posterior}


def require_tree(idata: Any) -> None:
    """Raise TypeError unless there are groups that others can go beside."""
    tree = isinstance(idata, xr.DataTree)
    alone = tree and _is_alone(idata)
    if alone or not tree:
        raise TypeError(
            f"The draws are {'the posterior alone' if alone else kind(idata)}, and the groups of a "
            "DataTree are needed. Pass what vsgp.sample or pm.sample returned."
        )


def _is_alone(tree: xr.DataTree) -> bool:
    """Whether this is a posterior, and not the tree of one."""
    return "draw" in tree.dims and "posterior" not in tree.children


def write_beside(idata: xr.DataTree, group: str, new: xr.Dataset, of: str) -> None:
    """Write variables into a group, beside what is there `of` the same; overwrite all else."""
    old = xr.Dataset()
    if group in idata.children:
        old = idata[group].to_dataset().drop_vars(list(new.data_vars), errors="ignore")
    if old.data_vars:
        try:
            if any(_differ(a, b) for a in old.data_vars.values() for b in new.data_vars.values()):
                raise ValueError
            both = [old, new]
            new = xr.merge(both, join="exact", compat="equals", combine_attrs="no_conflicts")
        except ValueError:
            warnings.warn(
                f"The group {group} was for {of}, and is overwritten.", skip_file_prefixes=PACKAGE
            )
    idata[group] = xr.DataTree(new)


def _differ(one: xr.DataArray, other: xr.DataArray) -> bool:
    """Whether two variables are of other inputs along a dimension that both have."""
    words = [v.attrs.get("inputs") for v in (one, other)]
    shared = set(one.dims) & set(other.dims) - {"chain", "draw"}
    return None not in words and words[0] != words[1] and bool(shared)


def _group(idata: xr.DataTree | None, name: str) -> xr.Dataset | None:
    """Return a group; a posterior that was taken out of its tree is beside none."""
    return idata[name].to_dataset() if idata is not None and name in idata.children else None


def _data_of(idata: xr.DataTree | None, name: str) -> xr.Dataset | None:
    """Return a group of data; runs that xr.concat joined have it for each of them."""
    data = _group(idata, name)
    if data is None or "chain" not in data.dims:
        return data
    first, *others = (data.isel(chain=i, drop=True) for i in range(data.sizes["chain"]))
    # What NUTS had for coordinates may differ: draws are of inducing values in any of them.
    read = [n for n in first if "_sites_" not in str(n)]
    for other in others:
        if changed := [n for n in read if not first[n].equals(other[n])]:
            raise ValueError(
                f"The draws are of runs that differ in {changed[0]!r}. "
                "Join runs of the same model and data."
            )
    return first


def _thin(posterior: xr.Dataset, num_samples: int) -> xr.Dataset:
    n = posterior.sizes["draw"]
    wanted = min(-(-check_number("num_samples", num_samples) // posterior.sizes["chain"]), n)
    return posterior.isel(draw=np.unique(np.linspace(0, n - 1, wanted).round().astype(int)))
