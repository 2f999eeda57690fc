"""The pictures of docs/viewer.md: pages of the viewer in a headless Chromium.

marft train demo && marft train demo_token && marft train tools/site/pictured_team.toml
marft eval runs/pictured && marft worth runs/pictured --tasks 60 --only single,leave-out,counterfactual
python tools/site/photographs.py runs       # writes docs/assets/viewer/*.png
"""

from __future__ import annotations

import argparse
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from playwright.sync_api import Browser, Playwright, sync_playwright

from marft_serve.viewer.app import Viewer

OUT = Path(__file__).parents[2] / "docs" / "assets" / "viewer"
SIZE = (1360, 850)
MOST = 200_000  # bytes


@dataclass(frozen=True, slots=True)
class Picture:
    """Picture of one page, taken when ``visible`` is shown and ``click`` was clicked."""

    name: str
    place: str
    visible: str
    theme: Literal["light", "dark"] = "light"
    click: str = ""
    part: str = ""  # of the page, where not all of it is photographed


PICTURES = [
    Picture("runs", "runs?smooth=0.5", ".curves .line"),
    Picture("run", "run/{run}", ".team .seat"),
    Picture("worth", "run/{run}", ".worth-lanes .act", part=".panel:has(.worth)"),
    Picture("episodes", "run/{run}/episodes?sort=reward&order=asc", ".inside .tag"),
    Picture("episode", "run/{run}/episodes/{step}/{index}?colour=advantage", ".tokens .token", click=".act >> nth=4"),
    Picture("episode-dark", "run/{run}/episodes/{step}/{index}?colour=log_prob", ".tokens .token", theme="dark"),
    Picture("credit", "run/{run}/credit?step={step}", ".histogram rect"),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, help="a folder of runs")
    parser.add_argument("--run", default="pictured", help="the run whose pages are photographed")
    parser.add_argument("--step", default="15", help="the recorded step that they show")
    parser.add_argument("--index", default="3", help="the episode of that step")
    options = parser.parse_args()
    OUT.mkdir(parents=True, exist_ok=True)
    viewer = Viewer([options.runs], "127.0.0.1", 0)
    try:
        with sync_playwright() as started:
            browser = launch(started)
            for picture in PICTURES:
                _take(browser, viewer, picture, {"run": options.run, "step": options.step, "index": options.index})
    finally:
        viewer.close()


def launch(playwright: Playwright) -> Browser:
    """Start the installed Chromium.

    Raises:
        SystemExit: there is none.
    """
    chromium = os.environ.get("MARFT_CHROMIUM") or shutil.which("chromium")
    if not chromium:
        raise SystemExit("no Chromium is here: install one, or name it in MARFT_CHROMIUM")
    return playwright.chromium.launch(executable_path=chromium, args=[] if os.geteuid() else ["--no-sandbox"])


def _take(browser: Browser, viewer: Viewer, picture: Picture, names: Mapping[str, str]) -> None:
    context = browser.new_context(
        viewport={"width": SIZE[0], "height": SIZE[1]}, color_scheme=picture.theme, reduced_motion="reduce"
    )
    page = context.new_page()
    page.goto(f"{viewer.url}#/{picture.place.format(**names)}")
    page.wait_for_selector(picture.visible)
    if picture.click:
        page.click(picture.click)
        page.mouse.move(700, 90)
        page.evaluate("scrollTo(0, 0)")
    page.wait_for_timeout(2500)  # curves and tokens come one after another
    path = OUT / f"{picture.name}.png"
    if picture.part:
        page.set_viewport_size({"width": SIZE[0], "height": 2 * SIZE[1]})
        page.locator(picture.part).screenshot(path=path)
    else:
        page.screenshot(path=path)
    context.close()
    size = path.stat().st_size
    print(f"{path}  {size / 1000:.0f} kB")
    if size > MOST:
        raise SystemExit(f"{path} is larger than {MOST / 1000:.0f} kB")


if __name__ == "__main__":
    main()
