"""The pages say something of every public name, and their links lead somewhere.

Pages are read as text: neither sphinx nor the examples run here.
"""

import importlib.util
import inspect
import pathlib
import re

import pytest

import pymc_vsgp as vsgp

ROOT = pathlib.Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(p for p in DOCS.rglob("*.md") if "_build" not in p.parts)
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.py"))
READ = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *PAGES]
SUBMODULES = ("datasets", "inducing", "steps")


def name_of(page):
    return page.relative_to(ROOT).as_posix()


def text_of(page):
    return page.read_text(encoding="utf-8")


CODE = ("code-cell", "code-block", "eval-rst", "literalinclude")


def without_blocks(text):
    """Leave out blocks of code, whose comments may look like headings."""
    kept, fences = [], []  # of blocks that are open, with whether they hold code
    for line in text.splitlines():
        found = re.match(r"(`{3,})(?:\{([\w-]+)\})?(.*)", line)
        if found and fences and line.rstrip() == fences[-1][0]:
            fences.pop()
        elif found and not (fences and fences[-1][1]):
            fences.append((found[1], found[2] is None or found[2] in CODE))
        elif not (fences and fences[-1][1]):
            kept.append(line)
    return "\n".join(kept)


def with_included(page):
    """The text of a page, and of those that it includes."""
    text = text_of(page)
    for target in re.findall(r"^`{3,}\{include\} (\S+)", text, re.M):
        text += "\n" + text_of((page.parent / target).resolve())
    return text


def anchors_of(page):
    """Anchors of headings, as MyST and GitHub make them, and labels."""
    text = with_included(page)
    headings = re.findall(r"^#+ +(.*)$", without_blocks(text), re.M)
    slugs = {re.sub(r"[^\w -]", "", h.lower()).strip().replace(" ", "-") for h in headings}
    return slugs | set(re.findall(r"^\(([\w-]+)\)=$", text, re.M))


def dead_link(page, target):
    """Whether a target in a page leads nowhere in the repository."""
    if re.match(r"[a-z]+:", target):  # http:, https:, mailto:
        return False
    path, _, anchor = target.partition("#")
    file = (page.parent / path).resolve() if path else page
    if not file.is_file():
        return True
    return bool(anchor) and file.suffix == ".md" and anchor not in anchors_of(file)


def links_of(page):
    text = re.sub(r"`[^`\n]*`", "code", without_blocks(text_of(page)))
    inline = re.findall(r"\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)", text)
    return inline + re.findall(r"^\[[^\]]+\]:\s+(\S+)", text, re.M)


def toctree_of(page):
    """Pages that the toctrees of a page name."""
    blocks = re.findall(r"^```\{toctree\}\n(.*?)^```$", text_of(page), re.M | re.S)
    lines = [line.strip() for block in blocks for line in block.splitlines()]
    entries = [line for line in lines if line and not line.startswith(":")]
    return [re.sub(r"^.*<(.+)>$", r"\1", entry) for entry in entries]


def documented():
    """Names in the summaries of the API pages."""
    names = []
    for page in PAGES:
        for block in re.findall(r"^```\{eval-rst\}\n(.*?)^```$", text_of(page), re.M | re.S):
            for body in re.findall(r"^\.\. autosummary::\n((?:^(?: +.*)?\n)+)", block, re.M):
                names += re.findall(r"^ +([\w.]+)$", body, re.M)
    return names


def public_names():
    """Everything a user may call, with the members of submodules by their dotted names."""
    names = {n for n in vsgp.__all__ if not inspect.ismodule(getattr(vsgp, n))} - {"__version__"}
    for module in SUBMODULES:
        names |= {f"{module}.{n}" for n in getattr(vsgp, module).__all__}
    return names


def families():
    return sorted(
        name
        for name in vsgp.likelihoods.__all__
        if inspect.isclass(family := getattr(vsgp.likelihoods, name))
        and issubclass(family, vsgp.Likelihood)
        and family is not vsgp.Likelihood
    )


# --- names ---------------------------------------------------------------------------------------


def test_every_public_name_is_in_the_api():
    assert public_names() - set(documented()) == set()


def test_the_api_has_public_names_only_and_each_once():
    names = documented()
    assert set(names) - public_names() == set()
    assert sorted(set(names)) == sorted(names)


