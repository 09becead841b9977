"""The data sets, against what the literature says of them."""

import base64
import dataclasses
import http.server
import io
import os
import threading
import zipfile

from importlib import resources

import numpy as np
import pandas as pd
import pytest

from pymc_vsgp import datasets, fetch

OXIDES = ["Na", "Mg", "Al", "Si", "K", "Ca", "Ba", "Fe"]
# Loader, rows, columns, sum over all numbers of the file.
SHIPPED = [
    (datasets.load_coal, 191, ["date"], 360806.1553730322),
    (datasets.load_air, 181, ["date", "PM2.5", "NO2", "CO"], 264586.8),
    (datasets.load_co2, 521, ["year", "co2"], 1208761.5183),
    (datasets.load_flights, 832, ["week", "weekend", "hour", "flights", "late"], 300729),
    (
        datasets.load_sids,
        200,
        ["county", "period", "x", "y", "births", "nonwhite", "deaths"],
        994966.2,
    ),
    (datasets.load_kilauea, 185, ["x", "y", "hours", "depth_km", "magnitude"], 1434.759),
    (datasets.load_snelson1d, 200, ["x", "y"], 527.7368021254),
    (
        datasets.load_glass,
        214,
        ["RI", *OXIDES, "type", "window"],
        22456.0302,
    ),
]


@pytest.mark.parametrize("load, rows, columns, total", SHIPPED)
def test_shipped(load, rows, columns, total):
    table = load()
    assert len(table) == rows
    assert list(table.columns) == columns
    assert table.isna().sum().sum() == (74 if load is datasets.load_air else 0)
    numbers = table.select_dtypes("number")
    assert numbers.sum().sum() == pytest.approx(total, rel=1e-12)
    assert {"title", "columns", "source", "license", "reference"} <= set(table.attrs)


def test_sids_are_those_of_cressie():
    # Cressie and Chan (1989), and table 6.1 of Cressie (1993): Anson has the highest rate.
    table = datasets.load_sids()
    assert table.groupby("county").size().eq(2).all()
    first = table[table["period"] == "1974-78"].set_index("county")
    assert first.loc["Anson", ["births", "nonwhite", "deaths"]].tolist() == [1570, 952, 15]
    assert (first["deaths"] / first["births"]).idxmax() == "Anson"
    assert (table["nonwhite"] <= table["births"]).all()
    # Wake is in the middle, Cherokee and Dare at the ends of the state.
    assert first["x"].idxmin() == "Cherokee" and first["x"].idxmax() == "Dare"


def test_tables_are_not_shared():
    first = datasets.load_coal()
    first["date"] = 0.0
    first.attrs.clear()
    assert datasets.load_coal()["date"].min() > 1851
    assert datasets.load_coal().attrs


def test_every_file_is_listed_with_its_license():
    folder = resources.files("pymc_vsgp") / "data"
    listing = (folder / "README.md").read_text(encoding="utf-8")
    files = [file.name for file in folder.iterdir() if file.name.endswith(".csv")]
    assert len(files) == len(SHIPPED)
    assert all(f"| `{name}` |" in listing for name in files)
    # Only licenses that go with that of the package.
    assert "GPL" not in "".join(load().attrs["license"] for load, *_ in SHIPPED)


def test_coal():
    date = datasets.load_coal()["date"]
    assert date.is_monotonic_increasing
    assert date.nunique() == 190
    # 15 March 1851 to 22 March 1962
    assert date.iloc[0] == pytest.approx(1851 + 74 / 365, abs=2 / 365)
    assert date.iloc[-1] == pytest.approx(1962 + 81 / 365, abs=2 / 365)


@pytest.mark.parametrize("bins", [1, 100, np.int64(333)])
def test_coal_counts(bins):
    date = datasets.load_coal()["date"]
    table = datasets.coal_counts(bins)
    assert len(table) == bins
    assert table["count"].sum() == 191
    assert table["width"].to_numpy() == pytest.approx(np.ptp(date) / bins)
    low = (table["year"] - table["width"] / 2).iloc[0]
    high = (table["year"] + table["width"] / 2).iloc[-1]
    assert (low, high) == pytest.approx((date.min(), date.max()))
    # Explosions became rare after about 1890 (Jarrett 1979).
    if bins > 1:
        early = table["year"] < 1890
        assert table.loc[early, "count"].mean() > 2 * table.loc[~early, "count"].mean()


