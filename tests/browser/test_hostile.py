"""Texts that would like to be markup or code, on every page of the viewer and in the files that are sent around."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from marft.runs.run_folder import RunFolder
from marft_serve.viewer.access import CONTENT_POLICY
from marft_serve.viewer.app import Viewer
from marft_serve.viewer.episode_index import IndexCache
from tests.browser.conftest import Seen, loop_of, playwright, watched
from tests.browser.hostile_run import NAME, make_hostile
from tests.nights import NIGHT

pytestmark = pytest.mark.slow
QUESTIONS = {  # pages of a run, and what stands on each once it is drawn
    "": "article.card", "/episodes": ".inside .line .tag", "/episodes?q=pwned": ".inside .line .tag",
    "/episodes/1/0": ".lanes .act", "/episodes/1/1?colour=advantage": ".tokens .token", "/episodes/1/2": ".turn",
    "/episodes/NAME-sampled/0": ".turn", "/credit?step=1": ".histogram rect", "/beside": ".two .turn",
}  # fmt: skip
EXECUTABLE = (
    "script, img, iframe, object, embed, base, meta, animate, [srcdoc], [onerror], [onload], [ontoggle], [onbegin]"
)

OPEN = "document.querySelectorAll('details').forEach((one) => { one.open = true; })"


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return make_hostile(tmp_path_factory.mktemp("runs"))


@contextmanager
def viewer_of(folder: RunFolder, cache: Path) -> Iterator[Viewer]:
    viewer = Viewer([folder.path.parent], "127.0.0.1", 0, cache=IndexCache(cache))
    try:
        yield viewer
    finally:
        viewer.close()


def use_everything(seen: Seen) -> None:
    """Open what opens, point at what tells something, focus what can be focused."""
    page = seen.page
    page.evaluate(OPEN)
    for button in page.locator(".turn footer button:has-text('Prompt')").all()[:3]:
        button.click()
    for what in (".act", ".token", ".curves", ".seat", ".histogram", ".attempts circle"):
        for one in page.locator(f"main {what}").all()[:3]:
            one.dispatch_event("pointerover")
            one.dispatch_event("pointermove")
    for _ in range(15):
        page.keyboard.press("Tab")


def dialogs_of(page: playwright.Page) -> list[str]:
    """What dialogs say, from now on."""
    said = list[str]()
    page.on("dialog", lambda dialog: (said.append(dialog.message), dialog.dismiss()))
    return said


def test_nothing_that_a_run_holds_is_executed_on_any_page(
    browser: playwright.Browser, hostile: RunFolder, tmp_path: Path
) -> None:
    with viewer_of(hostile, tmp_path / "cache") as viewer:
        for seen in watched(browser, viewer):
            dialogs = dialogs_of(seen.page)
            seen.open("runs", ".curves .line")
            use_everything(seen)
            for rest, shows in QUESTIONS.items():
                rest = rest.replace("NAME", NAME)
                path, _, query = rest.partition("?")
                parts = ["run", f"{NAME}run", *filter(None, path.split("/"))]
                seen.page.evaluate(
                    "([parts, query]) => { location.hash = '#/' + parts.map(encodeURIComponent).join('/') + query; }",
                    [parts, f"?{query}" if query else ""],
                )
                seen.until("(place) => document.getElementById('page').dataset.shows === place", "/".join(parts))
                seen.page.wait_for_selector(f"#page {shows}")
                use_everything(seen)
                told = seen.page.evaluate(
                    "(wrong) => document.querySelectorAll(wrong).length", f":is(main, #tip, #crumbs) :is({EXECUTABLE})"
                )
                assert told == 0, rest
                links = seen.page.evaluate(
                    "[...document.querySelectorAll('a, area, use')].map((one) => one.getAttribute('href') || '')"
                )
                assert all(link.startswith(("#/", "/", "")) and "script:" not in link[:12] for link in links)
                assert seen.page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, rest
                assert seen.page.evaluate("window.pwned") is None, rest
            assert not dialogs


def test_every_answer_forbids_what_is_not_the_viewers_own(hostile: RunFolder, tmp_path: Path) -> None:
    with viewer_of(hostile, tmp_path / "cache") as viewer:
        for path in ("/", "/static/main.js", "/api/runs", "/api/nowhere", "/static/nowhere.js"):
            headers = httpx.get(f"{viewer.address}{path}", headers={"authorization": f"Bearer {viewer.token}"}).headers
            assert headers["content-security-policy"] == CONTENT_POLICY
            assert headers["x-content-type-options"] == "nosniff"
    assert "unsafe" not in CONTENT_POLICY


@pytest.mark.parametrize("name", ["report.html", "worth/worth.html"])
def test_a_page_that_is_sent_around_executes_and_loads_nothing(
    browser: playwright.Browser, hostile: RunFolder, name: str
) -> None:
    with loop_of(browser):
        context = browser.new_context()
        page, asked = context.new_page(), list[str]()
        said = dialogs_of(page)
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto((hostile.path / name).as_uri())
        assert len(asked) == 1, "the page itself"
        page.evaluate(OPEN)
        policy = page.locator("meta[http-equiv]").get_attribute("content")
        assert policy == "default-src 'none'; style-src 'unsafe-inline'"
        wrong = EXECUTABLE.replace("meta", "meta:not(head > meta)")
        assert page.locator(wrong).count() == 0
        assert page.locator("a[href], [href^='javascript']").count() == 0
        assert page.evaluate("window.pwned") is None
        assert "<script>window.pwned=1</script>" in page.locator("body").inner_text()
        assert len(asked) == 1
        assert not said
        context.close()


@pytest.mark.skipif(not NIGHT, reason="a tenth of a minute: make nightly")
def test_a_run_that_goes_while_it_is_shown_is_said_to_be_gone_and_shown_again_when_it_is_back(
    browser: playwright.Browser, hostile: RunFolder, tmp_path: Path
) -> None:
    output = tmp_path / "runs"
    folder = RunFolder(Path(shutil.copytree(hostile.path.parent, output)) / hostile.path.name)
    with viewer_of(folder, tmp_path / "cache") as viewer, loop_of(browser):
        context = browser.new_context()
        page = context.new_page()
        page.goto(f"{viewer.url}#/run/{NAME}run".replace("<", "%3C").replace(">", "%3E").replace(" ", "%20"))
        page.wait_for_selector("article.card")
        moved = folder.path.rename(tmp_path / "moved")
        page.wait_for_selector(".live[data-state=lost]:has-text('It is gone')", timeout=15_000)
        page.reload()
        page.wait_for_selector("#page .empty:has-text('There is no run')")
        moved.rename(folder.path)
        page.reload()
        page.wait_for_selector("article.card")
        context.close()