def test_every_submodule_is_accounted_for():
    modules = {n for n in vsgp.__all__ if inspect.ismodule(getattr(vsgp, n))}
    # The families of `likelihoods` are public names of the package itself.
    assert modules == {*SUBMODULES, "likelihoods"}
    assert set(vsgp.likelihoods.__all__) <= set(vsgp.__all__)


@pytest.mark.parametrize("family", families())
def test_every_likelihood_is_in_the_gallery(family):
    gallery = text_of(DOCS / "likelihoods.md")
    sections = re.split(r"^#{2,3} +", gallery, flags=re.M)
    section = [s for s in sections if s.splitlines()[0].strip() == family]
    assert len(section) == 1, f"docs/likelihoods.md has no section {family}"
    code = "".join(re.findall(r"^```\{code-cell\} ipython3\n(.*?)^```$", section[0], re.M | re.S))
    assert f"vsgp.{family}(" in code, f"the section {family} has no example"
    assert f"(#{family.lower()})" in gallery, f"the table of docs/likelihoods.md lacks {family}"


# --- links ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", READ, ids=name_of)
def test_links_of_a_page_are_alive(page):
    assert [link for link in links_of(page) if dead_link(page, link)] == []


@pytest.mark.parametrize("page", READ, ids=name_of)
def test_roles_of_a_page_are_alive(page):
    labels = set().union(*(re.findall(r"^\(([\w-]+)\)=$", text_of(p), re.M) for p in PAGES))
    dead = []
    for role, content in re.findall(r"\{(doc|ref|download)\}`([^`]+)`", text_of(page)):
        target = re.sub(r"^.*<(.+)>$", r"\1", content, flags=re.S)
        if role == "ref":
            alive = target in labels
        else:
            folder = DOCS if target.startswith("/") else page.parent
            path = folder / target.lstrip("/")
            alive = path.is_file() or path.with_name(path.name + ".md").is_file()
        if not alive:
            dead.append(target)
    assert dead == []


@pytest.mark.parametrize("page", READ, ids=name_of)
def test_files_that_a_page_names_exist(page):
    prose = re.sub(r"^(`{3,}).*?^\1", "", text_of(page), flags=re.MULTILINE | re.DOTALL)
    folders = "benchmarks|docs|notebooks|pymc_vsgp|tests"
    files = re.findall(rf"`((?:{folders})/[\w./-]+\.(?:md|py|json|png))`", prose)
    assert [file for file in files if not (ROOT / file).is_file()] == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_included_files_exist(page):
    includes = re.findall(
        r"^`{3,}\{(?:include|literalinclude|image|figure)\} (\S+)", text_of(page), re.M
    )
    assert [file for file in includes if not (page.parent / file).is_file()] == []


def test_every_page_is_in_one_toctree():
    entries = [
        (page.parent / entry).resolve().relative_to(DOCS).as_posix()
        for page in PAGES
        for entry in toctree_of(page)
    ]
    pages = {page.relative_to(DOCS).with_suffix("").as_posix() for page in PAGES} - {"index"}
    pages |= {f"notebooks/{notebook.stem}" for notebook in (ROOT / "notebooks").glob("*.py")}
    assert pages - set(entries) == set(), "these pages are in no toctree"
    assert set(entries) - pages == set(), "these entries have no page"
    assert len(set(entries)) == len(entries)


# --- English --------------------------------------------------------------------------------------

# Reports of long experiments, and the record of changes, are denser than what is read first.
DENSE = {"docs/reproduction.md", "docs/changelog.md", "CONTRIBUTING.md"}
SEARCHED = [
    *("ELBO", "SVGP", "SGPR", "SGPMC", "LGCP", "hyperparameter", "multiclass", "overdispersion"),
    *("offset", "leapfrog", "step size", "confounding", "accelerated failure time"),
]


def sentences(text):
    """Prose of a page, sentence by sentence; code, formulas, tables and headings are left out."""
    text = re.sub(r"\A---\n.*?^---\n", "", text, flags=re.M | re.S)
    text = re.sub(r"^(`{3,}).*?^\1$", "\n\n", text, flags=re.M | re.S)
    text = re.sub(r"^\$\$.*?^\$\$", "\n\n", text, flags=re.M | re.S)
    text = re.sub(r"`[^`\n]*`|\$[^$\n]*\$", "code", text)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"^(\||#|:::).*$|^\s*([*-]|\d+\.|:) ", "\n\n", text, flags=re.M)
    for paragraph in re.split(r"\n\s*\n", text):
        yield from re.split(r"(?<=[.!?:;])\**\s+", " ".join(paragraph.split()))


