"""Three classes in the plane: how well the free-form posterior was sampled, and how it differs.

Hensman et al. (2015), section 4.4, whose figures have no numbers: free-form contours are more
conservative than Gaussian ones, and functions are correlated across classes. This runs
`notebooks/three_classes.py` and keeps what it finds.
"""

import contextlib
import os
import pathlib
import runpy
import tempfile
import time

from unittest import mock

import matplotlib as mpl
import numpy as np

from common import arguments, write

NOTEBOOK = pathlib.Path(__file__).resolve().parents[2] / "notebooks" / "three_classes.py"


def run(smoke):
    """Return the notebook's variables; its figure goes to a folder that is removed."""
    mpl.use("Agg")
    variables = mock.patch.dict(os.environ, PYMC_VSGP_SMOKE=str(int(smoke)))
    with variables, tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        return runpy.run_path(str(NOTEBOOK))


def main(argv=None):
    options = arguments(__doc__, argv)
    began = time.perf_counter()
    found = run(options.smoke)
    options.draws, options.tune, options.chains = found["DRAWS"], found["TUNE"], 3
    every, p = found["everything"], found["probability"]
    results = {
        "rhat_max": every["r_hat"].max(),
        "ess_min": every["ess_bulk"].min(),
        "ess_lengthscale": every["ess_bulk"]["lengthscale"],
        "divergences": int(found["idata"]["sample_stats"]["diverging"].sum()),
        "lengthscale": every["mean"]["lengthscale"],
        "area_above": {
            str(level): {n: found["cell"] * (x.max(axis=1) > level).sum() for n, x in p.items()}
            for level in (0.95, 0.99)
        },
        "correlation": [found["correlation"].min(), found["correlation"].max()],
        "largest_difference": np.abs(p["Free form"] - p["Gaussian"]).max(),
    }
    settings = {name: found[name] for name in ("N", "M", "EPSILON", "SEED")}
    settings["backend"] = found["BACKEND"]
    print(results, flush=True)
    write("three_classes", options, settings, results, began)
    return results


if __name__ == "__main__":
    main()
