"""Sections of the page: coal, Snelson, pines."""

import numpy as np

from common import PAGES
from page_parts import made_by, sampling, table


def coal(record):
    r = record["results"]
    mean, sd, whole = r["mean"], r["sd_over_splits"], r["all_events"]
    n = len(r["splits"])
    rows = [
        ["Gaussian", "-1.229", f"{mean['gaussian']:.3f}", f"{sd['gaussian']:.3f}"],
        [
            "Gaussian, parameters from their normal approximation",
            "",
            f"{mean['gaussian_theta_normal']:.3f}",
            f"{sd['gaussian_theta_normal']:.3f}",
        ],
        ["free-form", "-1.225", f"{mean['free_form']:.3f}", f"{sd['free_form']:.3f}"],
        ["free-form minus Gaussian", "0.003", f"{r['difference_mean']:.3f}", ""],
    ]
    theta = []
    for name in ("lengthscale", "variance"):
        for kind, label in (("free_form", "free-form"), ("exact", "exact MCMC")):
            t = whole["theta"][kind][name]
            low, middle, high = t["q05_q50_q95"]
            theta.append([name, label, *(f"{v:.2f}" for v in (t["mean"], t["sd"]))])
            theta[-1] += [f"{v:.2f}" for v in (low, middle, high)]
    estimate = whole["theta_estimate"]
    gap = whole["largest_gap_of_rate_mean_in_posterior_sd"]
    better = r["splits_where_free_form_is_better"]
    worst = {
        "rhat_max": max(s["rhat_max"] for s in r["splits"]),
        "ess_min": min(s["ess_min"] for s in r["splits"]),
        "divergences": sum(s["divergences"] for s in r["splits"]),
    }
    return f"""## Coal-mining explosions

100 bins, 30 inducing inputs on a grid, 95 of the 191 events to train on, {n} splits: those of
the published code,
whose generator and seeds are known. The score is that code's, too: the mean over bins of the log
predictive probability of
the held-out count.

{table(["held-out log probability", "published", "ours", "sd over splits"], rows)}

Free-form is better on {better} of {n} splits; the paper says on all. On the others it is worse
by at most
{max(s["gaussian"] - s["free_form"] for s in r["splits"]):.3f}. Over all splits:
{sampling(worst)}.

With all events, beside exact MCMC (`pm.gp.Latent`, whitened, {sampling(whole["exact"])}):

{table(["parameter", "posterior", "mean", "sd", "5 %", "50 %", "95 %"], theta)}

The estimate of the Gaussian stage is a lengthscale of {estimate["lengthscale"]:.2f} and a
variance of
{estimate["variance"]:.2f}; the paper's is 12.06 and 0.55, from a kernel and priors that differ
between its scripts.
The mean rate differs from the exact one by at most {gap["free_form"]:.2f} posterior standard
deviations in any bin (free-form,
Monte Carlo error of both included) and {gap["gaussian"]:.2f} (Gaussian). As in the thesis,
upper tails of the parameters are longer than the exact ones; with so few effective samples of the
exact sampler that is not beyond Monte Carlo error. Free-form: {sampling(whole["free_form"])};
{whole["free_form"]["steps_per_draw"]:.1f} steps a draw, against
{whole["exact"]["steps_per_draw"]:.1f} of the exact sampler.

![Rates with 90 % bands, and draws of the parameters](reproduction/coal.png)

{made_by(record)}"""


def snelson(record):
    r = record["results"]
    rows = [
        [
            row["M"],
            f"{row['kl_sparse_from_exact']:.3g}",
            f"{row['kl_exact_from_sparse']:.3g}",
            f"{row['held_out_negative_log_density']:.4f}",
        ]
        for row in r["rows"]
    ]
    p, t = r["published"], r["theta"]
    apart = {row["M"]: np.ptp(row["bounds_of_all_starts"]) for row in r["rows"]}
    worst, spread = max(apart, key=apart.get), ""
    if apart[worst] > 1.0:
        spread = f"""The ELBO has local maxima in the inducing inputs: at M = {worst} the starts
end {apart[worst]:.0f} nats apart, which is enough to move the peak of the second divergence. """
    check = max(abs(row["bound"] - row["bound_in_numpy"]) for row in r["rows"])
    both = [
        [
            "published",
            *(p[k] for k in ("sd", "lengthscale", "noise_sd")),
            p["log_evidence"],
        ],
        [
            "ours",
            *(f"{t[k]:.3f}" for k in ("sd", "lengthscale", "noise_sd")),
            f"{r['log_evidence']:.2f}",
        ],
    ]
    peak, held_out = (
        max(r["rows"], key=lambda row, k=k: row[k])["M"]
        for k in ("kl_exact_from_sparse", "held_out_negative_log_density")
    )
    return f"""## Snelson's data: how the divergence falls

Normal noise, so that everything has a closed form. 100 of the 200 observations train. The thesis'
observations are not known, but the
even ones have its maximum of the evidence:

{table(["", "sd", "lengthscale", "noise sd", "log evidence"], both)}

Inducing inputs are placed by the ELBO (`move_inducing=True`, the best of
{record["settings"]["starts"]} starts), parameters stay at that
maximum. KL in nats; the first is the log evidence minus the ELBO:

{table(["M", "KL(sparse, exact)", "KL(exact, sparse)", "held-out negative log density"], rows)}

The exact posterior has a held-out negative log density of
{r["held_out_negative_log_density_exact"]:.4f}.

| the thesis says | here |
|---|---|
| KL(sparse, exact) falls with M throughout | {"yes" if r["kl_is_monotone"] else "no"} |
| and is negligible by M = 12 | {_at(r, 12, "kl_sparse_from_exact"):.2g} nats |
| KL(exact, sparse) rises at first, until M = 4 | largest at M = {peak} |
| and is negligible by M = 14 | {_at(r, 14, "kl_exact_from_sparse"):.2g} nats |
| the held-out score is worst at M = 4, too | worst at M = {held_out} |

{spread}The ELBO of the package and the dense formula in numpy differ by at most {check:.0e}.

![Both divergences, and the held-out density](reproduction/snelson.png)

{made_by(record)}"""