def prose_of(page):
    """What is to be read: a page, or the cells of a notebook that are no code."""
    if page.suffix == ".md":
        return text_of(page)
    cells = re.findall(r"^# %% \[markdown\]\n((?:#.*\n)+)", text_of(page), re.M)
    return "\n".join(re.sub(r"^# ?", "", cell, flags=re.M) for cell in cells)


@pytest.mark.parametrize(
    "page", [p for p in (*READ, *NOTEBOOKS) if name_of(p) not in DENSE], ids=name_of
)
def test_sentences_of_a_page_are_short(page):
    words = {s: len(re.findall(r"[\w'’.^²-]*\w", s)) for s in sentences(prose_of(page))}
    assert words, "nothing to read"
    assert {s: n for s, n in words.items() if n > 25} == {}


def test_sentences_are_counted():
    page = "# A title\n\nOne `f(x. y)` here. **Two.** Three\nof them:\n\n| a | b |\n\n* Four;"
    assert [s for s in sentences(page) if s] == [
        "One code here.",
        "**Two.",
        "Three of them:",
        "Four;",
    ]


@pytest.mark.parametrize("term", SEARCHED)
def test_a_search_finds_the_terms_of_the_field(term):
    assert any(term in text_of(page) for page in PAGES)


# --- measured numbers -----------------------------------------------------------------------------

# Result files are included whole. Where a page tells some of their numbers by itself, the comment
# `numbers: FILE` stands above the paragraph or the table.
MEASURED = re.compile(r"(?<![-\w.])([\d.,]*\d)\s(?:CPU )?(?:ms|s|seconds|milliseconds)\b")
NUMBER = re.compile(r"(?<![\w.])-?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")
# Numbers that follow from a definition.
NOT_MEASURED = ("| link | a scale of 1 means |",)


def blocks_of(page):
    """Paragraphs, items and tables outside of code, with the result file named above each."""
    text = re.sub(r"^(`{3,}).*?^\1$", "", text_of(page), flags=re.M | re.S)
    named = None
    for block in re.split(r"\n\s*\n|\n(?=[*:] )", text):
        if found := re.fullmatch(r"(?:%|<!--) numbers: (\S+)(?: -->)?", block.strip()):
            named = found.group(1)
            continue
        yield block, named
        # Items of a list share what stands above it.
        named = named if block.lstrip().startswith(("* ", ": ")) else None


def numbers_in(text):
    """What is told as a number, and half a unit of its last digit."""
    for word in NUMBER.findall(text):
        mantissa, _, power = word.replace(",", "").partition("e")
        digits = len(mantissa.partition(".")[2])
        yield float(f"{mantissa}e{power or 0}"), 0.5 * 10.0 ** (int(power or 0) - digits)


def is_in(told, known):
    value, half = told
    return any(abs(value - k) <= half * (1.0 + 1e-9) for k, _ in known)


def not_in_results(block, results):
    """Numbers of a block that a result file does not have: of a row, in one of its lines."""
    if block.lstrip().startswith("|"):
        lines = [list(numbers_in(line)) for line in results.splitlines() if "|" in line]
        for row in block.strip().splitlines()[2:]:
            told = list(numbers_in(re.sub(r"^\|[^|]*\|", "", row)))  # the first cell names it
            if not any(all(is_in(t, line) for t in told) for line in lines):
                yield row
    else:
        known = list(numbers_in(results))
        for number in MEASURED.findall(block):
            ((value, half),) = numbers_in(number)
            half = max(half, 0.2 * value) if f"about {number}" in block else half
            if not is_in((value, half), known):
                yield number


