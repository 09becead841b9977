import os
import pathlib
import shutil
import urllib.error
import urllib.request

from docutils import nodes
from jupyter_cache import get_cache

import pymc_vsgp

project = "pymc-vsgp"
author = "The pymc-vsgp developers"
release = pymc_vsgp.__version__
version = release

extensions = [
    "myst_nb",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.intersphinx",
    "sphinx-mathjax-offline",
    "sphinx_copybutton",
    "sphinx_design",
]
myst_enable_extensions = ["attrs_inline", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
# Pages with code cells run at build time, and are kept until their code changes. The tests run the
# plain blocks of the other pages.
nb_execution_mode = "cache"
nb_execution_timeout = 600
nb_execution_in_temp = True  # some pages write files
nb_execution_raise_on_error = True
nb_execution_show_tb = True
nb_output_stderr = "remove"
nb_merge_streams = True
# Notebooks are plain Python in cells. Sphinx wants its sources in one folder.
nb_custom_formats = {".py": ["jupytext.reads", {"fmt": "py:percent"}]}
here = pathlib.Path(__file__).parent
shutil.copytree(here.parent / "notebooks", here / "notebooks", dirs_exist_ok=True)


def absent(data):
    """Whether a data set is neither here nor to be had: there may be no network."""
    try:
        pymc_vsgp.datasets.load(data)
    except (OSError, ValueError, EOFError):
        return True
    return False


# Data of these do not ship. Without them, their pages end with the output of one run.
DOWNLOADED = {"million_rows": "beijing_air", "spatial_counts": "lansing"}
not_run = [name for name, data in DOWNLOADED.items() if absent(data)]
for name in not_run:
    with (here / "notebooks" / f"{name}.py").open("a", encoding="utf-8") as notebook:
        notebook.write(f"""
# %% [markdown]
# ## Output of one run
#
# ```{{literalinclude}} ../outputs/{name}.txt
# :language: text
# ```
#
# ![The figure of this page](../_static/{name}.png)
""")
nb_execution_excludepatterns = [f"notebooks/{name}.py" for name in not_run]
# What the kernels inherit: figures go into the page; progress bars, which need widgets, do not.
os.environ["MPLBACKEND"] = "module://matplotlib_inline.backend_inline"
os.environ["MATPLOTLIBRC"] = str(here / "matplotlibrc")
os.environ["PYTHONWARNINGS"] = 'ignore:install "ipywidgets" for Jupyter support:UserWarning'
numpydoc_show_class_members = False
autosummary_generate = True
autodoc_typehints = "none"
autodoc_member_order = "bysource"
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True


def reachable(url):
    """Whether `url` answers: a build without network has no links to other projects."""
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except (urllib.error.URLError, TimeoutError, OSError):
        return False


intersphinx_mapping = {
    name: (url, None)
    for name, url in {
        "arviz": "https://python.arviz.org/en/stable/",
        "numpy": "https://numpy.org/doc/stable/",
        "pymc": "https://www.pymc.io/projects/docs/en/stable/",
        "pytensor": "https://pytensor.readthedocs.io/en/latest/",
        "xarray": "https://docs.xarray.dev/en/stable/",
    }.items()
    if reachable(url + "objects.inv")
}

# These publishers refuse programs (IEEE, Oxford, Taylor and Francis, Wiley), whatever the address.
linkcheck_ignore = [r"https://doi\.org/10\.(1080|1093|1109|1111)/"]
linkcheck_timeout = 20

exclude_patterns = [
    "_build",
    "_templates",
    "outputs",
    "check_pages.py",
    "conf.py",
    "make_figures.py",
]
templates_path = ["_templates"]
html_theme = "pydata_sphinx_theme"
html_title = "pymc-vsgp"
html_static_path = ["_static"]
html_show_sourcelink = False
html_css_files = ["wide.css"]
html_sidebars = {"**": ["all-pages"]}
html_theme_options = {
    "navbar_center": [],
    "show_prev_next": True,
    "secondary_sidebar_items": {"**": ["page-toc"], "index": [], "coming_from": []},
}

# What functions return, and nobody makes: the attributes are documented, not the constructor.
RETURNED = {
    "Calibration",
    "ExactWeights",
    "GaussianStage",
    "InducingCheck",
    "PointProcess",
    "Suggestion",
}


def without_constructor(app, what, name, obj, options, signature, annotation):
    """Leave out the signature of classes that functions return."""
    if what == "class" and obj.__name__ in RETURNED:
        return "", annotation
    return None


def mark_arviz(app, doctree):
    """Mark cells whose figures ArviZ draws: it chooses black or white for text by itself."""
    for cell in doctree.findall(nodes.container):
        if cell.get("nb_element") == "cell_code" and "az.plot_" in cell.astext():
            cell["classes"].append("arviz")


def make_cache(app):
    """Make the cache of executed pages, before several processes would."""
    get_cache(app.env.mystnb_config.execution_cache_path).db  # noqa: B018  (makes it)


def setup(app):
    """Connect them."""
    # It reads nothing, and does not say so: pages may run side by side (sphinx-build -j).
    app.extensions["sphinx-mathjax-offline"].parallel_read_safe = True
    app.connect("autodoc-process-signature", without_constructor)
    app.connect("doctree-read", mark_arviz)
    app.connect("builder-inited", make_cache)