def _at(results, n_inducing, key):
    return next(row[key] for row in results["rows"] if row["M"] == n_inducing)


def pines(record):
    r = record["results"]
    labels = {
        "exact_kronecker": "exact, Kronecker products",
        "points": "inducing inputs",
        "fourier": "Fourier features, 2 % of the prior variance left out",
        "fourier_fine": "Fourier features, 0.1 %",
    }
    published = {("32", "points"): "3.4", ("64", "points"): "4.7"}
    rows, gaps, theta = [], [], []
    for size in ("32", "64"):
        for kind, how in r.get(size, {}).items():
            if kind not in labels:
                continue
            rows.append(
                [
                    f"{size} x {size}",
                    labels[kind],
                    how.get("M", ""),
                    published.get((size, kind), ""),
                    f"{how['seconds_per_effective_sample']:.3f}",
                    how["draws"],
                    {"nuts": "NUTS"}.get(how["method"], how["method"]),
                    "" if how["steps_per_draw"] is None else f"{how['steps_per_draw']:.1f}",
                    f"{how['ess_min']:.0f}",
                    f"{how['rhat_max']:.3f}",
                    how["divergences"],
                ]
            )
            t = how["theta"]
            theta.append([f"{size} x {size}", labels[kind]])
            theta[-1] += [f"{t[k]['mean']:.2f} ± {t[k]['sd']:.2f}" for k in t]
            if "gap_of_mean_in_exact_sd" in how:
                gap, ratio = how["gap_of_mean_in_exact_sd"], how["sd_over_exact_sd"]
                gaps.append([f"{size} x {size}", labels[kind]])
                gaps[-1] += [f"{gap[k]:.3f}" for k in ("rms", "largest")]
                gaps[-1] += [f"{ratio[k]:.3f}" for k in ("mean", "smallest", "largest")]
    dense, text = r.get("dense_exact"), ""
    if dense:
        text = f"""
The paper's exact sampler took 554 seconds an effective sample. Here a gradient of the dense
posterior of 32 x 32 cells takes
{dense["gradient_seconds"]:.2f} s; the dense sampler was not run, and with as many steps as the
Kronecker one takes it would need about
{dense["seconds_per_effective_sample_estimated"]:.0f} s an effective sample.
"""
    head = ["cells", "posterior", "M", "published", "ours", "draws a chain", "by", "steps a draw"]
    head += ["ESS", "R-hat", "div."]
    columns = ["cells", "posterior", "rms", "largest", "sd ratio, mean", "smallest", "largest"]
    figures = "\n\n".join(
        f"![Mean intensity, {size} x {size} cells](reproduction/pines_{size}.png)"
        for size in ("32", "64")
        if (PAGES / f"pines_{size}.png").exists()
    )
    return f"""## Pine saplings

Counts in cells of a 10 x 10 square, from the published array of 127 rows; 225 inducing inputs on a
grid, which stay there (the thesis moves them), or Fourier features that `Fourier.for_data` chose.
The kernel is separable and the cells a grid, so exact MCMC is possible with Kronecker products
(`pm.gp.LatentKron`).
{record["settings"]["chains"]} chains; exact MCMC takes more draws, as it mixes slowly.

Seconds of sampling for an effective sample of the worst variable (parameters and $u$, or $f$ of
exact MCMC). Those of NUTS do not count compiling, and those of importance weights are all:

{table(head, rows)}
{text}
Log intensity in the cells against exact MCMC: the mean's distance in exact standard deviations,
and the ratio of standard deviations.
Both have Monte Carlo error.

{table(columns, gaps)}

{table(["cells", "posterior", "lengthscale", "variance"], theta)}

{_bias(r["32"])}

{figures}

{made_by(record)}{_of_earlier(record)}
"""


def _of_earlier(record):
    """Say of which run the inducing inputs are, where `pines.py --points 0` kept them."""
    points = record["results"]["32"]["points"]["command"]
    if points == record["command"]:
        return ""
    return f"\nThe inducing inputs are of an earlier run: `{points}`."


def _bias(r):
    """Say what too few inducing variables did to the lengthscale."""
    mean = {kind: how["theta"]["lengthscale"]["mean"] for kind, how in r.items() if kind != "cells"}
    coarse, fine = r["fourier"], r["fourier_fine"]
    return f"""The published setting has too few inducing inputs for this posterior: they are 0.67
apart, and the exact lengthscale is {mean["exact_kronecker"]:.2f}. With them it comes out at
{mean["points"]:.2f}, and with {coarse["M"]} features at {mean["fourier"]:.2f}: too long, as
[](the_posterior.md) explains, and standard deviations of the map are too small. With {fine["M"]}
features it is {mean["fourier_fine"]:.2f}, the map is the exact one up to Monte Carlo error, and an
effective sample costs {fine["seconds_per_effective_sample"]:.2f} s."""
