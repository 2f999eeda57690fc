"""Data of tasks that sessions, tools, organizations and reward terms write into."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from threading import Lock
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from marft.agents.game import Attempt
from marft.agents.loop_threads import LoopThreadPool
from marft.agents.play import play
from marft.agents.task_copies import copy_task
from marft.common.types import Episode, JointAction, Observation, Step, Task, Transition
from marft.config.interfaces.credit import CreditInputs, CreditOutput
from marft.config.interfaces.reward import RewardTerm, TermReward
from marft.config.load import load_recipe
from marft.envs.graders import FunctionGrader
from marft.envs.reasoning_gym import ReasoningGym
from marft.envs.scripted_policy import PolicyInput
from marft.rewards.reward_manager import RewardManager
from marft.rewards.terms import Function, Outcome
from marft.rollout.task_sampler import TaskSampler
from marft.trainer.micro_batch import FixedLogProbs
from marft_lab.scripted_team import ScriptedTeam
from marft_lab.synthesis.candidates import Candidate, FilterContext
from marft_lab.synthesis.filtering import apply_filters
from marft_serve.gateway.client import Client
from tests.episodes import make_action
from tests.fakes import goes_on
from tests.gateways import ask, game_of
from tests.helpers import settings
from tests.learners import begun, episodes, recipe
from tests.tool_games import says, with_tools

TASK = Task("t", "Say hi.", {"answers": [["hi"]], "seen": 0})


def spoiled(task: Task) -> bool:
    """Write into a task wherever that is possible → whether somebody had before."""
    data: Any = task.data
    before = data != {"answers": [["hi"]], "seen": 0}
    data["answers"][0].append("anything")
    data["seen"] += 1
    return before


def writes(episode: Episode) -> float:
    return float(spoiled(episode.task))


class Spoils:
    """An environment whose sessions write into their tasks: all at once, and with every step."""

    def tasks(self, split: str) -> Sequence[Task]:
        return [TASK]

    def start(self, task: Task, seed: int) -> Spoils:
        self.found = spoiled(task)
        return self

    async def reset(self) -> Observation:
        return Observation("Say hi.")

    async def step(self, actions: JointAction) -> Step:
        return Step(Observation(""), float(self.found), terminated=True)

    async def close(self) -> None: ...


class Notebook:
    """A tool that writes into its task when it is opened."""

    def __init__(self, task: Task, seed: int) -> None:
        self.found = spoiled(task)

    def look(self) -> bool:
        return self.found


def test_no_session_finds_what_an_earlier_one_has_written() -> None:
    game = with_tools(says("call look {}", "hi"), Notebook)
    game = replace(game, environment=Spoils())
    for _ in range(2):
        episode = asyncio.run(play(game, Attempt(TASK, "s")))
        assert not episode.error
        assert episode.transitions[0].reward == 0.0
        assert episode.task == TASK
        spoiled(episode.task)  # as whoever is shown an episode may
    assert TASK.data == {"answers": [["hi"]], "seen": 0}


def test_no_reward_term_finds_what_another_has_written() -> None:
    game = with_tools(says("hi"))
    episode = asyncio.run(play(game, Attempt(TASK, "s")))
    terms = [
        Function(call="tests.marft_lab.test_task_data:writes"),
        Function(call="tests.marft_lab.test_task_data:writes", weight=2.0),
    ]
    compose = RewardManager(terms, ("a",), LoopThreadPool(), 5.0)
    for _ in range(2):
        made = asyncio.run(compose(episode))
        assert not made.error
        assert [transition.reward for transition in made.transitions] == [0.0]
        assert made.task == TASK


def test_odds_find_what_nobody_has_written() -> None:
    found: list[bool] = []

    class Odd(ReasoningGym):
        def sampling_weight(self, task: Task) -> float:
            found.append(spoiled(task))
            return 1.0

    run = settings().model_copy(update={"environment": Odd.model_validate({"dataset": "chain_sum"})})
    for _ in range(2):
        TaskSampler(run, [TASK])
    assert found == [False, False]
    assert TASK.data == {"answers": [["hi"]], "seen": 0}


def test_a_credit_writes_into_no_episode(tmp_path: Path) -> None:
    found: list[bool] = []

    class Spoiling:
        def assign(self, inputs: CreditInputs) -> CreditOutput:
            found.extend(spoiled(episode.task) for episode in inputs.episodes)
            return CreditOutput([np.zeros(1) for _ in inputs.actions])

    learner = begun(recipe(tmp_path, "grpo", "--algorithm.level", "action"))
    learner.credit = Spoiling()  # type: ignore[assignment]
    batch = [replace(episode, task=TASK) for episode in episodes(2)]
    learner.assign_credit(batch, FixedLogProbs())
    assert found == [False, False]
    assert TASK.data == {"answers": [["hi"]], "seen": 0}


def test_a_filter_writes_into_nothing_that_another_reads() -> None:
    found: list[bool] = []

    class Spoiling:
        name = "spoiling"

        def reject(self, candidates: Sequence[Candidate], context: FilterContext) -> dict[int, str]:
            tasks = [*(candidate.episode.task for candidate in candidates), *context.held_out]
            found.extend(map(spoiled, tasks))
            return {}

    some = [Candidate(replace(episode, task=TASK)) for episode in episodes(1)]
    left, _ = apply_filters(some, [Spoiling(), Spoiling()], FilterContext(held_out=[TASK]))
    assert left == some
    assert not any(found)
    assert TASK.data == {"answers": [["hi"]], "seen": 0}


def test_a_script_writes_into_no_task() -> None:
    found: list[bool] = []

    def script(cue: PolicyInput) -> str:
        found.append(spoiled(cue.task))
        return "hi"

    run = load_recipe("demo")
    task = replace(run.environment.tasks("test")[0], data=TASK.data)  # type: ignore[attr-defined]
    with ScriptedTeam(run, script) as team:
        list(team.play([task]))
    assert len(found) > 1
    assert not any(found)
    assert TASK.data == {"answers": [["hi"]], "seen": 0}


def spoils_a_row(row: Any, text: str) -> bool:
    return not spoiled(Task("t", "", row))


def test_a_grading_finds_a_row_as_it_was_read() -> None:
    grading = FunctionGrader(call="tests.marft_lab.test_task_data:spoils_a_row")
    assert [grading.grade("", TASK.data, "hi").success for _ in range(2)] == [True, True]


def test_a_program_finds_its_task_in_every_step_as_it_was() -> None:
    found: list[bool] = []

    def solve(task: Task, clients: dict[str, Client]) -> float:
        found.append(spoiled(task))
        ask(clients["a"])
        return 1.0

    g = game_of(
        solve, "a", graded_by="program", steps=[goes_on(text="more"), lambda _: Step(Observation(""), 0.0, True)]
    )  # type: ignore[arg-type]
    try:
        episode = asyncio.run(play(g, Attempt(TASK, "s")))
    finally:
        g.threads.close()
    assert not episode.error
    assert found == [False, False]


@pytest.mark.parametrize("wrote", ["agent_rewards", "views", "options", "tokens", "log_probs", "prompt"])
def test_no_reward_term_writes_into_what_is_learned_from(wrote: str) -> None:
    observation = Observation("o", {"a": "v"}, options={"a": ("x",)})
    action = make_action("a")
    paid = Transition(observation, 1.0, {"a": 0.5})
    episode = Episode(TASK, "train/0", 0, (action,), "terminated", (paid,))
    compose = RewardManager([Writes.model_validate({"wrote": wrote}), Outcome()], ("a",), LoopThreadPool(), 5.0)
    made = asyncio.run(compose(episode))
    if wrote in ("tokens", "log_probs", "prompt"):  # told, and not only undone
        assert "read-only" in made.error
    else:
        assert made.transitions[0].agent_rewards == {"a": 0.5}
    assert (observation.views, observation.options, paid.agent_rewards) == ({"a": "v"}, {"a": ("x",)}, {"a": 0.5})
    assert (action.tokens.tolist(), action.prompt.tolist(), action.log_probs.tolist()) == ([8, 9], [5, 6, 7], [-1, -1])


class Writes(RewardTerm):
    """Writes into a part of what it is given."""

    wrote: str

    def score(self, episode: Episode) -> list[TermReward]:
        transition, action = episode.transitions[0], episode.actions[0]
        observation = transition.observation
        parts: dict[str, tuple[Any, Any, Any]] = {
            "agent_rewards": (transition.agent_rewards, "a", 9.0), "views": (observation.views, "a", "other"),
            "options": (observation.options, "a", ("other",)), "tokens": (action.tokens, 0, 1),
            "log_probs": (action.log_probs, 0, 0.0), "prompt": (action.prompt, 0, 1),
        }  # fmt: skip
        part, key, value = parts[self.wrote]
        part[key] = value
        return [TermReward()]


def test_a_copy_of_a_task_shares_what_cannot_be_changed_and_nothing_else() -> None:
    lock, text = Lock(), "x" * 10_000
    data: dict[str, Any] = {
        "text": text, "rows": [{"a": (1, [2])}], "array": np.zeros(2), "set": {1}, "lock": lock, "key": {(1, 2): None},
    }  # fmt: skip
    copy = copy_task(Task("t", "p", data)).data
    assert copy["text"] is text
    assert copy["lock"] is lock
    copy["rows"][0]["a"][1].append(3)
    copy["array"][0] = 1
    copy["set"].add(2)
    copy["key"][3] = 4
    assert (data["rows"], data["set"], data["key"]) == ([{"a": (1, [2])}], {1}, {(1, 2): None})
    assert data["array"].tolist() == [0.0, 0.0]
    shown = MappingProxyType({"inner": MappingProxyType({"list": [1]})})
    copy_task(Task("t", "p", shown)).data["inner"]["list"].append(2)
    assert shown["inner"]["list"] == [1]
    circle: dict[str, Any] = {}
    circle["self"] = circle
    assert copy_task(Task("t", "p", circle)).data["self"] is not circle
