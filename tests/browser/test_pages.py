"""Every page of the viewer in a real browser: opened, looked at, used."""

from __future__ import annotations

import json
import os
import re
import socket
from contextlib import ExitStack
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerBase

from marft.runs.run_folder import RunFolder
from marft_serve.viewer.app import Viewer
from marft_serve.viewer.episode_index import IndexCache
from tests.browser.conftest import Seen, playwright, watched
from tests.browser.played_team import HOSTILE, STEPS, log_step, make_run
from tests.marft_serve.test_viewer_colours import contrast
from tests.nights import NIGHT

pytestmark = pytest.mark.slow
PAGES = {
    "runs": ("runs", ".curves .line"),
    "run": ("run/team", ".team .seat"),
    "evaluated": ("run/other", ".evaluated table"),
    "episodes": ("run/team/episodes", ".inside .line .tag"),
    "episode": ("run/team/episodes/2/3", ".lanes .act"),
    "tokens": ("run/team/episodes/2/3?colour=advantage", ".tokens .token"),
    "credit": ("run/team/credit?step=2", ".histogram rect"),
    "beside": ("run/team/beside?task=sum/always", ".two .turn"),
}


@pytest.mark.parametrize(("theme", "width"), [("light", 2000), ("dark", 1280), ("light", 800)])
def test_every_page_opens_in_light_and_dark_from_800_to_2000_pixels(
    browser: playwright.Browser, viewer: Viewer, tmp_path: Path, theme: str, width: int
) -> None:
    for seen in watched(browser, viewer, color_scheme=theme, viewport={"width": width, "height": 900}):
        for name, (place, shows) in PAGES.items():
            seen.open(place, shows)
            if theme == "dark":
                seen.photograph(tmp_path, name)
            assert seen.page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, name
            background = seen.page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
            assert (background == "rgb(15, 21, 25)") == (theme == "dark")


def test_what_models_write_is_text_everywhere(seen: Seen) -> None:
    for place, shows in PAGES.values():
        seen.open(place, shows)
        assert seen.page.evaluate("window.hacked") is None
        assert (
            seen.page.locator("main script, main img, main b:text-is('sum'), main a[href^='javascript']").count() == 0
        )
    seen.open("run/team/episodes/2/3", ".turn")
    assert HOSTILE in seen.page.locator(".turn[id='turn-0/critic/0'] .said").inner_text()
    assert seen.page.locator("h1").inner_text().startswith("<b>sum</b>/2")
    for turn in seen.page.locator(".turn footer button:has-text('Prompt')").all()[:4]:
        turn.click()
    seen.page.wait_for_selector(".prompt pre .of.action >> nth=3")
    assert seen.page.evaluate("window.hacked") is None


def test_curves_are_overlaid_filtered_smoothed_and_read(seen: Seen) -> None:
    page = seen.page
    seen.open("runs?runs=team,other", ".curves .line")
    page.wait_for_selector(".card:has(h4:text-is('reward')) .curves .line >> nth=1")  # cards come one after the other
    assert page.locator(".card:has(h4:text-is('reward')) .curves .line").count() == 2
    page.locator(".curves").first.hover()
    assert page.locator("#tip .number").count() == 2
    page.locator(".run input[type=checkbox]").first.uncheck()
    seen.until("document.querySelector('.card .curves').querySelectorAll('.line').length === 1")
    page.keyboard.press("/")
    page.get_by_label("Find a run").press("Escape")
    filtering = page.get_by_label("Filter metrics by name")
    filtering.fill("entropy")
    page.wait_for_selector(".group h3:text-is('Found')")
    page.wait_for_selector(".curves .line")
    assert page.locator(".card").count() == 1
    assert page.locator(".curves .line").count() == 4  # one an agent
    page.get_by_label("Smoothing").fill("0.5")
    page.get_by_label("Log scale").check()
    assert page.locator(".curves .raw").count() == 4
    seen.placed("metrics=entropy", "smooth=0.5", "log=1")