@pytest.mark.parametrize("bins", [0, 2.5, "auto"])
def test_coal_counts_wrong_bins(bins):
    with pytest.raises(ValueError, match="bins is"):
        datasets.coal_counts(bins)


def test_kilauea():
    table = datasets.load_kilauea()
    assert not table[["x", "y"]].duplicated().any()
    for column, (low, high) in table.attrs["window"].items():
        assert table[column].between(low, high).all()
        # The window is 7 km wide, and most are under the caldera, which is 3 km wide.
        assert np.ptp(table[column]) > 6
        assert table[column].abs().quantile(0.75) < 2.0
    assert table["hours"].is_monotonic_increasing and table["hours"].between(0, 9).all()
    assert table["magnitude"].between(1.5, 4).all()
    assert table["depth_km"].between(-1.3, 4).all()  # the summit is 1.2 km high


def test_snelson1d():
    table = datasets.load_snelson1d()
    assert table["x"].between(0, 6).all()
    assert not table.duplicated().any()


def test_glass():
    table = datasets.load_glass()
    assert table["type"].value_counts().sort_index().to_dict() == {
        1: 70,
        2: 76,
        3: 17,
        5: 13,
        6: 9,
        7: 29,
    }
    assert table["window"].sum() == 163
    oxides = table[OXIDES].sum(axis=1)
    assert oxides.between(99, 101).all()
    assert table["RI"].between(1.51, 1.54).all()


class TestFolder:
    @pytest.fixture
    def folder(self, tmp_path, monkeypatch):
        np.savez_compressed(tmp_path / "numbers.npz", X=np.eye(3), y=np.arange(3))
        pd.DataFrame({"a": [1, 2], "b": [0.5, 1.5]}).to_csv(tmp_path / "table.csv.gz", index=False)
        (tmp_path / "README.md").write_text("not data")
        monkeypatch.setenv("PYMC_VSGP_DATA", str(tmp_path))
        return tmp_path

    def test_available(self, folder):
        assert datasets.available() == ["beijing_air", "lansing", "numbers", "table"]

    def test_arrays(self, folder):
        arrays = datasets.load("numbers")
        assert set(arrays) == {"X", "y"}
        np.testing.assert_array_equal(arrays["X"], np.eye(3))

    def test_table(self, folder):
        expected = pd.DataFrame({"a": [1, 2], "b": [0.5, 1.5]})
        pd.testing.assert_frame_equal(datasets.load("table"), expected)

    @pytest.mark.parametrize("name", ["wrong", "README", "numbers.npz", "../numbers"])
    def test_unknown_name(self, folder, name):
        with pytest.raises(
            FileNotFoundError, match="Take one of beijing_air, lansing, numbers, table;"
        ):
            datasets.load(name)

    def test_pickled_objects_are_refused(self, folder):
        np.savez(folder / "objects.npz", a=np.array([{}], dtype=object), allow_pickle=True)
        with pytest.raises(ValueError, match="allow_pickle"):
            datasets.load("objects")

    def test_not_set(self, monkeypatch):
        monkeypatch.delenv("PYMC_VSGP_DATA", raising=False)
        assert datasets.available() == ["beijing_air", "lansing"]
        with pytest.raises(FileNotFoundError, match="There is no data set 'numbers'. Take one of"):
            datasets.load("numbers")

    def test_not_a_folder(self, monkeypatch, tmp_path):
        monkeypatch.setenv("PYMC_VSGP_DATA", str(tmp_path / "missing"))
        for call in (datasets.available, lambda: datasets.load("numbers")):
            with pytest.raises(FileNotFoundError, match="which is not a folder"):
                call()


