"""Data sets that do not ship: where they are, how they are read, and where they are kept."""

import bz2
import gzip
import http.client
import io
import lzma
import os
import struct
import tempfile
import urllib.request
import warnings
import zipfile

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pymc_vsgp.progress import progress

READINGS = ["PM2.5", "PM10", "SO2", "NO2", "CO", "O3", "TEMP", "PRES", "DEWP", "RAIN", "WSPM"]
BLOCK = 2**16  # bytes


def _tables(archive: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the tables of stations, from an archive that may hold others."""
    with zipfile.ZipFile(io.BytesIO(archive)) as members:
        for path in sorted(members.namelist()):
            name = path.rpartition("/")[2]
            if name.endswith(".zip"):
                yield from _tables(members.read(path))
            elif name.startswith("PRSA_Data_") and name.endswith(".csv"):
                yield name, members.read(path)


def _beijing_air(archive: bytes) -> dict[str, np.ndarray]:
    """Return the hourly readings of each station in an array."""
    tables = {name.split("_")[2]: table for name, table in _tables(archive)}
    stations = sorted(tables)
    values = [pd.read_csv(io.BytesIO(tables[s]))[READINGS].to_numpy("float32") for s in stations]
    return {
        "values": np.stack(values),
        "columns": np.array(READINGS),
        "stations": np.array(stations),
    }


def _lansing(file: bytes) -> pd.DataFrame:
    """Return the marked points of a spatstat pattern."""
    trees = _read_rda(file)["lansing"]
    return pd.DataFrame({"x": trees["x"], "y": trees["y"], "species": trees["marks"]})


def _read_rda(file: bytes) -> dict[str, Any]:
    """Read objects that R saved, if they are lists, vectors and factors.

    The format is in the section "Serialization formats" of the R Internals manual.
    """
    for start, module in ((b"\x1f\x8b", gzip), (b"BZh", bz2), (b"\xfd7zXZ", lzma)):
        if file.startswith(start):
            file = module.decompress(file)
    magic, stream = file[:7], io.BytesIO(file[7:])
    if magic not in (b"RDX2\nX\n", b"RDX3\nX\n"):
        raise ValueError("This is not a binary file of R's save().")

    def integer():
        return struct.unpack(">i", stream.read(4))[0]

    def array(dtype):
        n = integer()
        return np.frombuffer(stream.read(n * np.dtype(dtype).itemsize), dtype).astype(dtype[1:])

    def pairs(flags):
        """Read a list whose items have names, as attributes are."""
        found = {}
        while flags & 0xFF != 254:
            if flags & 0x200:
                item(integer())
            name = item(integer())
            found[name] = item(integer())
            flags = integer()
        return found

    symbols: list[str] = []

    def item(flags):
        kind = flags & 0xFF
        if kind == 254:
            return None
        if kind == 255:
            return symbols[(flags >> 8) - 1]
        if kind == 1:
            symbols.append(item(integer()))
            return symbols[-1]
        if kind == 2:
            return pairs(flags)
        if kind == 9:
            return stream.read(max(integer(), 0)).decode()
        if kind in (10, 13):
            value = array(">i4")
        elif kind == 14:
            value = array(">f8")
        elif kind in (16, 19):
            value = [item(integer()) for _ in range(integer())]
        else:
            raise ValueError(f"The file holds an object of type {kind}, which is not read here.")
        attributes = pairs(integer()) if flags & 0x200 else {}
        if "levels" in attributes:
            return np.array(attributes["levels"])[value - 1]
        if "names" in attributes:
            return dict(zip(attributes["names"], value, strict=True))
        return value

    version, _, _ = integer(), integer(), integer()
    if version == 3:
        stream.read(integer())  # the encoding
    return item(integer())


@dataclass(frozen=True)
class Source:
    """A data set at an address: what reads it, and what tells that it is whole."""

    url: str
    read: Callable[[bytes], Any]
    suffix: str
    is_whole: Callable[[Any], bool]


SOURCES = {
    # Zhang et al. (2017), CC BY 4.0, doi:10.24432/C5RK5G; the number of readings of pollutants.
    "beijing_air": Source(
        "https://archive.ics.uci.edu/static/public/501/beijing+multi+site+air+quality+data.zip",
        _beijing_air,
        ".npz",
        lambda data: (
            data["values"].shape == (12, 35064, 11)
            and np.isfinite(data["values"][..., :6]).sum() == 2_454_305
        ),
    ),
    # Gerrard (1969), GPL (>= 2), at one commit.
    "lansing": Source(
        "https://raw.githubusercontent.com/spatstat/spatstat.data/"
        "2d8f2f6b88de304bfb1bcf10df5dbde4a0c34e49/data/lansing.rda",
        _lansing,
        ".csv.gz",
        lambda data: len(data) == 2251 and (data["species"] == "hickory").sum() == 703,
    ),
}


def kept(name: str) -> Path:
    """Return the file in which a data set is kept once it has been downloaded."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    return cache / "pymc-vsgp" / f"{name}{SOURCES[name].suffix}"


def fetch(name: str) -> Any:
    """Download a data set, and keep it."""
    source = SOURCES[name]
    otherwise = f"or put {name}{source.suffix} into a folder, and name that in PYMC_VSGP_DATA."
    try:
        content = _download(name, source.url)
    except (OSError, http.client.HTTPException) as error:
        raise ConnectionError(
            f"{name!r} could not be downloaded from {source.url}: {error}. "
            f"Connect to the network, {otherwise}"
        ) from error
    try:
        data = source.read(content)
        whole = source.is_whole(data)
    except Exception as error:  # anything may have been sent
        raise ValueError(_unknown(name, source.url, otherwise)) from error
    if not whole:
        raise ValueError(_unknown(name, source.url, otherwise))
    try:
        _keep(kept(name), data)
    except OSError as error:
        warnings.warn(
            f"{name!r} could not be kept in {kept(name).parent}: {error}. "
            "Set XDG_CACHE_HOME to a folder that can be written to.",
            stacklevel=3,
        )
    return data


def _unknown(name: str, url: str, otherwise: str) -> str:
    return f"What {url} sent is not {name!r} as it was. Try again, {otherwise}"


def _download(name: str, url: str) -> bytes:
    """Return what an address holds, all of it."""
    request = urllib.request.Request(url, headers={"User-Agent": "pymc-vsgp"})
    with urllib.request.urlopen(request, timeout=30) as response:
        length = response.headers.get("Content-Length")
        total = None if length is None else -(-int(length) // 1024)
        blocks = []
        with progress(f"Downloading {name}, kB", total, True) as advance:
            while block := response.read(BLOCK):
                blocks.append(block)
                advance(-(-len(block) // 1024))
    content = b"".join(blocks)
    if length is not None and len(content) != int(length):
        raise OSError(f"{len(content)} of {length} bytes came")
    return content


def _keep(path: Path, data: Any) -> None:
    """Write a file that is there as a whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        try:
            if path.suffix == ".npz":
                np.savez_compressed(file, **data)
            else:
                data.to_csv(file, index=False, compression="gzip")
            file.close()
            os.replace(file.name, path)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise
