"""Each check finds the fault that is planted for it, and nothing else; nothing is found where nothing is wrong."""

from __future__ import annotations

import dataclasses
from functools import cache
from pathlib import Path
from typing import ClassVar

import pytest

from marft.common.types import Episode, JointAction, Observation
from marft.config.interfaces.environment import Environment
from marft.config.interfaces.organization import Agents, Organization
from marft.rewards.terms import Function
from marft_envs.env_check.report import Report
from marft_envs.env_check.runner import CHECKS, run_checks
from marft_envs.env_check.target import Limits, find_target, target_from_object, target_from_recipe
from tests import faulty
from tests.helpers import settings
from tests.nights import BY_NIGHT, NIGHT, some

QUICK = Limits(
    tasks=1,
    held_out_tasks=0,
    max_steps=6,
    max_median_seconds=0.5,
    max_blocking_seconds=0.25,
    call_timeout_seconds=5.0,
    use_processes=False,
)
SEVERAL = dataclasses.replace(QUICK, tasks=2)
FAULTS: dict[type[Environment], tuple[str, str]] = {  # the check, and what it says
    faulty.Twice: ("tasks", "another one has the id 'sum/0' too"),
    faulty.AcrossSplits: ("tasks", "two splits have tasks with the id sum/0"),
    faulty.Wordless: ("tasks", "the prompt is empty"),
    faulty.Restless: ("tasks stay", "gives other tasks the second time"),
    faulty.Shapes: ("plain data", "data['seen'] is a set"),
    faulty.Leaking: ("splits", "5 tasks stand in two splits: sum/0 (train) and sum/45 (test)"),
    faulty.AskedTwice: ("splits", "5 prompts stand in two splits, with other data"),
    faulty.Questions: ("splits", "5 questions stand in two splits"),
    faulty.Alike: ("likeness", "5 held-out tasks are nearly ones that are trained on"),
    faulty.Raising: ("episodes", "reset() raised KeyError: 'board' (faulty.py:"),
    faulty.Speechless: ("episodes", "script() raised LookupError: no script of skill 1"),
    faulty.Nested: ("plain data", "more than 32 tables and lists are inside each other"),
    faulty.NoObservation: ("observations", "which is no whole text"),
    faulty.Long: ("observations", "characters are shown to one agent at a time"),
    faulty.Untyped: ("steps", "returned tuple, not marft.common.types.Step"),
    faulty.Declaring: ("declared", "progress = 3; must be from 0 to 1"),
    faulty.NotANumber: ("rewards", "gave the team a reward of nan"),
    faulty.Generous: ("range", "outside of -1 to 1: the team earns 10"),
    faulty.Indifferent: ("signal", "whatever is done earns the same: 0.5"),
    faulty.Perverse: ("success", "is solved by its script of skill 1 for -0.4, and not by"),
    faulty.Unsolvable: ("success", "its own script of skill 1 loses 1 of 2 tasks: sum/29"),
    faulty.Open: ("nonsense", "somebody who says a megabyte without a space earns 1 for sum/0, as much as good play"),
    faulty.Unscripted: ("nonsense", "without a space earns 1 for sum/0, which is solved with that"),
    faulty.Chance: ("repeatable", "come to something else the second time"),
    faulty.SharedNumbers: ("own numbers", "it draws from random, numpy.random or torch"),
    faulty.Writing: ("nothing shared", "sessions write into Task.data (sum/"),
    faulty.Overlapping: ("nothing shared", "played at the same time disturb each other"),
    faulty.Fragile: ("odd input", "step() raised ValueError: Exceeds the limit"),
    faulty.Spoiled: ("odd input", "step() raised AssertionError: no box has such a number"),
    faulty.Endless: ("endings", "episodes ended within 6 steps"),
    faulty.Patient: ("endings", "did not end within 6 steps"),
    faulty.Locked: ("closing", "close() raised OSError: the lock is somebody else's"),
    faulty.Littering: ("left open", "files more"),
    faulty.Threading: ("left open", "threads more"),
    faulty.Calling: ("outside", "connects to ('127.0.0.1', 9)"),
}
TIMED: dict[type[Environment], tuple[str, Limits, str]] = {
    faulty.Slow: ("speed", dataclasses.replace(QUICK, max_median_seconds=0.01), "step() takes 0.02"),
    faulty.Sleeping: (
        "thread",
        dataclasses.replace(QUICK, max_blocking_seconds=0.005),
        "it sleeps, or waits for a disk",
    ),
    faulty.Hanging: (
        "episodes",
        dataclasses.replace(QUICK, call_timeout_seconds=0.05),
        "step() hung: it took over 0.05 s",
    ),
}
APART: dict[type[Environment], tuple[str, str]] = {
    faulty.Hashing: ("repeatable", "two processes come to something else with the same seed and actions"),
    faulty.Scattered: ("repeatable", "another process has other train tasks"),
    faulty.Remembering: ("nothing shared", "an episode comes to something else once others were played"),
}


@cache
def looked_at(kind: type[Environment], limits: Limits = QUICK) -> Report:
    return run_checks(target_from_object(kind()), limits)


