"""Pine saplings: a map of their intensity, beside exact MCMC, and what an effective sample costs.

Hensman et al. (2015), section 4.3: counts in 32 x 32 and 64 x 64 cells of a 10 x 10 square, 225
inducing inputs on a grid. The kernel is separable and the cells a grid, so the exact posterior
can be sampled with Kronecker products (``pm.gp.LatentKron``) where the paper could not. Next to
inducing inputs stand Fourier features, which cost N M.
"""

import json
import time

import matplotlib.pyplot as plt
import numpy as np
import pymc as pm

from common import (
    BY_DEFAULT,
    QUIET,
    arguments,
    command,
    fit,
    free_form,
    latent_exact,
    save,
    summary_of,
    write,
)

import pymc_vsgp as vsgp

SIDE = 10.0
EXACT_TIMES = 3  # draws of exact MCMC: it mixes slowly, and Kronecker products are cheap
THETA = ("lengthscale", "variance")
TITLES = {
    "points": "inducing inputs",
    "fourier": "Fourier features, 2 % left out",
    "fourier_fine": "Fourier features, 0.1 % left out",
}
PUBLISHED = {"32": {"variational": 3.4, "exact": 554.0}, "64": {"variational": 4.7}}


def centres(n):
    return SIDE * (np.arange(n) + 0.5) / n


def cells(n):
    """Return inputs, counts and area of n x n cells, of the published array of 127 rows."""
    table = vsgp.datasets.load("pines_nips2015")
    span = [(0.0, 1.0)] * 2
    counts = np.histogram2d(table["x"], table["y"], bins=n, range=span)[0].ravel()
    grid = np.meshgrid(centres(n), centres(n), indexing="ij")
    return np.stack(grid, axis=-1).reshape(-1, 2), counts, (SIDE / n) ** 2


def priors():
    return pm.Gamma("lengthscale", 1.75, 1.0), pm.Gamma("variance", 1.2, 1.0)


def sparse(X, counts, area, side=None, residual=None):
    """Inducing inputs on a grid with that many to a side, or features that leave out a share."""
    with pm.Model() as model:
        lengthscale, variance = priors()
        cov = variance * pm.gp.cov.ExpQuad(2, ls=lengthscale)
        gp = pm.gp.VariationalSparse(cov_func=cov)
        if side is None:
            features = vsgp.inducing.Fourier.for_data(X, cov, residual=residual, random_seed=1)
            gp.prior("u", inducing=features)
        else:
            grid = np.meshgrid(centres(side), centres(side), indexing="ij")
            gp.prior("u", Xu=np.stack(grid, axis=-1).reshape(-1, 2))
        gp.likelihood("y", vsgp.Poisson(exposure=area), X=X, y=counts)
    return model


def exact(n, counts, area):
    with pm.Model() as model:
        lengthscale, variance = priors()
        kernels = [
            variance * pm.gp.cov.ExpQuad(1, ls=lengthscale),
            pm.gp.cov.ExpQuad(1, ls=lengthscale),
        ]
        x = centres(n)[:, None]
        f = pm.gp.LatentKron(cov_funcs=kernels).prior("f", Xs=[x, x])
        pm.Poisson("y", area * pm.math.exp(f), observed=counts)
    return model


def dense_gradient_seconds(X, counts, area, times=3):
    """Time one gradient of the exact posterior without Kronecker products."""
    with pm.Model() as model:
        lengthscale, variance = priors()
        cov = variance * pm.gp.cov.ExpQuad(2, ls=lengthscale)
        f = pm.gp.Latent(cov_func=cov).prior("f", X=X)
        pm.Poisson("y", area * pm.math.exp(f), observed=counts)
    function = model.logp_dlogp_function(ravel_inputs=True, mode="JAX")
    function.set_extra_values({})
    point = pm.blocking.DictToArrayBijection.map(model.initial_point())
    at = [np.asarray(v) for v in function(point.data)]
    seconds = []
    for _ in range(times):
        began = time.perf_counter()
        at = [np.asarray(v) for v in function(point.data)]
        seconds.append(time.perf_counter() - began)
    assert all(np.isfinite(v).all() for v in at)
    return min(seconds)


def moments(idata, X, model, exact_draws=None):
    """Mean and standard deviation of the log intensity in each cell."""
    if exact_draws is not None:
        f = exact_draws["posterior"]["f"].values.reshape(-1, len(X))
        return f.mean(axis=0), f.std(axis=0), np.exp(f).mean(axis=0)
    m = vsgp.predict(idata, X, "moments", model=model, num_samples=400, **QUIET)
    mean, variance = m["mean"], m["variance"]
    over = ["chain", "draw"]
    sd = np.sqrt(mean.var(over) + variance.mean(over))
    return mean.mean(over).values, sd.values, np.exp(mean + variance / 2).mean(over).values