def test_a_chart_is_zoomed_by_dragging_and_read_by_keys(seen: Seen) -> None:
    page = seen.page
    seen.open("run/team", ".curves .line")
    chart = page.locator(".curves").first
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    assert box
    page.mouse.move(box["x"] + box["width"] * 0.55, box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] - 20, box["y"] + 90, steps=3)
    page.mouse.up()
    page.wait_for_selector("button:has-text('Show all steps'):visible")
    page.locator("button:has-text('Show all steps')").click()
    chart.focus()
    chart.press("ArrowRight")
    chart.press("ArrowRight")
    assert page.locator("#tip").inner_text().startswith("Step 2")


@pytest.mark.skipif(not NIGHT, reason="a run: make nightly")
def test_a_run_that_trains_is_followed_until_the_server_is_gone(
    browser: playwright.Browser, tmp_path: Path, tiny_tokenizer: PreTrainedTokenizerBase
) -> None:
    folder: RunFolder = make_run(tmp_path, tiny_tokenizer, "growing")
    owner = {"pid": os.getppid(), "host": socket.gethostname(), "since": ""}  # a process that lives
    (folder.path / "run.lock").write_text(json.dumps(owner))
    viewer = Viewer([tmp_path], "127.0.0.1", 0, cache=IndexCache(tmp_path / "cache"))
    with ExitStack() as ends:
        ends.callback(viewer.close)
        for watching in watched(browser, viewer):
            page = watching.page
            watching.open("runs", ".curves .line")
            page.wait_for_selector(".live[data-state=live]")
            before = page.locator(".curves .line").first.get_attribute("d")
            log_step(folder, STEPS + 1)
            page.wait_for_selector(".earned strong:text-is('0.8')")
            watching.until("(before) => document.querySelector('.curves .line').getAttribute('d') !== before", before)
            watching.open("run/growing", ".worth .ask")
            folder.worth.mkdir()
            (folder.worth / "worth.json").write_text('{"headline": "the team is better"}')
            page.wait_for_selector(".worth .headline:text-is('the team is better.')")
            ends.close()
            page.wait_for_selector(".live[data-state=lost]:has-text('No connection')")
            watching.problems[:] = [one for one in watching.problems if "net::ERR" not in one]  # Chromium's own


def test_episodes_are_found_sorted_and_opened_by_keys(seen: Seen) -> None:
    page = seen.page
    seen.open("run/team/episodes", ".inside .line")
    seen.visible(".filters .hint", "154 episodes")
    assert page.locator(".inside .line").count() < 40
    page.locator(".virtual").press("End")
    page.wait_for_selector("#line-153.active")
    page.get_by_label("Search episodes").fill("short 12")
    seen.visible(".filters .hint", "11 episodes")
    assert "q=short+12" in page.url
    page.locator("button:text-is('Clear')").click()
    page.get_by_label("Lowest reward").fill("1.2")
    seen.visible(".filters .hint", "3 episodes")
    page.get_by_label("Sort by reward, highest first").click()
    seen.placed("sort=reward")
    page.locator(".virtual").focus()
    page.keyboard.press("j")
    page.keyboard.press("k")
    page.keyboard.press("Enter")
    page.wait_for_selector(".lanes .act")
    assert "/episodes/" in page.url
    seen.open("run/team/episodes?task=nowhere", ".empty")
    page.locator("button:text-is('Clear all filters')").click()
    page.wait_for_selector(".inside .line")


