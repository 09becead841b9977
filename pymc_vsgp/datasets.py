"""A few small real data sets, shipped with the package, and a door to others.

The shipped sets come back as tables whose ``attrs`` say what they are, where they are from, under
which license, and whom to cite. `load` downloads two others once, or reads those of the folder that
the environment variable PYMC_VSGP_DATA names.
"""

import os
import zipfile
import zlib

from importlib import resources
from pathlib import Path

import numpy as np
import pandas as pd

from pymc_vsgp.checks import check_number, kind
from pymc_vsgp.fetch import SOURCES, fetch, kept

__all__ = [
    "available",
    "coal_counts",
    "load",
    "load_air",
    "load_co2",
    "load_coal",
    "load_flights",
    "load_glass",
    "load_kilauea",
    "load_sids",
    "load_snelson1d",
]

_FOLDER_VARIABLE = "PYMC_VSGP_DATA"
_SUFFIXES = (".npz", ".csv.gz")


def _read_shipped(name: str) -> pd.DataFrame:
    """Read a shipped table, and its header lines ``# key: value`` into its ``attrs``."""
    file = resources.files("pymc_vsgp") / "data" / f"{name}.csv"
    with file.open(encoding="utf-8") as lines:
        table = pd.read_csv(lines, comment="#")
    with file.open(encoding="utf-8") as lines:
        for line in lines:
            if not line.startswith("#"):
                break
            key, _, value = line[1:].partition(":")
            table.attrs[key.strip()] = value.strip()
    return table


def load_coal() -> pd.DataFrame:
    """Load the dates of 191 explosions in British coal mines, 1851 to 1962.

    Returns
    -------
    pandas.DataFrame
        One column, `date`, in decimal years and in order. One date occurs twice. See `coal_counts`
        for counts in bins.

    Examples
    --------
    >>> from pymc_vsgp.datasets import load_coal
    >>> load_coal()["date"].agg(["min", "max"]).round(2).tolist()
    [1851.2, 1962.22]
    """
    return _read_shipped("coal")


def coal_counts(bins: int = 100) -> pd.DataFrame:
    """Count the explosions of `load_coal` in equal bins from the first to the last date.

    A hundred bins, with the bin's width as exposure, is the setting of Hensman et al. (2015).

    Parameters
    ----------
    bins : int
        The number of bins.

    Returns
    -------
    pandas.DataFrame
        Columns `year`, the middle of the bin; `count`; and `width`, in years.

    Examples
    --------
    >>> from pymc_vsgp.datasets import coal_counts
    >>> table = coal_counts()
    >>> len(table), int(table["count"].sum()), round(float(table["width"][0]), 4)
    (100, 191, 1.1102)
    """
    coal = load_coal()
    counts, edges = np.histogram(coal["date"], bins=check_number("bins", bins))
    table = pd.DataFrame(
        {"year": 0.5 * (edges[:-1] + edges[1:]), "count": counts, "width": np.diff(edges)}
    )
    table.attrs.update(coal.attrs)
    table.attrs["columns"] = "year, middle of the bin; count; width, in years"
    return table


def load_kilauea() -> pd.DataFrame:
    """Load the positions of 185 earthquakes under the summit of Kilauea, Hawaii.

    They are from nine hours of 5 June 2018, while the floor of the caldera sank.

    Returns
    -------
    pandas.DataFrame
        Columns `x` and `y`, in kilometers east and north of the middle of the window; `hours` since
        06:00 UTC; `depth_km`; and `magnitude`. ``attrs["window"]`` holds the window, the
        (low, high) of `x` and `y`.

    Examples
    --------
    >>> from pymc_vsgp.datasets import load_kilauea
    >>> quakes = load_kilauea()
    >>> len(quakes), quakes.attrs["window"]
    (185, {'x': (-3.5, 3.5), 'y': (-3.5, 3.5)})
    """
    table = _read_shipped("kilauea")
    table.attrs["window"] = {"x": (-3.5, 3.5), "y": (-3.5, 3.5)}
    return table


def load_snelson1d() -> pd.DataFrame:
    """Load the one-dimensional regression set of Snelson and Ghahramani (2006).

    Returns
    -------
    pandas.DataFrame
        200 observations; columns `x` and `y`.

    Examples
    --------
    >>> from pymc_vsgp.datasets import load_snelson1d
    >>> load_snelson1d().shape
    (200, 2)
    """
    return _read_shipped("snelson1d")


def load_glass() -> pd.DataFrame:
    """Load 214 fragments of glass, for binary or multi-class classification.

    Returns
    -------
    pandas.DataFrame
        Nine inputs: the refractive index `RI`, and the weight per cent of eight oxides, `Na` to
        `Fe`. Two targets: `type`, which is 1 or 2 (building windows, float processed or not), 3
        (vehicle windows), 5 (containers), 6 (tableware) or 7 (headlamps); and `window`, 1 for
        types up to 3 and 0 for the others. One observation is repeated.

    Examples
    --------
    >>> from pymc_vsgp.datasets import load_glass
    >>> load_glass()["window"].value_counts().tolist()
    [163, 51]
    """
    table = _read_shipped("glass")
    table["window"] = (table["type"] <= 3).astype("int64")
    table.attrs["columns"] += "; window, 1 for types 1 to 3"
    return table


