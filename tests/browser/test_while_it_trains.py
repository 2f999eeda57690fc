"""Pages that are open while their run goes on, and the filters that an address brings along."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from transformers import PreTrainedTokenizerBase

from marft.runs.episode_files import read_episodes, write_episodes
from marft.runs.run_folder import RunFolder
from marft_serve.viewer.app import Viewer
from marft_serve.viewer.episode_index import IndexCache
from tests.browser.conftest import Seen, playwright, watched
from tests.browser.played_team import STEPS, evaluate, make_run

pytestmark = pytest.mark.slow


@pytest.fixture
def growing(tmp_path: Path, tiny_tokenizer: PreTrainedTokenizerBase) -> RunFolder:
    """A run of 40 steps, of which three are over."""
    folder = make_run(tmp_path, tiny_tokenizer, "growing")
    text = folder.config_path.read_text(encoding="utf-8")
    folder.config_path.write_text(text.replace(f"\nsteps = {STEPS}\n", "\nsteps = 40\n"), encoding="utf-8")
    owner = {"pid": os.getppid(), "host": socket.gethostname(), "since": ""}  # a process that lives
    (folder.path / "run.lock").write_text(json.dumps(owner))
    return folder


@pytest.fixture
def watching(browser: playwright.Browser, growing: RunFolder, tmp_path: Path) -> Iterator[Seen]:
    viewer = Viewer([tmp_path], "127.0.0.1", 0, cache=IndexCache(tmp_path / "cache"))
    yield from watched(browser, viewer)
    viewer.close()


def record(folder: RunFolder, step: int) -> None:
    """One more recorded step."""
    write_episodes(folder.episodes / f"step_{step:06d}.parquet", read_episodes(folder.episodes / "step_000001.parquet"))


def test_what_is_evaluated_and_recorded_meanwhile_comes_to_the_page_of_the_run(
    watching: Seen, growing: RunFolder, tiny_tokenizer: PreTrainedTokenizerBase
) -> None:
    watching.open("run/growing", ".team .seat")
    watching.visible(".tile", "about 55.5 s left")
    watching.visible(".seats", f"step {STEPS}:")
    assert watching.page.locator(".evaluated table").count() == 0
    evaluate(growing, tiny_tokenizer)
    record(growing, STEPS + 1)
    watching.page.wait_for_selector(".evaluated a:text-is('base-sampled')")
    watching.visible(".seats", f"step {STEPS + 1}:")


def test_a_step_of_the_team_that_was_chosen_stays(watching: Seen, growing: RunFolder) -> None:
    watching.open("run/growing?step=2", ".team .seat")
    watching.visible(".seats", "step 2:")
    asked = len(of_team(watching))
    record(growing, STEPS + 1)
    watching.visible("a.tile .more", "steps")
    watching.visible("a.tile strong", f"{STEPS + 1}")
    assert len(of_team(watching)) == asked, "and is not drawn anew"
    watching.visible(".seats", "step 2:")


def of_team(seen: Seen) -> list[str]:
    return [url for url in seen.requests if "/team?" in url]


def test_that_there_are_new_episodes_is_said_and_the_list_stays_where_it_is(watching: Seen, growing: RunFolder) -> None:
    watching.open("run/growing/episodes", ".inside .line .tag")
    watching.visible(".filters .hint", "24 episodes")
    record(growing, STEPS + 1)
    watching.visible(".filters .hint", "24 episodes · new steps are recorded")


def test_every_filter_of_an_address_is_asked_for_and_can_be_cleared(seen: Seen) -> None:
    filters = {
        "step": "2", "q": "sum", "agent": "actor", "task": "sum/always", "status": "terminated", "success": "false",
        "guard": "kl", "reward_min": "-1", "reward_max": "0.5", "sort": "tokens", "order": "asc",
    }  # fmt: skip
    seen.open("run/team/episodes?" + "&".join(f"{name}={value}" for name, value in filters.items()), ".empty button")
    *_, last = (parse_qs(urlsplit(url).query) for url in seen.requests if "/team/episodes?" in url)
    assert {name: value for name, (value,) in last.items() if name in filters} == filters
    seen.page.get_by_text("Clear all filters").click()
    seen.visible(".filters .hint", "154 episodes")
    *_, last = (parse_qs(urlsplit(url).query) for url in seen.requests if "/team/episodes?" in url)
    assert {name: value for name, (value,) in last.items() if name in filters} == {"sort": "tokens", "order": "asc"}


def test_while_steps_are_still_read_it_says_how_far_that_has_come_and_looks_again_soon(seen: Seen) -> None:
    """Also where the run is over, and its pages ask less often."""
    ends = time.monotonic() + 2

    def answer(route: playwright.Route) -> None:
        told = route.fetch().json()
        route.fulfill(json={**told, "indexed": 1 if time.monotonic() < ends else 3, "files": 3})

    seen.page.route("**/team/episodes?*", answer)
    seen.open("run/team/episodes", ".inside .line .tag")
    seen.visible(".filters .hint", "154 episodes in 1 of 3 steps; the others are being read")
    seen.until("document.querySelector('.filters .hint').textContent === '154 episodes'")
    assert time.monotonic() < ends + 5
    seen.page.unroute_all(behavior="wait")
