"""A browser, the viewer on a small run, and a page that remembers what went wrong in it."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerBase

from marft_serve.viewer.app import Viewer
from marft_serve.viewer.episode_index import IndexCache
from tests.browser.played_team import evaluate, make_run

playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed: pip install playwright")
CHROMIUM = os.environ.get("MARFT_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")


@dataclass(slots=True)
class Seen:
    """A page, with what its console and its requests said."""

    page: playwright.Page
    address: str
    problems: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def open(self, place: str, waits_for: str) -> None:
        """Go to a view and wait for something that it shows."""
        self.page.evaluate("(hash) => { location.hash = hash; }", f"#/{place}")
        shows = place.split("?")[0]
        self.page.wait_for_selector(f"#page[data-shows='{shows}'] {waits_for}")

    def until(self, expression: str, argument: object = None) -> None:
        """Wait until JavaScript is true. Playwright's own way to wait is an eval in the page, which its policy forbids."""
        ends = time.monotonic() + 10
        while not self.page.evaluate(expression, argument):
            assert time.monotonic() < ends, expression
            time.sleep(0.03)

    def visible(self, selector: str, text: str) -> None:
        """Wait until an element's text has this in it."""
        self.until("([where, text]) => document.querySelector(where)?.textContent.includes(text)", [selector, text])

    def placed(self, *parts: str) -> None:
        """Wait until the address has all of these in it."""
        self.until("(parts) => parts.every((part) => location.hash.includes(part))", list(parts))

    def photograph(self, folder: Path, name: str) -> None:
        path = folder / f"{name}.png"
        self.page.screenshot(path=path)
        assert path.stat().st_size > 5000


@contextmanager
def loop_of(browser: playwright.Browser) -> Iterator[None]:
    """Playwright's loop counts as this thread's running one while a page is asked, and no longer: tests of others, which
    the same process takes before the browser is closed, run loops of their own."""
    asyncio._set_running_loop(browser._loop)
    try:
        yield
    finally:
        asyncio._set_running_loop(None)


@pytest.fixture(scope="session")
def browser() -> Iterator[playwright.Browser]:
    if not CHROMIUM:
        pytest.skip("no Chromium is here: install one, or name it in MARFT_CHROMIUM")
    with playwright.sync_playwright() as started:
        sandbox = [] if os.geteuid() else ["--no-sandbox"]  # which Chromium has none of for root
        browser = started.chromium.launch(executable_path=CHROMIUM, args=sandbox)
        asyncio._set_running_loop(None)
        yield browser
        asyncio._set_running_loop(browser._loop)
        browser.close()


@pytest.fixture(scope="session")
def output(tmp_path_factory: pytest.TempPathFactory, tiny_tokenizer: PreTrainedTokenizerBase) -> Path:
    """A folder with two runs that stay as they are."""
    output = tmp_path_factory.mktemp("runs")
    make_run(output, tiny_tokenizer, many=130)
    evaluate(make_run(output, tiny_tokenizer, "other"), tiny_tokenizer)
    return output


@pytest.fixture(scope="session")
def viewer(output: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Viewer]:
    viewer = Viewer([output], "127.0.0.1", 0, cache=IndexCache(tmp_path_factory.mktemp("cache")))
    yield viewer
    viewer.close()


@pytest.fixture
def seen(browser: playwright.Browser, viewer: Viewer) -> Iterator[Seen]:
    """A page of its own, let in by the token; at the end nothing may have gone wrong in it."""
    yield from watched(browser, viewer)


def watched(browser: playwright.Browser, viewer: Viewer, **options: object) -> Iterator[Seen]:
    """The same with another viewer, another size, another theme."""
    with loop_of(browser):
        context = browser.new_context(**{"viewport": {"width": 1440, "height": 900}, **options})
        context.set_default_timeout(8000)
        context.set_default_navigation_timeout(30_000)  # the browser's first page waits while others take the processor
        seen = Seen(context.new_page(), viewer.address)
        told = {"error", "warning"}
        seen.page.on("console", lambda message: message.type in told and seen.problems.append(message.text))
        seen.page.on("pageerror", lambda error: seen.problems.append(str(error)))
        seen.page.on("request", lambda request: seen.requests.append(request.url))
        seen.page.goto(f"{viewer.url}#/nowhere")
        seen.page.wait_for_selector("#page .empty")
        yield seen
        context.close()
    assert not seen.problems
    elsewhere = [url for url in seen.requests if not url.startswith((seen.address, "data:", "about:"))]
    assert not elsewhere
