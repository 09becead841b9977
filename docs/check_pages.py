"""Look at every built page: missing files, and in a browser raw TeX and errors of scripts.

Usage: python docs/check_pages.py [FOLDER]. The browser is a Chromium or Chrome on the PATH; without
one only files are checked.
"""

import html.parser
import pathlib
import re
import shutil
import subprocess
import sys
import urllib.parse

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=8000"),
    *("--enable-logging=stderr", "--window-size=400,900", "--dump-dom"),
)


class Page(html.parser.HTMLParser):
    """Files that a page names, and its text outside of code and formulas."""

    def __init__(self, source):
        super().__init__()
        self.files, self.text, self.skipped = [], [], []
        self.feed(source)

    def handle_starttag(self, tag, attributes):
        """Collect sources and links; skip code, scripts and typeset formulas."""
        values = dict(attributes)
        self.files += [v for k in ("src", "href") if (v := values.get(k))]
        if tag in ("script", "style", "pre", "code", "mjx-container"):
            self.skipped.append(tag)

    def handle_endtag(self, tag):
        """Go on after what was skipped."""
        if self.skipped and self.skipped[-1] == tag:
            self.skipped.pop()

    def handle_data(self, data):
        """Collect text."""
        if not self.skipped:
            self.text.append(data)


def complaints(path, browser):
    """What is wrong with one page."""
    for file in Page(path.read_text(encoding="utf-8")).files:
        target = urllib.parse.unquote(file.partition("#")[0].partition("?")[0])
        if target and not re.match(r"[a-z]+:|//", target):
            if not (path.parent / target).exists():
                yield f"{file} does not exist"
    if browser:
        command = [browser, *FLAGS, path.resolve().as_uri()]
        seen = subprocess.run(command, capture_output=True, text=True, timeout=120)
        text = "".join(Page(seen.stdout).text)
        yield from (f"raw TeX: {tex}" for tex in re.findall(r"\\[(\[].{0,40}", text))
        errors = re.findall(r"CONSOLE.*?\] \"(.*(?:Error|Uncaught|Failed).*)", seen.stderr)
        yield from (f"console: {error[:200]}" for error in errors)


def main(folder):
    """Check all pages of a folder and return how many are wrong."""
    browser = next((b for b in BROWSERS if shutil.which(b)), None)
    pages = sorted(p for p in folder.rglob("*.html") if "_static" not in p.parts)
    wrong = 0
    for page in pages:
        found = list(complaints(page, browser))
        wrong += bool(found)
        for complaint in found:
            print(f"{page.relative_to(folder)}: {complaint}")
    print(f"{len(pages)} pages, {wrong} of them wrong; browser: {browser or 'none'}")
    return wrong


if __name__ == "__main__":
    default = pathlib.Path(__file__).parent / "_build" / "html"
    sys.exit(bool(main(pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else default)))
