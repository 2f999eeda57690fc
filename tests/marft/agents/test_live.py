"""``marft play``: an episode as it happens, with people in any seat."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from marft.agents.game import Attempt
from marft.agents.organizations import Orchestrated
from marft.agents.play import play
from marft.cli.live import EpisodeScreen, play_live
from marft.common.types import Observation, Task
from marft.config.interfaces.channel import Message
from marft.inference.remote import HumanSampler
from marft.inference.router import Router
from tests.episodes import make_action
from tests.fakes import FakeEngine, FakeRenderer, Script, ends, game
from tests.helpers import settings


class Scripted(EpisodeScreen):
    """A screen whose person says what it is told to."""

    def __init__(self, *says: str) -> None:
        self.out = io.StringIO()
        super().__init__(Console(file=self.out, width=100))
        self.says, self.offered = list(says), []  # type: ignore[var-annotated]

    def ask(self, role: str, options: Sequence[str]) -> str:
        self.offered.append((role, list(options)))
        return self.says.pop(0)


def test_an_episode_is_shown_as_it_happens(tmp_path: Path) -> None:
    screen = Scripted()
    episode = play_live(settings("tiny", tmp_path), None, "base", 1, [], screen)
    shown = screen.out.getvalue()
    assert "the environment shows" in shown
    assert shown.index("0/reasoner/0") < shown.index("actor reads from reasoner") < shown.index("0/actor/0")
    assert f"terminated: reward {episode.total_reward:g}" in shown


def test_a_person_may_take_a_seat(tmp_path: Path) -> None:
    run = settings("tiny", tmp_path)
    answer = run.environment.tasks("test")[0].data["entry"]["answer"]  # type: ignore[attr-defined]
    says = rf"it is \boxed{{{answer}}}"
    screen = Scripted(says)
    episode = play_live(run, None, "base", 0, ["actor"], screen)
    assert screen.offered == [("actor", [])]
    assert episode.success
    assert episode.actions[1].text == says


def test_a_person_sees_what_its_agent_would() -> None:
    screen = Scripted()
    screen.human_roles = ["buyer"]
    screen.on_observation(Observation("the shop", views={"searcher": "silk hat", "buyer": "page 1"}))
    screen.on_request("buyer", [Message("searcher", "look for hats")])
    screen.on_request("searcher", [Message("buyer", "clicked")])
    screen.on_action(replace(make_action(agent="searcher", text="I think of hats"), ended=1.0))
    screen.on_action(replace(make_action(agent="buyer", text="click 1"), ended=1.0))
    screen.on_observation(Observation("", views={"searcher": "only for you"}))
    shown = screen.out.getvalue()
    for text in ("the shop", "page 1", "buyer reads from searcher: look for hats", "searcher acts, 1.0 s", "click 1"):
        assert text in shown
    for text in ("silk hat", "clicked", "I think of hats", "only for you"):
        assert text not in shown
    assert shown.count("the environment shows") == 1


def test_a_person_is_told_what_its_agent_is_told(tmp_path: Path) -> None:
    screen = Scripted("7")
    run = settings("tiny", tmp_path)
    play_live(run, None, "base", 0, ["actor"], screen)
    shown = " ".join(screen.out.getvalue().split())
    assert run.agents[1].instructions[:30] in shown
    assert run.agents[0].instructions[:30] not in shown


def test_a_person_may_choose_from_a_list() -> None:
    screen = Scripted("b", "stop")

    def decode(policy: str, ids: Any) -> str:
        return bytes(ids.astype("uint8")).decode()

    g = game(Script([ends()]), "router", "a", "b", organization=Orchestrated())
    person = HumanSampler(FakeRenderer(), screen.ask, decode)
    seats = Router(dict.fromkeys(("router", "a", "b"), FakeEngine()), {"router": person})
    episode = asyncio.run(play(replace(g, engine=seats, callback=screen), Attempt(Task("t0", "begin"), "play")))
    assert episode.status == "terminated", episode.error
    assert screen.offered == [("router", ["a", "b"]), ("router", ["a", "b", "stop"])]
    assert [a.id for a in episode.actions] == ["0/router/0", "0/b/0", "0/router/1"]


def test_nothing_that_others_write_is_obeyed_by_the_terminal() -> None:
    console = Console(file=io.StringIO(), force_terminal=True)
    EpisodeScreen(console).on_action(replace(make_action(text="\x1b]0;title\x07 \x1b[2J \x9b done"), ended=1.0))
    written = console.file.getvalue()  # type: ignore[attr-defined]
    assert "done" in written
    assert "\x1b]0" not in written
    assert "\x1b[2J" not in written
    assert "\x9b" not in written


def test_seats_and_tasks_that_are_not_there(tmp_path: Path) -> None:
    run = settings("tiny", tmp_path)
    with pytest.raises(ValueError, match="did you mean 'actor'"):
        play_live(run, None, "base", 0, ["actr"], Scripted())
    with pytest.raises(ValueError, match="the test split has tasks 0 to 15, not 99"):
        play_live(run, None, "base", 99, [], Scripted())


def test_composed_rewards_are_shown_term_by_term(tmp_path: Path) -> None:
    terms = "[{ name = 'outcome', weight = 2.0 }, { name = 'step_cost', weight = 0.25 }, { name = 'format', pattern = 'a' }]"
    screen = Scripted()
    run = settings("tiny", tmp_path, "--rewards", terms, environment={"name": "tests.plugins:Flaky"})
    episode = play_live(run, None, "base", 0, [], screen)
    assert episode.total_reward == 1.75
    lines = screen.out.getvalue().splitlines()
    table = lines[next(n for n, line in enumerate(lines) if "reward term" in line) :]
    assert table[0].split() == ["reward", "term", "team", "reasoner", "actor"]
    assert table[1].split() == ["outcome", "+2"]
    assert table[2].split() == ["step_cost", "-0.25"]
    assert table[3].split()[0] == "format"
    assert len(table[3].split()) == 4
    assert "terminated: reward 1.75" in screen.out.getvalue()


def test_a_reward_term_that_fails_is_shown_with_its_reason(tmp_path: Path) -> None:
    terms = "[{ name = 'function', call = 'tests.marft.rewards.test_rewards:broken' }]"
    screen = Scripted()
    run = settings("tiny", tmp_path, "--rewards", terms, environment={"name": "tests.plugins:Flaky"})
    assert play_live(run, None, "base", 0, [], screen).status == "failed"
    assert "reward term 'function' raised KeyError: 'boom' (test_rewards.py:" in " ".join(screen.out.getvalue().split())