@pytest.mark.parametrize("page", [p for p in READ if name_of(p) not in DENSE], ids=name_of)
def test_measured_numbers_are_those_of_the_results(page):
    for block, file in blocks_of(page):
        if file is not None:
            assert list(not_in_results(block, text_of(ROOT / file))) == [], file
        else:
            columns = (
                block.lstrip("\n").partition("\n")[0] if block.lstrip().startswith("|") else ""
            )
            told = MEASURED.findall(block) + re.findall(r"\b(?:CPU|seconds|ms)\b", columns)
            if columns and not any(start in block for start in NOT_MEASURED):
                told += re.findall(r"\| *(-?\d+\.\d+)[^|]{0,10}(?=\|)", block)
            assert told == [], f"no result file is named for: {block}"


def test_every_table_of_results_is_in_a_page():
    """As it is, or some of its numbers, or its name."""
    pages = " ".join(text_of(page) for page in READ)
    tables = [p.name for p in (ROOT / "benchmarks" / "results").glob("*.md")]
    assert [name for name in tables if f"results/{name}" not in pages] == []


def test_times_in_the_readme_are_those_of_the_benchmark():
    """In the row of the case that it names, which the test above does not look at."""
    measured = text_of(ROOT / "benchmarks" / "results" / "gradient.md")
    normal = re.search(r"^## \(c\) Gaussian.*?(?=^## )", measured, re.M | re.S).group()
    for package, told in zip(
        ("vsgp_numba", "gpflow"),
        re.findall(r"([\d.]+) ms", text_of(ROOT / "README.md")),
        strict=True,
    ):
        milliseconds = re.search(rf"\| {package} \| ([\d.]+) ", normal).group(1)
        assert f"{float(milliseconds):.0f}" == told


# --- the checks themselves -----------------------------------------------------------------------


def test_links_are_found_and_dead_ones_told(tmp_path):
    (tmp_path / "there.md").write_text("# A heading, with `code`\n")
    page = tmp_path / "page.md"
    page.write_text(
        "[a](there.md) [b](gone.md) ![c](gone.png) [d](there.md#a-heading-with-code)\n"
        "[](there.md#gone) [e](https://example.org) `[f](code.md)`\n\n```python\nx[0](g.md)\n```\n"
        "[h](#here)\n\n## Here\n"
    )
    assert [link for link in links_of(page) if dead_link(page, link)] == [
        "gone.md",
        "gone.png",
        "there.md#gone",
    ]


def test_numbers_that_no_result_has_are_told(tmp_path):
    results = "| a | 1.234 | 17 |\n| b | 5.6 | 1e-05 |\n"
    row = "| what | x | y |\n|---|---|---|\n"
    assert list(not_in_results(row + "| A | 1.23 | 17 |\n| B | | 0.00001 |", results)) == []
    assert list(not_in_results(row + "| A | 1.24 | 17 |", results)) == ["| A | 1.24 | 17 |"]
    assert list(not_in_results(row + "| mixed | 5.6 | 17 |", results)) == ["| mixed | 5.6 | 17 |"]
    assert list(not_in_results("It took 17 ms, about 6 s, and 18 seconds.", results)) == ["18"]
    page = tmp_path / "page.md"
    page.write_text("One.\n\n% numbers: a.md\n\nIt took 17 ms.\n\nTwo.\n\n```\n3 s\n```\n")
    named = [(b.strip(), file) for b, file in blocks_of(page) if b.strip()]
    assert named == [("One.", None), ("It took 17 ms.", "a.md"), ("Two.", None)]


def test_missing_files_and_raw_tex_of_a_built_page_are_told(tmp_path):
    spec = importlib.util.spec_from_file_location("check_pages", DOCS / "check_pages.py")
    check_pages = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(check_pages)
    page = tmp_path / "page.html"
    page.write_text('<img src="gone.png"><a href="page.html#here">a</a><code>\\(x\\)</code>')
    assert list(check_pages.complaints(page, None)) == ["gone.png does not exist"]
    browser = tmp_path / "browser"
    browser.write_text("#!/bin/sh\necho '<p>so \\(x\\) <code>\\(y\\)</code></p>'\n")
    browser.chmod(0o755)
    told = list(check_pages.complaints(page, str(browser)))
    assert len(told) == 2 and told[1].startswith(r"raw TeX: \(x")


def test_pictures_are_small():
    sizes = {p.name: p.stat().st_size for p in (DOCS / "_static").glob("*.png")}
    assert sizes, "no pictures"
    assert {name: size for name, size in sizes.items() if size > 150_000} == {}
