"""Those whose turn it is act, on what is shown to them alone, choose where they are given options, and see what the recipe says."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from marft.agents.game import Attempt, Game, Replay
from marft.agents.organizations import Turns
from marft.agents.play import play
from marft.common.types import Episode, JointAction, Observation, Step, Task
from marft.evaluation.episode_metrics import episode_metrics
from marft.runs.episode_files import read_episodes, write_episodes
from tests.fakes import FakeEngine, Script, game

ATTEMPT = Attempt(Task("t", "begin"), "s")
SHOWN = [
    Observation("Deal.", {"a": "A king.", "b": "An ace."}, ("a",), {"a": ("raise", "fold")}),
    Observation("Next.", {"b": "Two."}, ("b", "c")),
    Observation("Last.", turn=("a",)),
]


def three_steps(seen: list[JointAction]) -> Script:
    def step(number: int) -> object:
        def take(actions: JointAction) -> Step:
            seen.append(actions)
            measures = {"messages": float(number)} if number else {}
            return Step(SHOWN[min(number + 1, 2)], 0.0, terminated=number == 2, info={"measures": measures})

        return take

    return Script([step(n) for n in range(3)], reset=lambda: SHOWN[0])  # type: ignore[misc]


def team(organization: Turns) -> tuple[Game, list[JointAction]]:
    seen: list[JointAction] = []
    engine = FakeEngine(lambda key, _: "fold" if key.step == 0 else f"{key.agent} at {key.step}")
    return game(three_steps(seen), "a", "b", "c", organization=organization, engine=engine), seen


def prompt(episode: Episode, index: int) -> str:
    return bytes(episode.actions[index].prompt.astype("uint8")).decode()


def test_whose_turn_it_is_acts_and_chooses_from_what_it_is_given() -> None:
    g, seen = team(Turns())
    episode = asyncio.run(play(g, ATTEMPT))
    assert episode.status == "terminated", episode.error
    assert [(action.step, action.agent) for action in episode.actions] == [(0, "a"), (1, "b"), (1, "c"), (2, "a")]
    first = episode.actions[0]
    assert first.choice
    assert first.choice.chosen == 1
    assert first.text == "fold"
    assert not any(action.choice for action in episode.actions[1:])
    acted = seen[1].for_role("b")
    assert acted
    assert acted.text == "b at 1"
    assert seen[1].for_role("a") is None


def test_an_agent_reads_its_own_view_and_no_other() -> None:
    episode = asyncio.run(play(team(Turns())[0], ATTEMPT))
    assert "A king." in prompt(episode, 0)
    assert "An ace." not in prompt(episode, 0)
    assert "Two." in prompt(episode, 1)
    assert "Two." not in prompt(episode, 2)


@pytest.mark.parametrize(
    ("settings", "sees"),
    [
        ({}, [[], [], [], []]),
        ({"visible": "last"}, [[], ["0/a/0"], ["0/a/0"], ["1/b/0", "1/c/0"]]),
        ({"visible": "since_own_action"}, [[], ["0/a/0"], ["0/a/0"], ["1/b/0", "1/c/0"]]),
        ({"order": "sequential"}, [[], [], ["1/b/0"], []]),
        ({"order": "sequential", "visible": "last"}, [[], ["0/a/0"], ["0/a/0", "1/b/0"], ["1/b/0", "1/c/0"]]),
    ],
)
def test_what_is_seen_of_others_is_as_the_recipe_says(settings: dict[str, str], sees: list[list[str]]) -> None:
    episode = asyncio.run(play(team(Turns(**settings))[0], ATTEMPT))  # type: ignore[arg-type]
    assert [list(action.sees) for action in episode.actions] == sees


def test_since_it_acted_is_more_than_the_last_step() -> None:
    def seen(sees: str) -> list[str]:
        steps = [lambda _, n=n: Step(Observation("on", turn=("abca"[n + 1],)), 0.0) for n in range(3)]
        steps.append(lambda _: Step(Observation(""), 0.0, terminated=True))
        g = game(Script(steps, lambda: Observation("on", turn=("a",))), "a", "b", "c", organization=Turns(visible=sees))  # type: ignore[arg-type]
        return list(asyncio.run(play(g, ATTEMPT)).actions[-1].sees)

    assert seen("since_own_action") == ["1/b/0", "2/c/0"]
    assert seen("last") == ["2/c/0"]


def test_an_unknown_role_fails_the_episode_in_words() -> None:
    g = game(Script([], lambda: Observation("on", turn=("aa",))), "a", "b", organization=Turns())
    episode = asyncio.run(play(g, ATTEMPT))
    assert episode.status == "failed"
    assert "no agent 'aa'" in episode.error


def test_views_are_recorded_and_held_to_when_an_episode_is_played_again(tmp_path: Path) -> None:
    g, _ = team(Turns(visible="last"))
    episode = asyncio.run(play(g, ATTEMPT))
    write_episodes(tmp_path / "step.parquet", [episode])
    kept = read_episodes(tmp_path / "step.parquet")[0]
    assert [one.observation for one in kept.transitions] == SHOWN
    observations = [one.observation.full_text for one in episode.transitions]
    served = {action.id: action for action in episode.actions}
    replay = Replay(episode.name, "s", 0, served, observations=observations)
    again = asyncio.run(play(team(Turns(visible="last"))[0], Attempt(Task("t", "begin"), "fork", replay=replay)))
    assert again.status == "terminated"
    assert [a.text for a in again.actions] == [a.text for a in episode.actions]
    other = Replay(
        episode.name, "s", 0, served, observations=[observations[0].replace("ace", "ten"), *observations[1:]]
    )
    changed = asyncio.run(play(team(Turns(visible="last"))[0], Attempt(Task("t", "begin"), "fork", replay=other)))
    assert changed.status == "failed"
    assert "the environment shows" in changed.error


def test_what_the_environment_measures_is_a_metric_as_declared_last() -> None:
    episode = asyncio.run(play(team(Turns())[0], ATTEMPT))
    assert episode_metrics([episode, episode], ("a",), lambda _: 0)["environment/messages"] == 2.0
