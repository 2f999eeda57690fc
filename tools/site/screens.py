"""Screenshots of what newcomers see first: the README, the site's home page and the terminal at 100 columns.

python tools/site/screens.py            # trains a few steps of the demo; writes build/screens/*.png
"""

from __future__ import annotations

import argparse
import os
import pty
import re
import subprocess
import sys
import tempfile
from io import StringIO
from pathlib import Path

import markdown  # type: ignore[import-untyped]
from photographs import launch
from playwright.sync_api import Page, sync_playwright
from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).parents[2]
OUT = ROOT / "build" / "screens"
COLUMNS = 100
SIZE = (1280, 900)
STYLE = """body { max-width: 1012px; margin: 32px auto; font: 16px/1.5 sans-serif; color: #1f2328 }
img { max-width: 100% } pre { background: #f6f8fa; padding: 16px } code { font-family: monospace; font-size: 85% }
table { border-collapse: collapse } td, th { border: 1px solid #d1d9e0; padding: 6px 13px }"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=8, help="steps of the demo in the terminal's picture")
    steps = parser.parse_args().steps
    OUT.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        site = Path(folder) / "site"
        command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(site)]
        subprocess.run(command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, check=True)
        browser = launch(playwright)
        page = browser.new_page(viewport={"width": SIZE[0], "height": SIZE[1]})
        _photograph(page, site / "index.html", "home")
        readme = Path(folder) / "readme.html"
        readme.write_text(_readme(), encoding="utf-8")
        _photograph(page, readme, "readme")
        terminal = Path(folder) / "terminal.svg"
        terminal.write_text(_terminal(Path(folder), steps), encoding="utf-8")
        _photograph(page, terminal, "terminal")
        browser.close()


def _photograph(page: Page, file: Path, name: str) -> None:
    page.goto(file.as_uri())
    page.wait_for_timeout(500)  # fonts and pictures
    page.screenshot(path=OUT / f"{name}.png")
    print(OUT / f"{name}.png")


def _readme() -> str:
    """Return the README as a page, in the width of a code host."""
    body = markdown.markdown((ROOT / "README.md").read_text(encoding="utf-8"), extensions=["tables", "fenced_code"])
    return f'<meta charset="utf-8"><base href="{ROOT.as_uri()}/"><style>{STYLE}</style>{body}'


def _terminal(folder: Path, steps: int) -> str:
    """Return what a terminal shows of a short demo, as SVG."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "marft", "train", "demo", "--training.steps", str(steps), "--output", str(folder)]
    environment = {**os.environ, "COLUMNS": str(COLUMNS), "LINES": "40", "TERM": "xterm-256color"}
    with subprocess.Popen(command, stdout=theirs, stderr=theirs, cwd=folder, env=environment) as process:
        os.close(theirs)
        shown = b"".join(_read_all(ours))
    if process.returncode:
        raise SystemExit(shown.decode(errors="replace"))
    console = Console(record=True, width=COLUMNS, file=StringIO())
    console.print(Text("$ " + " ".join(["marft", *command[3:-2]])))
    for line in _final_lines(shown.decode(errors="replace")):
        console.print(Text.from_ansi(line))
    return console.export_svg(title="marft train")


def _final_lines(shown: str) -> list[str]:
    """Return the lines that remain on a terminal after the progress display has moved up and erased its own."""
    lines, row = [""], 0
    for part in re.split(r"(\n|\r|\x1b\[\d*A|\x1b\[2K|\x1b\[\?25[hl])", shown):
        if part == "\n":
            row += 1
            lines += [""] * (row == len(lines))
        elif part.endswith("A") and part.startswith("\x1b["):
            row = max(0, row - int(part[2:-1] or 1))
        elif part in ("\r", "\x1b[2K"):
            lines[row] = "" if part == "\x1b[2K" else lines[row]
        elif part and not part.startswith("\x1b[?25"):
            lines[row] += part
    return lines


def _read_all(terminal: int) -> list[bytes]:
    parts = list[bytes]()
    while True:
        try:
            part = os.read(terminal, 65536)
        except OSError:  # the other end is closed
            return parts
        if not part:
            return parts
        parts.append(part)


if __name__ == "__main__":
    main()