# lansing <- structure(list(window = owin, n = 3L, x = c(0.078, 0.5, 1), y = c(0.091, 0, 0.25),
#   markformat = "vector", marks = factor(c("maple", "hickory", "maple"))), class = "ppp")
# saved by R 4.2.2, in versions 2 (bzip2) and 3 (gzip).
SAVED = {
    2: """
QlpoOTFBWSZTWXwi67gAARL////zSQAACBAAxAgQQC/v3+AAhAACAIAYgAEBQCBAAMCBsAE4LURMqNplPSPUPU9T
TQ0DQAA2poaZqEU0wnqnqYTTaj1MhkNDQAGaTQwJEiTRiI9JkyDQAaaMRkDQG4+/Wgg3RvWhA22y3fTK6522XZ4a
J0l2c7tATBponOBL909NP9KINXAyDx006r19AsI0Sy55KaZOIoKimQJBNpB6VbMQYHtti8yx4JFcrWU674FDQlUk
JgkNA4ZDRDRDEguNABn64UnzsbQ2KF+e1yRT2svWaPrJ0aNePKMyYtrY3sx5ewoOcc2cbVEQqhSiVoOiMHNx9QTA
w4LnFiaLLMCxuwE2MiUgVWd9BQO0QQbWcCKYxb28U4jaxCFDw0cTAgM0gwQx+UQIKRF4gG/JKmOFqlAWIcZLsT+q
6qfgfXk8aqyM9xgmN4C8XckU4UJB8Iuu4A==""",
    3: """
H4sIAAAAAAAAA3VSsU7DMBB14iS0kYqQkPgJxMTCFgbEwoZA6moVp0RxbMtx2uYLWPgFZnYY+ANGxMrWPygbW8sl
sUNJ20iW713u3vM9+/pieBoOQ4QQRp7rIuxDiPzbm8uTMwQZAA7yUB/2PUZ4nvAxlB4CDMzuwTpYK+srOtKEjxkF
sA+r4qi/6NtGu/I1Ie4QerEQeiNHqTY8zvnj3PT/O6/PSUZz04hNsldNUDCiDA4kKxRhBoVZwXQiWUJVl2zESJ53
TtEreKIrFYiXTYO7MjWePakuJbViMwXGtKhcR37FlTckeNUR8sQ04Y0IGtT5xqZqfBy9/nx8HT0cR/OtNuPo7er9
efH00tr92f5f1wgmcG8C5sYDw+4aJbfjRcDohDJrhmufx30ySoUq7TwZkdUT2DpPEJNGa8O2wFbAwHdiapDDbTCz
QdleGVFpLFRG9J+ySnc5iaWUxsjlLzmhXQr8AgAA""",
}
STATIONS, HOURS = ("Changping", "Wanliu"), 4


def air_archive():
    """An archive of the layout of the UCI repository, and the readings in it."""
    values = np.arange(2 * HOURS * 11, dtype="float32").reshape(2, HOURS, 11) / 8
    values[0, 1, 2] = values[1, 3, 10] = np.nan
    inner = io.BytesIO()
    with zipfile.ZipFile(inner, "w") as tables:
        for station, readings in zip(STATIONS, values, strict=True):
            table = pd.DataFrame(readings, columns=fetch.READINGS)
            table.insert(0, "No", np.arange(1, HOURS + 1))
            table.insert(12, "wd", "NNW")
            text = table.assign(station=station).to_csv(index=False, na_rep="NA")
            folder = "PRSA_Data_20130301-20170228"
            tables.writestr(f"{folder}/PRSA_Data_{station}_20130301-20170228.csv", text)
    outer = io.BytesIO()
    with zipfile.ZipFile(outer, "w") as both:
        both.writestr("data.csv", "not,these\n1,2\n")
        both.writestr("PRSA2017_Data_20130301-20170228.zip", inner.getvalue())
    return outer.getvalue(), values