def run(n, side, options, earlier):
    X, counts, area = cells(n)
    out, maps = {"cells": n * n}, {}
    kron = exact(n, counts, area)
    times = 1 if options.smoke else EXACT_TIMES
    whole, how = latent_exact(kron, options, times=times)
    maps["exact"] = moments(None, X, None, whole)
    draws = {"draws": times * options.draws}
    out["exact_kronecker"] = how | draws | {"theta": summary_of(whole, THETA)}
    del whole
    kinds = {
        "points": {"side": side},
        "fourier": {"residual": 0.02},
        "fourier_fine": {"residual": 0.001},
    }
    if options.smoke:
        del kinds["fourier_fine"]
    if not options.points:
        del kinds["points"]
        if "points" in earlier:
            out["points"] = earlier["points"]
    for name, kind in kinds.items():
        model = sparse(X, counts, area, **kind)
        with model:
            stage = fit(options)
            idata, how = free_form(stage, options, sampler={})
        maps[name] = moments(idata, X, model)
        off = (maps[name][0] - maps["exact"][0]) / maps["exact"][1]
        out[name] = how | {
            "draws": options.draws,
            "command": command("pines"),
            "M": idata["posterior"]["u"].shape[-1],
            "bound": stage.elbo,
            "stage_seconds": stage.seconds,
            "theta": summary_of(idata, THETA),
            "gap_of_mean_in_exact_sd": {
                "rms": float(np.sqrt((off**2).mean())),
                "largest": float(np.abs(off).max()),
            },
            "sd_over_exact_sd": {
                "mean": float((maps[name][1] / maps["exact"][1]).mean()),
                "smallest": float((maps[name][1] / maps["exact"][1]).min()),
                "largest": float((maps[name][1] / maps["exact"][1]).max()),
            },
        }
        keys = ("seconds_per_effective_sample", "rhat_max", "gap_of_mean_in_exact_sd")
        print(n, name, {k: out[name][k] for k in keys}, flush=True)
    return out, maps


def draw(n, maps, options):
    table = vsgp.datasets.load("pines_nips2015")
    figure, axes = plt.subplots(
        1, len(maps), figsize=(3.1 * len(maps), 3), constrained_layout=True, squeeze=False
    )
    top = max(m[2].max() for m in maps.values())
    for ax, (name, m) in zip(axes[0], maps.items(), strict=True):
        shown = m[2].reshape(n, n).T
        image = ax.imshow(shown, origin="lower", extent=(0, SIDE, 0, SIDE), vmin=0, vmax=top)
        ax.plot(SIDE * table["x"], SIDE * table["y"], ".", color="w", ms=2)
        ax.set(title=TITLES.get(name, name))
    figure.colorbar(image, ax=axes, label="saplings per unit area")
    save(figure, options, f"pines_{n}")
    plt.close(figure)


def main(argv=None):
    options = arguments(__doc__, argv, points=1, largest=64)
    began = time.perf_counter()
    sizes = {6: 3} if options.smoke else {n: 15 for n in (32, 64) if n <= options.largest}
    results = {"published_seconds_per_effective_sample": PUBLISHED}
    path = options.out / "pines.json"
    # Inducing inputs take most of the time: without them, those of the last run are kept.
    earlier = json.loads(path.read_text())["results"] if path.exists() else {}
    for n, side in sizes.items():
        results[str(n)], maps = run(n, side, options, earlier.get(str(n), {}))
        draw(n, maps, options)
        if n == min(sizes) and not options.smoke:
            results["dense_exact"] = cost_of_dense(n, results, options)
        settings = {"sizes": list(sizes), "square": SIDE, "rows": 127, **BY_DEFAULT}
        print(write("pines", options, settings, results, began), flush=True)
    return results


def cost_of_dense(n, results, options):
    """Time a gradient of the dense posterior, and take as many of them as the exact run did."""
    seconds = dense_gradient_seconds(*cells(n))
    kron = results[str(n)]["exact_kronecker"]
    gradients = kron["steps_per_draw"] * EXACT_TIMES * options.draws * options.chains
    return {
        "gradient_seconds": seconds,
        "seconds_per_effective_sample_estimated": seconds * gradients / kron["ess_min"],
    }


if __name__ == "__main__":
    main()