def load_air() -> pd.DataFrame:
    """Load daily means of three pollutants at a station in Beijing, November 2013 to April 2014.

    For five weeks there is no NO2, as the instrument had failed.

    Returns
    -------
    pandas.DataFrame
        Columns `date`; `PM2.5`, `NO2` and `CO`, in micrograms in a cubic meter, nan where fewer
        than twelve hours of a day were measured.

    Examples
    --------
    >>> from pymc_vsgp.datasets import load_air
    >>> load_air().isna().sum().tolist()
    [0, 0, 38, 36]
    """
    table = _read_shipped("air")
    table["date"] = pd.to_datetime(table["date"])
    return table


def load_co2() -> pd.DataFrame:
    """Load monthly means of carbon dioxide in the air at Mauna Loa, 1958 to 2001.

    Returns
    -------
    pandas.DataFrame
        Columns `year`, the middle of the month in decimal years, and `co2`, in parts per million
        by volume. Five months are missing.

    Examples
    --------
    >>> from pymc_vsgp.datasets import load_co2
    >>> load_co2()["co2"].agg(["min", "max"]).tolist()
    [313.4, 373.8]
    """
    return _read_shipped("co2")


def load_flights() -> pd.DataFrame:
    """Load how many flights from Houston were late in 2011, by week and time of the day.

    Returns
    -------
    pandas.DataFrame
        Columns `week` of the year; `weekend`, 1 for Saturdays and Sundays; `hour`, the middle of
        two hours of scheduled departure; `flights`; and `late`, those of them that arrived more
        than 15 minutes late.

    Examples
    --------
    >>> from pymc_vsgp.datasets import load_flights
    >>> load_flights()[["flights", "late"]].sum().tolist()
    [222372, 44245]
    """
    return _read_shipped("flights")


def load_sids() -> pd.DataFrame:
    """Load sudden infant deaths in the counties of North Carolina, in two periods.

    Returns
    -------
    pandas.DataFrame
        Two rows for each of 100 counties. Columns `county`; `period`, 1974-78 or 1979-84; `x` and
        `y`, the centroid in kilometers; `births`; `nonwhite`, those that were not white; and
        `deaths`.

    Examples
    --------
    >>> from pymc_vsgp.datasets import load_sids
    >>> load_sids().groupby("period")["deaths"].sum().tolist()
    [667, 836]
    """
    return _read_shipped("sids")


def _folder() -> Path | None:
    """Return the folder of larger data sets, None if the user named none."""
    setting = os.environ.get(_FOLDER_VARIABLE)
    if not setting:
        return None
    folder = Path(setting).expanduser()
    if not folder.is_dir():
        raise FileNotFoundError(
            f"{_FOLDER_VARIABLE} is {setting!r}, which is not a folder. "
            "Set it to the folder that holds the .npz and .csv.gz files."
        )
    return folder


def _files() -> dict[str, Path]:
    """Return the file of each data set in the folder, by name."""
    folder = _folder()
    if folder is None:
        return {}
    return {
        path.name.removesuffix(suffix): path
        for path in sorted(folder.iterdir())
        for suffix in _SUFFIXES
        if path.name.endswith(suffix)
    }


def available() -> list[str]:
    """List the names that `load` takes: what it can download, and what the folder holds.

    Returns
    -------
    list of str
        The names, sorted.
    """
    return sorted({*SOURCES, *_files()})


def load(name: str) -> pd.DataFrame | dict[str, np.ndarray]:
    """Load a data set that does not ship with the package.

    The folder that the environment variable PYMC_VSGP_DATA names is looked at first, if it is set.
    Two sets are downloaded if they are not there, and kept in ``~/.cache/pymc-vsgp``, or below
    XDG_CACHE_HOME:

    * ``"beijing_air"`` (8 MB): readings of twelve stations, every hour from March 2013 to February
      2017. ``values[station, hour, column]`` is nan where one is missing. Zhang et al. (2017),
      UCI repository, doi:10.24432/C5RK5G, CC BY 4.0.
    * ``"lansing"`` (10 kB): `x`, `y` and `species` of 2251 trees in a square of 924 feet, the unit.
      Gerrard (1969), from R's spatstat.data, GPL.

    Parameters
    ----------
    name : str
        One of those, or a file of the folder, without its ``.npz`` or ``.csv.gz``.

    Returns
    -------
    pandas.DataFrame or dict of ndarray
        A table from ``.csv.gz``; arrays by name from ``.npz``.

    See Also
    --------
    available : The names.
    """
    files = _files()
    if not isinstance(name, str):
        raise TypeError(f"name is {kind(name)}, not a string. Take one of datasets.available().")
    if name in files:
        return _read(files[name])
    if name in SOURCES:
        try:
            return _read(kept(name))
        except (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error):
            return fetch(name)  # not there yet, or damaged
    raise FileNotFoundError(
        f"There is no data set {name!r}. Take one of {', '.join(available())}; "
        f"or name a folder that holds {name}.npz or {name}.csv.gz in {_FOLDER_VARIABLE}."
    )


def _read(path: Path) -> pd.DataFrame | dict[str, np.ndarray]:
    if path.suffix == ".npz":
        # Pickled objects could run code.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            return dict(arrays)
    return pd.read_csv(path)
