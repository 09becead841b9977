"""Write docs/reproduction.md: the published numbers beside those of the result files."""

from textwrap import fill

from common import PAGES
from page_classes import image, mnist, raetsch, three_classes
from page_counts import coal, pines, snelson
from page_parts import load
from page_pseudo_marginal import pseudo_marginal
from page_summary import summary

PAGE = PAGES.with_suffix(".md")

HEAD = """# The published results

What the literature reports for this method, and what the package finds. Every number of ours is
in a file of
`docs/reproduction/`, beside the command, the settings and the versions that made it; this page
is made from
those files by `python benchmarks/reproduction/make_page.py`. The scripts are in
`benchmarks/reproduction/`.

Sampling is nutpie's NUTS on JAX where a section names no other sampler. **Times are upper bounds**:
they were taken on two cores that other programs were using at the same time, so a quiet machine is
faster, and small differences mean nothing. Published times are of other computers.

*Gaussian* is the Gaussian stage with the kernel's parameters at their estimate, as published.
*Free-form* is the sampled posterior.
The paper is Hensman, Matthews, Filippone and Ghahramani (2015); the thesis is Matthews (2016).
"""

LAST = """## HMC against Gibbs

The paper's figure 1, last row: the image data, one split, whitened coordinates, both samplers
tuned as there by Bayesian optimization. Crosses are the published values at M = 100, which are of
another computer and of an unknown definition of ESS.

![ESS of theta per CPU second](reproduction/hmc_gibbs.png)

```{include} ../benchmarks/results/hmc_gibbs.md
```

* With ARD, HMC is ahead of Gibbs at every M, as published. With one lengthscale it is ahead, too,
  while the paper has Gibbs ahead at M = 100. There both have single digits of ESS here.
* Chains have 2000 draws in place of 10,000, and 1000 where M is 50 or more. A tenth is discarded.
* The squared jump of Gibbs is the geometric mean of that of v and that of theta. Their sum is that
  of v, and leaves the step of theta to chance.

`python benchmarks/reproduction/hmc_gibbs.py`

{pseudo_marginal}

## Not run

{not_run}
"""

SECTIONS = {
    "coal": coal,
    "snelson": snelson,
    "pines": pines,
    "image": image,
    "raetsch": raetsch,
    "three_classes": three_classes,
    "mnist": mnist,
}


def page():
    """Return the page as it should be."""
    records = {name: load(name) for name in SECTIONS}
    parts = [SECTIONS[name](record) for name, record in records.items() if record is not None]
    last = LAST.replace("{pseudo_marginal}", pseudo_marginal())
    last = last.replace("{not_run}", not_run(records))
    return reflow("\n".join([HEAD, summary(records), *parts, last]))


def not_run(records):
    """Say what is left, and what would run it."""
    left = []
    if records["mnist"] is None:
        left += ["**MNIST**: `mnist.py`, an hour on a core that is otherwise idle."]
    else:
        left += ["**A long chain of MNIST with all images**: days on a core."]
    published = "(published: 4.7 s an effective sample)"
    if "64" not in records["pines"]["results"]:
        left += [
            f"**Pine saplings in 64 x 64 cells** {published}: `pines.py` without `--largest 32`."
        ]
    elif "points" not in records["pines"]["results"]["64"]:
        left += [
            f"**Inducing inputs for 64 x 64 cells** {published}: `pines.py`, more than an hour "
            "beside other programs."
        ]
    image = records["image"]
    if 100 not in image["settings"]["sizes"]:
        left += ["**Image** with M = 100: `image.py`, hours."]
    free = min(row["sampled"] for row in image["results"]["mean"])
    if free < 10:
        left += [
            f"**Image**, free-form on all ten splits: all models were sampled on {free} of them. "
            "`image.py --free 10`, hours."
        ]
    left += [
        "**Abalone**, of Filippone and Girolami (2014), whose data are not shared.",
        "**The rest of the thesis' table 4.3**, german and flare solar: they are not at hand, nor "
        "are the published splits of thyroid, heart, twonorm, ringnorm, waveform and diabetes.",
    ]
    return "\n".join(fill("* " + text, 100, subsequent_indent="  ") for text in left)


def reflow(text):
    """Fill paragraphs, whose numbers are shorter than the names that stood for them."""
    blocks = text.strip().split("\n\n")
    kept = ("|", "#", "!", "* ", "```")
    return "\n\n".join(b if b.startswith(kept) else fill(b.strip(), 110) for b in blocks) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