class TestDownloads:
    @pytest.fixture
    def serve(self, tmp_path, monkeypatch):
        """Have a server on this machine send bytes for a data set; count how often."""
        monkeypatch.delenv("PYMC_VSGP_DATA", raising=False)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        asked, servers = [], []

        def start(name, content, is_whole=None, said=None, status=200):
            class Handler(http.server.BaseHTTPRequestHandler):
                def do_GET(self):
                    asked.append(self.path)
                    self.send_response(status)
                    self.send_header("Content-Length", str(said or len(content)))
                    self.end_headers()
                    self.wfile.write(content)

                def log_message(self, *_):
                    pass

            server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
            threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
            servers.append(server)
            source = fetch.SOURCES[name]
            changed = dataclasses.replace(
                source,
                url=f"http://127.0.0.1:{server.server_port}/{name}",
                is_whole=is_whole or source.is_whole,
            )
            monkeypatch.setitem(fetch.SOURCES, name, changed)
            return asked

        yield start
        for server in servers:
            server.shutdown()
            server.server_close()

    def test_air(self, serve, tmp_path, capfd):
        archive, values = air_archive()
        asked = serve("beijing_air", archive, lambda data: data["values"].shape == (2, HOURS, 11))
        for _ in range(2):  # from the network, and from the file
            air = datasets.load("beijing_air")
            np.testing.assert_array_equal(air["values"], values)
            assert air["columns"].tolist() == fetch.READINGS
            assert air["stations"].tolist() == list(STATIONS)
        assert len(asked) == 1
        assert "Downloading beijing_air, kB" in capfd.readouterr().err
        assert [f.name for f in (tmp_path / "cache" / "pymc-vsgp").iterdir()] == ["beijing_air.npz"]

    @pytest.mark.parametrize("version", SAVED)
    def test_trees(self, serve, version):
        asked = serve("lansing", base64.b64decode(SAVED[version]), lambda data: len(data) == 3)
        for _ in range(2):
            trees = datasets.load("lansing")
            assert trees["species"].tolist() == ["maple", "hickory", "maple"]
            assert trees["x"].tolist() == [0.078, 0.5, 1.0]
            assert trees["y"].tolist() == [0.091, 0.0, 0.25]
        assert len(asked) == 1

    @pytest.mark.parametrize("part", [0, 0.5, 0.9])
    @pytest.mark.parametrize("name", fetch.SOURCES)
    def test_damaged_file_is_downloaded_again(self, serve, name, part):
        content = air_archive()[0] if name == "beijing_air" else base64.b64decode(SAVED[2])
        asked = serve(name, content, lambda data: True)
        first = datasets.load(name)
        whole = fetch.kept(name).read_bytes()
        fetch.kept(name).write_bytes(whole[: int(part * len(whole))])
        again = datasets.load(name)
        assert len(asked) == 2 and fetch.kept(name).stat().st_size > part * len(whole)
        assert sorted(again) == sorted(first)

    def test_folder_comes_first(self, serve, tmp_path, monkeypatch):
        asked = serve("lansing", b"")
        pd.DataFrame({"x": [1]}).to_csv(tmp_path / "lansing.csv.gz", index=False)
        monkeypatch.setenv("PYMC_VSGP_DATA", str(tmp_path))
        assert datasets.load("lansing").shape == (1, 1)
        assert not asked

    @pytest.mark.parametrize("name", fetch.SOURCES)
    @pytest.mark.parametrize(
        "content", [b"<html>moved</html>", b"", None], ids=["page", "", "part"]
    )
    def test_wrong_content(self, serve, tmp_path, name, content):
        if content is None:  # of the right kind, and not all of it
            content = air_archive()[0] if name == "beijing_air" else base64.b64decode(SAVED[3])
        serve(name, content)
        with pytest.raises(
            ValueError, match=f"is not '{name}' as it was. Try again, or put {name}"
        ):
            datasets.load(name)
        assert not (tmp_path / "cache").exists()

    @pytest.mark.parametrize("how", [{"said": 10_000}, {"status": 404}])
    def test_failed_download(self, serve, tmp_path, how):
        serve("lansing", base64.b64decode(SAVED[2]), **how)
        with pytest.raises(ConnectionError, match="could not be downloaded from .* Connect to the"):
            datasets.load("lansing")
        assert not (tmp_path / "cache").exists()

    def test_no_network(self, serve, monkeypatch):
        nowhere = dataclasses.replace(fetch.SOURCES["lansing"], url="http://127.0.0.1:1/lansing")
        monkeypatch.setitem(fetch.SOURCES, "lansing", nowhere)
        with pytest.raises(ConnectionError, match="or put lansing.csv.gz into a folder"):
            datasets.load("lansing")

    def test_no_place_to_keep_it(self, serve, tmp_path):
        (tmp_path / "cache").write_text("a file")
        serve("lansing", base64.b64decode(SAVED[2]), lambda data: len(data) == 3)
        with pytest.warns(UserWarning, match="could not be kept .* Set XDG_CACHE_HOME"):
            assert len(datasets.load("lansing")) == 3


@pytest.mark.skipif(
    "PYMC_VSGP_DATA" not in os.environ,
    reason="PYMC_VSGP_DATA does not name the folder of larger data sets",
)
def test_real_folder():
    names = datasets.available()
    assert names
    smallest = [name for name in ("coal", "finpines", "snelson1d") if name in names]
    for name in smallest:
        assert len(datasets.load(name))