def test_an_episode_shows_who_saw_whom_and_what_each_token_was_worth(seen: Seen) -> None:
    page = seen.page
    seen.open("run/team/episodes/2/3", ".lanes .act")
    assert page.locator(".lanes .act").count() == 8
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("k")
    assert page.locator(".turn.selected").get_attribute("id") == "turn-0/planner/0"
    assert page.locator(".arrows .out").count() == 3
    page.locator(".act").nth(3).click()
    assert page.locator(".arrows .in").count() == 3
    assert "action=0%2Factor%2F0" in page.url
    page.keyboard.press("p")
    page.wait_for_selector(".turn.selected .prompt pre")
    for kind in ("Advantage", "Log-prob", "Entropy", "Value", "Learner − engine"):
        page.locator(".choice span", has_text=kind).click()
        page.wait_for_selector(".tokens .token")
        seen.until(
            "[...document.querySelectorAll('.token')].some((one) => !['', 'rgba(0, 0, 0, 0)'].includes(getComputedStyle(one).backgroundColor))"
        )
    page.locator(".tokens").first.focus()
    page.keyboard.press("ArrowRight")
    assert page.locator("#tip .number").count() == 5
    page.locator(".choice span", has_text="Text").click()
    assert page.locator(".tokens").count() == 0
    assert "completion" in page.locator(".terms").inner_text()
    assert page.locator(".options .chosen .number").first.inner_text().startswith("75")
    page.keyboard.press("[")
    seen.placed("/episodes/2/2")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_most_strongly_coloured_token_can_be_read(browser: playwright.Browser, viewer: Viewer, theme: str) -> None:
    for seen in watched(browser, viewer, color_scheme=theme):
        for kind in ("advantage", "log_prob", "entropy", "value", "difference"):
            seen.open(f"run/team/episodes/2/3?colour={kind}", ".tokens .token")
            seen.until("[...document.querySelectorAll('.token')].some((one) => one.style.backgroundColor)")
            text, ground, *grounds = seen.page.evaluate(
                "[...new Set([getComputedStyle(document.querySelector('.token')).color,"
                " getComputedStyle(document.querySelector('.turn')).backgroundColor,"
                " ...[...document.querySelectorAll('.token')].map((one) => getComputedStyle(one).backgroundColor)])]"
            )
            (red, green, blue), surface = numbers(text), numbers(ground)
            laid = [numbers(one) for one in grounds if len(numbers(one)) == 4]
            assert max(part for *_, part in laid) > 0.5, "the scale is used to its end"
            for *colour, part in laid:
                mixed = [part * c + (1 - part) * s for c, s in zip(colour, surface, strict=True)]
                assert contrast((red, green, blue), (mixed[0], mixed[1], mixed[2])) >= 4.5, (kind, colour, part)


def numbers(colour: str) -> list[float]:
    """``rgb(255, 0, 0 / 0.5)`` → [1.0, 0.0, 0.0, 0.5]."""
    red, green, blue, *part = map(float, re.findall(r"[\d.]+", colour))
    return [red / 255, green / 255, blue / 255, *part]


def test_play_again_is_copied_as_it_stands(browser: playwright.Browser, viewer: Viewer) -> None:
    for seen in watched(browser, viewer, permissions=["clipboard-read", "clipboard-write"]):
        seen.open("run/team/episodes/2/3", ".turn footer .copy")
        shown = seen.page.locator(".turn footer .command").nth(1).inner_text()
        seen.page.locator(".turn footer .copy").nth(1).click()
        assert seen.page.evaluate("navigator.clipboard.readText()") == shown
        assert shown.startswith("marft play ")
        assert "0/coder/0" in shown


def test_the_credit_audit_names_groups_that_taught_nothing(seen: Seen) -> None:
    page = seen.page
    seen.open("run/team/credit?step=2", ".group-row")
    assert page.locator(".group-row.zero").inner_text().startswith("sum/always")
    assert "50" in page.locator(".tile", has_text="Equal groups").inner_text()
    assert page.locator(".histogram").count() == 4
    page.get_by_label("Step after").click()
    seen.placed("step=3")


def test_two_checkpoints_stand_side_by_side(seen: Seen) -> None:
    page = seen.page
    seen.open("run/team/beside", ".two .turn")
    assert page.locator(".side-head h2").all_inner_texts() == ["step 1", "step 3"]
    assert page.locator(".two .turn").count() == 16
    page.locator(".attempt-tabs button").nth(2).click()
    page.wait_for_selector(".attempt-tabs button[aria-pressed=true] >> nth=1")
    page.get_by_label("Left").select_option("step 2")
    page.wait_for_selector(".side-head h2:text-is('step 2')")


def test_evaluations_stand_on_the_page_of_their_run_and_open_their_episodes(seen: Seen) -> None:
    page = seen.page
    seen.open("run/other", ".evaluated table")
    rows = page.locator(".evaluated table").first.locator("tr").all_inner_texts()
    assert rows[0].split("\t") == [
        "Evaluation",
        "Tasks",
        "Accuracy",
        "95\u202f%",
        "Reward",
        "95\u202f%",
        "pass@2",
        "95\u202f%",
    ]
    assert [row.split("\t")[:3] for row in rows[1:]] == [
        ["base-sampled", "20", "27.5\u202f%"],
        ["last-sampled", "20", ""],
    ]
    page.get_by_text("Metrics over trajectories").click()
    page.wait_for_selector(".evaluated details td:text-is('175')")
    page.get_by_label("By cohort").select_option("level")
    page.wait_for_selector(".evaluated td b:text-is('level = hard')")
    assert seen.page.evaluate("document.activeElement.value") == "level", "who chooses by keys can go on"
    seen.placed("run/other", "by=level")
    seen.open("run/other?by=gone", ".evaluated .bad")
    assert "no field 'gone'" in page.locator(".evaluated .bad").inner_text()
    page.locator(".evaluated a:text-is('base-sampled')").click()
    seen.placed("run/other/episodes", "step=base-sampled")
    seen.visible(".filters", "1 episode")
    assert page.locator(".filters select").first.input_value() == "base-sampled"


