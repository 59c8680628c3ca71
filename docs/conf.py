"""How Sphinx builds the site from these pages: `make docs`."""

from __future__ import annotations

import inspect
import os
import re
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))  # memory.py, for the page that draws with it

import graph_reference  # noqa: E402

import dlbridge  # noqa: E402

project = "dlbridge"
author = "the authors of dlbridge"
version = release = dlbridge.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.intersphinx",
    "sphinx.ext.napoleon",
    "sphinx_design",
]
exclude_patterns = ["README.md"]
templates_path = ["_templates"]
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["tables.js"]  # headings of columns, where a phone shows no head of a table

# ---- pages: Markdown that also reads well where the repository is shown ----

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4
# Text such as `vjp=…` is not Python, and stands in examples of signatures. An attribute `shape` or
# `dtype` in a docstring is that of its own class, not one of those that Sphinx finds elsewhere.
suppress_warnings = ["misc.highlighting_failure", "ref.python"]

# ---- examples: each page runs in a process of its own, and an error fails the build ----

nb_execution_mode = "force"  # `-D nb_execution_mode=cache` while writing: only what changed runs
nb_execution_cache_path = str(HERE.parent / "build" / "docs-cache")
nb_execution_raise_on_error = True
nb_execution_timeout = 300
nb_output_stderr = "remove"  # what frameworks say when they are imported
nb_merge_streams = True
# Without what kernels of Jupyter say, at each start, of their transport within this machine.
os.environ["IPYTHONDIR"] = str(HERE.parent / "build" / "docs-ipython")
profile = Path(os.environ["IPYTHONDIR"]) / "profile_default"
profile.mkdir(parents=True, exist_ok=True)
(profile / "ipython_kernel_config.py").write_text("c.IPKernelApp.log_level = 40\n")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

# ---- reference: from the docstrings ----

autosummary_generate = True
autosummary_imported_members = True
autodoc_typehints = "none"
autodoc_member_order = "bysource"
default_role = "code"
napoleon_use_rtype = False
napoleon_use_ivar = True
napoleon_use_admonition_for_examples = False

# A build needs no network. With DOCS_ONLINE=1, names of other projects link to their pages.
intersphinx_mapping = (
    {
        "python": ("https://docs.python.org/3", None),
        "numpy": ("https://numpy.org/doc/stable", None),
        "torch": ("https://docs.pytorch.org/docs/stable", None),
        "jax": ("https://docs.jax.dev/en/latest", None),
    }
    if os.environ.get("DOCS_ONLINE")
    else {}
)

# ---- looks ----

html_theme = "pydata_sphinx_theme"
html_title = "dlbridge"
html_show_sourcelink = False
html_theme_options = {
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "show_prev_next": True,
    "navbar_align": "left",
    "header_links_before_dropdown": 10,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
# Pages without others below them.
html_sidebars = {
    name: [] for name in ("index", "quickstart", "kernels", "graph", "cuda", "distributed")
}


def _as_rst(*arguments: Any) -> None:
    """Docstrings have Python's and Markdown's characters, which reStructuredText would read."""
    lines: list[str] = arguments[-1]
    parts = re.split(r"(`[^`]+`)", "\n".join(lines))
    for at in range(0, len(parts), 2):
        parts[at] = "\n".join(
            line
            if line.lstrip().startswith((">>>", "..."))
            else re.sub(r"[*|]|_\b", r"\\\g<0>", line)
            for line in parts[at].split("\n")
        )
    for at in range(1, len(parts), 2):
        parts[at] = f"`{parts[at]}`" + ("\\ " if parts[at + 1][:1].isalnum() else "")
    lines[:] = "".join(parts).split("\n")


def _link_policies(_app: Any, _what: str, _name: str, obj: Any, *arguments: Any) -> None:
    """Whatever takes the policies of an exchange leads to their page."""
    try:
        parameters = inspect.signature(obj).parameters
    except (TypeError, ValueError):
        return
    if "readonly" in parameters or "policies" in parameters:
        text = ":doc:`Policies </reference/policies>` has the values of each, and what it refuses."
        arguments[-1].extend(["", text, ""])


def _show_operations(_app: Any, _what: str, name: str, obj: Any, *arguments: Any) -> None:
    """A function of graphs says which operations it makes."""
    if name.startswith("dlbridge.graph."):
        arguments[-1].extend(graph_reference.declarations(obj))


def _inside(*arguments: Any) -> None:
    """Links to a page outside of this folder lead to the page of the site that includes it."""
    source: list[str] = arguments[-1]
    source[0] = source[0].replace("](../SECURITY.md)", "](security.md)")


def setup(app: Any) -> None:
    """Connect what is written here."""
    app.connect("autodoc-process-docstring", _as_rst, 0)
    app.connect("autodoc-process-docstring", _link_policies, 900)
    app.connect("autodoc-process-docstring", _show_operations, 900)
    app.connect("builder-inited", lambda _app: graph_reference.write())
    app.connect("source-read", _inside)
