"""Organizations: who acts, when, seeing what; that what can overlap does; and that every one of them trains."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from marft.agents.game import Attempt
from marft.agents.organizations import Debate, Graph, Hierarchical, MixtureOfAgents, Parallel, Reflective, majority_vote
from marft.agents.play import play
from marft.common.types import ActionKey, Episode, JointAction, Observation, Step, Task
from marft.config import parse_recipe
from marft.runs.episode_files import read_episodes
from marft.runs.run_folder import RunFolder
from marft.trainer.train import train
from tests.episodes import make_action
from tests.fakes import FakeEngine, Script, game
from tests.helpers import recipe
from tests.nights import some


class Slow(FakeEngine):
    """Answers wait for each other: ``most`` is how many were under way at once."""

    def __init__(self, say: Callable[[ActionKey, str], str]) -> None:
        super().__init__(say)
        self.live = self.most = 0

    async def sample(self, *arguments: Any) -> Any:
        self.live += 1
        self.most = max(self.most, self.live)
        for _ in range(3):
            await asyncio.sleep(0)
        completion = await super().sample(*arguments)
        self.live -= 1
        return completion


def played(
    organization: Any, *roles: str, say: Callable[[ActionKey, str], str] = lambda key, prompt: f"{key.agent}{key.call}"
) -> tuple[Episode, Slow, list[str]]:
    engine, answers = Slow(say), []

    def end(joint: JointAction) -> Step:
        assert joint.answer is not None
        answers.append(joint.answer.id)
        return Step(Observation("end"), 1.0, terminated=True)

    whole = game(Script([end]), *roles, engine=engine, organization=organization)
    episode = asyncio.run(play(whole, Attempt(Task("t0", "begin"), "train/0")))
    assert episode.status == "terminated", episode.error
    return episode, engine, answers


def dependencies(episode: Episode) -> dict[str, list[str]]:
    return {
        action.id.removeprefix("0/"): [seen.removeprefix("0/") for seen in action.sees] for action in episode.actions
    }


class TestParallel:
    def test_nobody_sees_anybody_and_all_act_at_once(self) -> None:
        episode, engine, answers = played(Parallel(), "a", "b", "c")
        assert dependencies(episode) == {"a/0": [], "b/0": [], "c/0": []}
        assert engine.most == 3
        assert answers == ["0/c/0"]

    def test_the_most_frequent_answer_wins(self) -> None:
        boxed = {"a": r"\boxed{1}", "b": r"so \boxed{2}", "c": r"\boxed{2}"}
        _, _, answers = played(Parallel(answer="vote"), "a", "b", "c", say=lambda key, _: boxed[key.agent])
        assert answers == ["0/b/0"]

    def test_an_answer_that_was_found_beats_none(self) -> None:
        assert majority_vote([make_action(text="dunno"), make_action(text=r"\boxed{3}", call=1)]).key.call == 1
        assert majority_vote([make_action(text="dunno"), make_action(text="neither", call=1)]).key.call == 0


class TestGraph:
    def test_agents_act_as_soon_as_those_that_they_see(self) -> None:
        diamond = Graph(visible={"b": ("a",), "c": ("a",), "d": ("b", "c")})
        episode, engine, answers = played(diamond, "a", "b", "c", "d")
        assert dependencies(episode) == {"a/0": [], "b/0": ["a/0"], "c/0": ["a/0"], "d/0": ["b/0", "c/0"]}
        assert engine.most == 2
        assert answers == ["0/d/0"]

    def test_independent_branches_overlap_whatever_the_order_of_agents(self) -> None:
        branches = Graph(visible={"end": ("b1", "b2", "b3", "b4"), **{f"b{n}": (f"a{n}",) for n in (1, 2, 3, 4)}})
        roles = ("b1", "b2", "b3", "b4", "a1", "a2", "a3", "a4", "end")
        _, engine, _ = played(branches, *roles)
        assert engine.most == 4

    def test_a_failing_branch_calls_the_others_off(self) -> None:
        def say(key: ActionKey, prompt: str) -> str:
            if key.agent == "b":
                raise RuntimeError("boom")
            return "fine"

        engine = Slow(say)
        whole = game(Script([]), "a", "b", "c", organization=Graph(visible={"c": ("a", "b")}), engine=engine)
        with pytest.raises(RuntimeError, match="boom"):
            asyncio.run(play(whole, Attempt(Task("t0", "begin"), "train/0")))
        assert {key.agent for key, _ in engine.asked} <= {"a", "b"}


class TestDebate:
    def test_from_the_second_round_on_everybody_hears_everybody(self) -> None:
        episode, engine, answers = played(Debate(), "a", "b", "c")
        seen = dependencies(episode)
        assert all(seen[f"{role}/0"] == [] for role in "abc")
        assert seen["b/1"] == ["b/0", "a/0", "c/0"]
        assert engine.most == 3
        assert answers[0].endswith("/1")

    def test_neighbours_on_a_ring_and_in_a_table(self) -> None:
        ring, _, _ = played(Debate(neighbors="ring"), "a", "b", "c", "d")
        assert dependencies(ring)["a/1"] == ["a/0", "d/0", "b/0"]
        table, _, _ = played(Debate(neighbors={"a": ("b",)}, rounds=3), "a", "b")
        assert dependencies(table)["a/2"] == ["a/1", "b/1"]
        assert dependencies(table)["b/2"] == ["b/1"]

    def test_a_judge_sees_the_last_round_and_answers(self) -> None:
        episode, _, answers = played(Debate(judge="j"), "a", "b", "j")
        assert dependencies(episode)["j/0"] == ["a/1", "b/1"]
        assert answers == ["0/j/0"]


def test_layers_of_proposers_see_the_layer_before() -> None:
    episode, engine, answers = played(MixtureOfAgents(layers=2), "a", "b", "judge")
    assert dependencies(episode) == {
        "a/0": [], "b/0": [], "a/1": ["a/0", "b/0"], "b/1": ["a/0", "b/0"], "judge/0": ["a/1", "b/1"],
    }  # fmt: skip
    assert engine.most == 2
    assert answers == ["0/judge/0"]


def test_drafts_are_criticised_and_revised() -> None:
    episode, _, answers = played(Reflective(reviser="actor", rounds=2), "actor", "critic")
    assert dependencies(episode) == {
        "actor/0": [], "critic/0": ["actor/0"], "actor/1": ["actor/0", "critic/0"], "critic/1": ["actor/1"],
        "actor/2": ["actor/1", "critic/1"],
    }  # fmt: skip
    assert answers == ["0/actor/2"]


class TestHierarchical:
    def test_the_planner_decides_how_many_sub_tasks_there_are(self) -> None:
        def say(key: ActionKey, prompt: str) -> str:
            return "Plan:\n1. add\n2. check\n3. write" if key.agent == "planner" else f"{key.agent}{key.call}"

        episode, engine, answers = played(Hierarchical(), "planner", "worker", "writer", say=say)
        seen = dependencies(episode)
        assert [name for name in seen if name.startswith("worker")] == ["worker/0", "worker/1", "worker/2"]
        assert seen["writer/0"] == ["planner/0", "worker/0", "worker/1", "worker/2"]
        assert engine.most == 3
        assert answers == ["0/writer/0"]
        prompts = [text for key, text in engine.asked if key.agent == "worker"]
        assert "Message from planner:\\ncheck" in prompts[1]
        assert "write" not in prompts[1]  # a worker sees its own item alone

    def test_several_workers_take_turns_and_items_beyond_the_most_are_dropped(self) -> None:
        def say(key: ActionKey, prompt: str) -> str:
            return "\n".join(f"- part {n}" for n in range(9)) if key.agent == "planner" else "done"

        two = Hierarchical(workers=("w1", "w2"), max_subtasks=3)
        episode, _, _ = played(two, "planner", "w1", "w2", "writer", say=say)
        assert [name for name in dependencies(episode) if name[0] == "w" and name[1] != "r"] == ["w1/0", "w2/0", "w1/1"]


TEAMS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "parallel": ({}, ("a", "b")),
    "graph": ({"visible": {"c": ["a", "b"]}}, ("a", "b", "c")),
    "debate": ({"judge": "c"}, ("a", "b", "c")),
    "mixture-of-agents": ({"layers": 1}, ("a", "b", "c")),
    "reflective": ({"reviser": "actor"}, ("critic", "actor")),
    "orchestrated": ({"router": "a", "views": ["nothing", "all"], "max_calls": 2}, ("a", "b", "c")),
    "hierarchical": ({"workers": ["worker"]}, ("planner", "worker", "writer")),
}


def team(organization: str, tmp_path: Path, *overrides: str) -> Any:
    options, roles = TEAMS[organization]
    sampling = {"max_new_tokens": 8}
    table = recipe(
        "tiny", tmp_path, policies={role: {"model": "base"} for role in roles},
        agents=[{"role": role, "policy": role, "sampling": sampling, "answers": role == roles[-1]} for role in roles],
        team={"organization": organization, **options},
    )  # fmt: skip
    return parse_recipe(table, overrides)


@pytest.mark.slow
@pytest.mark.parametrize("organization", some(sorted(TEAMS)))
def test_every_organization_trains(organization: str, tmp_path: Path) -> None:
    run = team(organization, tmp_path, "--algorithm.credit", "{ name = 'gae', successor = 'graph' }")
    folder = RunFolder.create(run)
    assert train(run, folder).step == 2
    acted = {a.agent for e in read_episodes(folder.episodes / "step_000002.parquet") for a in e.actions}
    assert acted == set(TEAMS[organization][1])
    rows = folder.read_metrics()
    assert rows[-1]["episodes_dropped"] == 0
    assert all(row["skipped_updates"] == 0 for row in rows)


class TestRefusals:
    def complaint(self, organization: str, tmp_path: Path, *overrides: str) -> str:
        with pytest.raises(ValueError, match="recipe:") as caught:
            team(organization, tmp_path, *overrides)
        return str(caught.value)

    def test_a_circle(self, tmp_path: Path) -> None:
        text = self.complaint("graph", tmp_path, "--team.visible", "{ a = ['b'], b = ['a'] }")
        assert "is a circle, so nobody could begin" in text

    @pytest.mark.parametrize(
        ("organization", "override"),
        [
            ("graph", ("--team.visible", "{ c = ['aa'] }")),
            ("debate", ("--team.judge", "aa")),
            ("debate", ("--team.neighbors", "{ a = ['aa'] }")),
            ("reflective", ("--team.critic", "aa")),
            ("orchestrated", ("--team.router", "aa")),
            ("hierarchical", ("--team.workers", "['aa']")),
        ],
    )
    def test_names_that_are_no_agents(self, organization: str, override: tuple[str, str], tmp_path: Path) -> None:
        assert "no agent is called 'aa'" in self.complaint(organization, tmp_path, *override)
