import importlib.metadata

project = "pymc-vsgp"
author = "The pymc-vsgp developers"
release = importlib.metadata.version("pymc-vsgp")
version = release

extensions = [
    "myst_nb",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx_copybutton",
    "sphinx_design",
]
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
nb_execution_mode = "off"
numpydoc_show_class_members = False
autosummary_generate = True

exclude_patterns = ["_build", "generated"]
html_theme = "pydata_sphinx_theme"
html_title = "pymc-vsgp"
html_theme_options = {"show_prev_next": False, "secondary_sidebar_items": ["page-toc"]}