def found(report: Report) -> dict[str, str]:
    """What was found, by check, but for what was skipped."""
    return {
        verdict.check: verdict.findings[0].cause
        for verdict in report.results
        if verdict.grade in ("warning", "failure")
    }


def test_nothing_is_found_where_nothing_is_wrong() -> None:
    report = looked_at(faulty.Sound)
    assert found(report) == {}
    assert report.passed
    assert report.checks_with_grade("skipped") == ["repeatable"]  # for no other process was asked
    assert report.numbers["tasks"] == 50


def test_without_tasks_nothing_else_is_looked_at(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("")
    report = run_checks(find_target("math", {"path": str(tmp_path / "empty.jsonl")}), QUICK)
    assert report.checks_with_grade("failure") == ["tasks"]
    assert report.checks_with_grade("skipped") == [name for name in CHECKS if name != "tasks"]
    assert str(report).startswith("tasks: failure: ")
    assert "marft.common.types.Task" not in str(report)  # what a class of one's own has to return
    assert "checks, 1 failed (tasks); 0 episodes in" in str(report).splitlines()[-1]


def test_a_report_in_words_says_causes_and_remedies() -> None:
    said = str(looked_at(faulty.Generous)).splitlines()
    assert said[0].startswith("range: failure: outside of -1 to 1")
    assert said[1].startswith("  → scale it")
    assert said[2].startswith(f"tests.faulty:Generous: {len(CHECKS)} checks, 1 failed (range); ")


@pytest.mark.parametrize("kind", some(FAULTS))
def test_a_planted_fault_is_found_and_nothing_else(kind: type[Environment]) -> None:
    name, said = FAULTS[kind]
    report = looked_at(kind, SEVERAL if kind in (faulty.Overlapping, faulty.Unsolvable) else QUICK)
    assert list(found(report)) == [name], found(report)
    assert said in found(report)[name]


@BY_NIGHT
@pytest.mark.slow
@pytest.mark.parametrize("kind", some(TIMED))
def test_what_takes_time_is_found_and_nothing_else(kind: type[Environment]) -> None:
    name, limits, said = TIMED[kind]
    report = looked_at(kind, limits)
    assert list(found(report)) == [name], found(report)
    assert said in found(report)[name]


@pytest.mark.slow
@pytest.mark.parametrize("kind", APART if NIGHT else [faulty.Remembering])
def test_what_only_another_process_shows_is_found(kind: type[Environment]) -> None:
    name, said = APART[kind]
    report = looked_at(kind, dataclasses.replace(QUICK, use_processes=True))
    assert list(found(report)) == [name], found(report)
    assert said in found(report)[name]


def scribbles(episode: Episode) -> float:
    episode.task.data["scored"] = len(episode.actions)  # type: ignore[index]
    raise ValueError("after it has written")


def reads(episode: Episode) -> float:
    return float(len(episode.task.data) + len(episode.transitions))


def test_a_reward_term_that_writes_into_task_data_is_named() -> None:
    here = "tests.marft_envs.test_vetting"
    terms = {"scribbles": Function(call=f"{here}:scribbles"), "reads": Function(call=f"{here}:reads")}
    report = run_checks(dataclasses.replace(target_from_object(faulty.Sound()), terms=terms), QUICK)
    assert found(report).keys() == {"nothing shared"}
    cause = found(report)["nothing shared"]
    assert cause.startswith("reward terms write into Task.data: 'scribbles' (sum/")
    assert "reads" not in cause


def test_every_check_finds_something() -> None:
    planted = {name for name, *_ in (*FAULTS.values(), *TIMED.values(), *APART.values())}
    assert planted == set(CHECKS)


@pytest.mark.parametrize(("memory", "warns"), [("none", True), ("own", False)])
def test_agents_that_read_the_task_only_once_are_named(memory: str, warns: bool) -> None:
    run = settings(environment={"name": "marft.examples.plugins:Guess"})
    run = run.model_copy(update={"agents": tuple(agent.model_copy(update={"memory": memory}) for agent in run.agents)})
    (verdict,) = (
        found for found in run_checks(target_from_recipe(run), QUICK).results if found.check == "observations"
    )
    causes = [finding.cause for finding in verdict.findings]
    assert [cause.partition(" (")[0] for cause in causes] == (
        ["reasoner, actor: later prompts do not contain the task"] if warns else []
    )
    assert verdict.grade == ("warning" if warns else "pass")


class Unheard(Organization):
    """Somebody's own, in which nobody hears what the others say in the same step."""

    no_step_messages: ClassVar[bool] = True

    async def act(self, observation: Observation, agents: Agents) -> JointAction:
        raise AssertionError("nobody plays here")


@pytest.mark.parametrize(
    ("organization", "unheard"),
    [
        ("parallel", True),
        ("marft.agents.organizations:Parallel", True),
        ("tests.marft_envs.test_vetting:Unheard", True),
        ("tests.plugins:Reversed", False),  # it declares nothing
    ],
)
def test_an_organization_given_by_import_path_passes_messages_like_the_built_in_one(
    organization: str, unheard: bool
) -> None:
    assert target_from_recipe(settings(team={"organization": organization})).no_step_messages == unheard