def test_what_the_team_is_worth_stands_on_the_page_of_its_run(seen: Seen) -> None:
    page = seen.page
    seen.open("run/other", ".worth .worth-lanes .act")
    assert page.locator(".worth .headline").inner_text().startswith("the team is better <script>")
    first = page.locator(".worth table").first.locator("tbody tr").first.inner_text().split("\t")
    assert first[1:5] == ["20.0\u202f%", "10.0\u202f% to 30.0\u202f%", "−30.0", "−50.0 to −10.0"]
    assert page.locator(".worth .interval.minus").count() == 1
    assert page.locator(".worth-lanes .act text").all_text_contents() == (["−0.75"] * 3 + [""]) * 2
    page.locator(".worth-lanes .act").nth(1).click()
    assert page.locator(".contributed tr.selected").inner_text().split("\t")[:3] == ["coder", "−0.75", "1, 0.5"]
    page.locator(".worth .attempt-tabs button", has_text="other").click()
    seen.visible(".contributed tbody", "not sampled again")
    seen.open("run/team", ".worth .ask")
    assert page.locator(".worth .command").inner_text().startswith("marft worth /")


def test_the_theme_is_chosen_and_kept(seen: Seen) -> None:
    page = seen.page
    seen.open("runs", ".run")
    page.get_by_label("Switch to dark").click()
    page.reload()
    page.wait_for_selector(".run")
    assert page.evaluate("getComputedStyle(document.documentElement).colorScheme") == "dark"
    page.get_by_label("Switch to light").click()


def test_everything_is_reached_by_keys_and_is_seen_to_be(seen: Seen) -> None:
    page = seen.page
    seen.open("runs", ".curves .line")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the page"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "page"
    page.keyboard.press("?")
    assert page.locator("dialog.keys").is_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.type") == "search"
    page.keyboard.press("Escape")
    reached = set()
    for _ in range(40):
        page.keyboard.press("Tab")
        reached.add(
            page.evaluate(
                "document.activeElement.getAttribute('aria-label') || document.activeElement.textContent.trim()"
            )
        )
        ring = page.evaluate(
            "(() => { const s = getComputedStyle(document.activeElement); return s.outlineStyle !== 'none' && s.outlineWidth !== '0px'; })()"
        )
        assert ring or page.evaluate("document.activeElement === document.body")
    assert {"Curves of team", "team", "Smoothing", "Filter metrics by name", "MARFT: all runs"} <= reached
    page.keyboard.press("Escape")
    page.locator(".run a").first.focus()
    page.keyboard.press("j")
    assert page.evaluate("document.activeElement.textContent") == "team"
    page.keyboard.press("Enter")
    page.wait_for_selector(".team .seat")
    page.keyboard.press("g")
    page.keyboard.press("e")
    page.wait_for_selector(".inside .line")


def test_what_is_not_there_is_said_in_words(
    browser: playwright.Browser, viewer: Viewer, seen: Seen, tmp_path: Path
) -> None:
    page = seen.page
    seen.open("run/nobody", ".empty")
    assert "no run “nobody”" in page.locator(".empty").inner_text()
    seen.open("nowhere", ".empty")
    page.goto(f"{seen.address}/#/run/team/episodes/2/999")
    page.wait_for_selector(".empty.bad")
    seen.problems[:] = [one for one in seen.problems if "status of 4" not in one]  # which Chromium logs by itself
    stranger = browser.new_context().new_page()
    stranger.goto(viewer.address)
    stranger.wait_for_selector(".empty.bad")
    assert "token" in stranger.locator(".empty.bad").inner_text()
    stranger.context.close()
