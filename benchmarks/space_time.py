"""Counts at sites and times, some missing, with a separable kernel: each type beside LatentKron.

Usage: ``python space_time.py [kron|kronecker|neighbors|features] [--sites 40] [--times 100]``. Each
adds its line to `results/space_time.md`; run `kron` first: others say how far they are from it.
`pm.gp.LatentKron` is exact, and needs every site at every time. Seconds are of one core, as the
process itself counts them, with compiling. The function is a draw of the kernel; scores are of the
logarithm of the rate in all cells, seen or not.
"""

import argparse
import json

import envs
import numpy as np

from rough_counts import scores
from rough_map import Clock, add

RESULTS = envs.HERE / "results" / "space_time.json"
KEPT = envs.HERE / ".cache" / "space_time"
LEVEL, SD, SPACE, TIME, MISSING = 1.0, 0.7, 0.3, 0.05, 0.25
NEAR = (SPACE, SPACE, TIME)  # units in which neighbors are near: guesses of the lengthscales


def simulate(n_sites, n_times):
    """Sites, times, all cells, which are seen, counts, and the function."""
    rng = np.random.default_rng(1)
    sites, times = rng.uniform(size=(n_sites, 2)), np.linspace(0.0, 1.0, n_times)[:, None]
    roots = [
        np.linalg.cholesky(matern32(x, ls) + 1e-9 * np.eye(len(x)))
        for x, ls in ((sites, SPACE), (times, TIME))
    ]
    f = LEVEL + SD * roots[0] @ rng.normal(size=(n_sites, n_times)) @ roots[1].T
    cells = np.column_stack([np.repeat(sites, n_times, axis=0), np.tile(times, (n_sites, 1))])
    seen = np.sort(rng.permutation(f.size)[: round((1.0 - MISSING) * f.size)])
    return sites, times, cells, seen, rng.poisson(np.exp(f.ravel()[seen])), f.ravel()


def matern32(x, ls):
    """The kernel of one part, in numpy."""
    r = np.sqrt(3.0 * ((x[:, None] - x) ** 2).sum(axis=-1)) / ls
    return (1.0 + r) * np.exp(-r)


def parameters(space, time):
    """The mean, and the kernels of space and of time, which take these arguments."""
    import pymc as pm

    level, sd = pm.Normal("level", 0.0, 3.0), pm.HalfNormal("sd", 2.0)
    ls_space, ls_time = pm.LogNormal("space", -1.0, 1.0), pm.LogNormal("time", -2.0, 1.0)
    matern = pm.gp.cov.Matern32
    kernels = [sd**2 * matern(**space, ls=ls_space), matern(**time, ls=ls_time)]
    return pm.gp.mean.Constant(level), kernels


def kron(sites, times, cells, seen, y, draws):
    """The exact process, by NUTS."""
    import pymc as pm

    clock = Clock()
    with pm.Model():
        mean, kernels = parameters({"input_dim": 2}, {"input_dim": 1})
        f = pm.gp.LatentKron(mean_func=mean, cov_funcs=kernels).prior("f", Xs=[sites, times])
        pm.Poisson("y", pm.math.exp(f[seen]), observed=y)
        clock("model")
        idata = pm.sample(
            draws // 4, tune=draws // 4, chains=4, cores=1, nuts_sampler="nutpie", random_seed=1
        )
        clock("sample")
    return "`pm.gp.LatentKron`, exact", idata, idata["posterior"]["f"].values, clock.seconds


def sparse(kind):
    """Return the function that fits one of our types."""

    def run(sites, times, cells, seen, y, draws):
        import pymc as pm

        import pymc_vsgp as vsgp

        clock = Clock()
        with pm.Model():
            columns = [{"input_dim": 3, "active_dims": of} for of in ([0, 1], [2])]
            mean, (space, time) = parameters(*columns)
            cov = space * time
            gp = vsgp.VariationalSparse(mean_func=mean, cov_func=cov)
            if kind == "kronecker":
                inducing = vsgp.inducing.Kronecker(sites, times)
            elif kind == "neighbors":
                inducing = vsgp.inducing.NearestNeighbors(cells, scale=NEAR)
            else:
                inducing = vsgp.inducing.Fourier.for_data(cells, cov)
            gp.prior("u", inducing=inducing)
            gp.likelihood("y", vsgp.Poisson(), X=cells[seen], y=y)
            clock("model")
            idata = vsgp.sample(draws // 4, chains=4, random_seed=1, progressbar=False)
            clock("sample")
            f = vsgp.predict(idata, cells, "f", random_seed=2, progressbar=False)
            clock("predict")
        return f"{kind}, {inducing.n_inducing} values", idata, np.asarray(f), clock.seconds

    return run


RUNS = {"kron": kron} | {kind: sparse(kind) for kind in ("kronecker", "neighbors", "features")}


def main():
    """Run one of them."""
    import arviz as az

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("which", choices=list(RUNS))
    parser.add_argument("--sites", type=int, default=40)
    parser.add_argument("--times", type=int, default=100)
    parser.add_argument("--draws", type=int, default=1000)
    args = parser.parse_args()
    sites, times, cells, seen, y, truth = simulate(args.sites, args.times)
    name, idata, f, seconds = RUNS[args.which](sites, times, cells, seen, y, args.draws)
    table = az.summary(idata, var_names=["level", "sd", "space", "time"], round_to="none")
    print(table, idata["posterior"].attrs, flush=True)
    few = f.reshape(*f.shape[:2], -1)[:, :, :: f[0, 0].size // 100]
    ess = min(table.ess_bulk.min(), *(float(az.ess(few[:, :, i])) for i in range(few.shape[2])))
    r_hat = max(table.r_hat.max(), *(float(az.rhat(few[:, :, i])) for i in range(few.shape[2])))
    f = f.reshape(-1, truth.size)
    found = {"mean": f.mean(axis=0), "sd": f.std(axis=0)}
    result = scores(truth, found["mean"], found["sd"])
    result |= {n: float(table["mean"][n]) for n in ("sd", "space", "time")}
    result |= {"R-hat": float(r_hat), "smallest ESS": float(ess)}
    KEPT.mkdir(parents=True, exist_ok=True)
    exact = KEPT / f"kron-{args.sites}-{args.times}.npz"
    if args.which == "kron":
        np.savez(exact, **found)
    known = np.load(exact)
    off = (found["mean"] - known["mean"]) / known["sd"]
    result["off"] = float(np.sqrt(np.mean(off**2)))
    result["seconds"] = seconds
    name += f", {args.sites} sites, {args.times} times"
    print(name, json.dumps(result, indent=1), flush=True)
    add(RESULTS, name, result)


if __name__ == "__main__":
    main()
