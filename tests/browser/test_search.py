"""The site's search finds the page that answers a question, asked in a user's words, with the site's own engine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.browser.conftest import loop_of
from tests.sources import ROOT

QUESTIONS = {
    "resume": ["resume"],
    "out of memory": ["out_of_memory"],
    "custom reward": ["rewards", "tutorial_data_and_reward"],
    "several GPUs": ["scaling"],
    "LoRA rank": ["training", "models", "settings"],
    "learning rate": ["training"],
    "train only one agent": ["training", "teams"],
    "my dataset": ["tutorial_data_and_reward", "environments"],
    "add a tool": ["tutorial_tool", "tools"],
    "what agents said": ["tutorial_look", "viewer"],
    "log to wandb": ["training", "read_metrics"],
    "reward is not moving": ["troubleshooting", "read_metrics"],
    "tutorial": ["first_team", "tutorial_look", "tutorial_tool", "tutorial_data_and_reward", "tutorial_langgraph"],
    "how to use vllm": ["engines"],
    "evaluate a checkpoint": ["evaluate"],
    "push to hugging face": ["export"],
    "openai api server": ["ship"],
    "langgraph": ["tutorial_langgraph"],
    "which algorithm GRPO or PPO": ["algorithms"],
    "multi-turn environment": ["own_environment"],
    "how much memory do I need": ["planning"],
    "compare with TRL": ["coming_from", "results"],
    "train on a cluster": ["scaling"],
    "why is training slow": ["planning", "troubleshooting"],
}
NEEDED = 0.9  # share of the questions with the right page among the first three hits
FIRST = 3
QUERY = "[data-md-component=search-query]"
RESULTS = ".md-search-result__item > .md-search-result__link:first-child"  # one per page


def first_hits(page: Any, question: str) -> list[str]:
    """Return the pages of the first hits, without anchors."""
    page.focus(QUERY)
    page.keyboard.press("Control+A")
    page.keyboard.type(question)
    links: list[str] = []
    for _ in range(100):  # results come from a worker, and in parts
        page.wait_for_timeout(150)
        before, links = links, page.eval_on_selector_all(RESULTS, "links => links.map(link => link.href)")
        mark = question.split()[0][:3]
        if links and links == before and mark.lower() in links[0].partition("?h=")[2].lower():
            break
    return [Path(link.split("?")[0].split("#")[0]).stem for link in links[:FIRST]]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if built := os.environ.get("MARFT_SITE"):
        return Path(built)
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder)]
    subprocess.run(command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, check=True)
    return folder


@pytest.mark.slow
def test_questions_find_their_page_among_the_first_three_hits(browser: Any, site: Path) -> None:
    with loop_of(browser):
        page = browser.new_page()
        page.goto((site / "index.html").as_uri())
        page.focus(QUERY)
        page.wait_for_timeout(1000)
        found = {question: first_hits(page, question) for question in QUESTIONS}
        page.close()
    missed = {question: hits for question, hits in found.items() if not set(hits) & set(QUESTIONS[question])}
    assert len(missed) <= (1 - NEEDED) * len(QUESTIONS), missed
