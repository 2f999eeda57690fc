"""Checks for rewards: finite, in range and informative."""

from __future__ import annotations

import ast
import json
import math
from collections import defaultdict
from collections.abc import Iterator

from marft.common.texts import truncate
from marft.envs.math import Math
from marft.envs.oracle_policy import OraclePolicy
from marft.envs.table import Table
from marft_envs.env_check import players
from marft_envs.env_check.collection import CheckData
from marft_envs.env_check.records import EpisodeRecord
from marft_envs.env_check.report import Finding, summarize

TOLERANCE = 1e-6
MAX_ANSWERS = 100  # maximum right answers to grade
MAX_SHOWN = 60  # maximum characters of an answer in a message


def check_numbers(data: CheckData) -> Iterator[Finding]:
    """Check that each reward is a finite number for a role in the team."""
    faults = [(record, fault) for record in data.records for fault in record.faults if fault.kind == "reward"]
    for record, fault in faults[:1]:
        yield Finding(
            "failure", f"{record.name}: a step {fault.message}", "return a finite number, for roles of the team alone"
        )


def check_range(data: CheckData) -> Iterator[Finding]:
    """Check that each episode's return lies in the declared reward range."""
    low, high = data.target.environment.reward_range
    outside = []
    for record in data.valid_records:
        rewards = {"the team": record.total}
        for step in record.steps:
            for role, reward in step.agent_rewards.items():
                rewards[role] = rewards.get(role, 0.0) + reward
        outside += [
            f"{name} earns {reward:g} ({record.name})"
            for name, reward in rewards.items()
            if not low - TOLERANCE <= reward <= high + TOLERANCE
        ]
    if outside:
        yield Finding(
            "failure",
            f"outside of {low:g} to {high:g}: {summarize(outside, 2)}",
            "scale it; or declare what is meant: reward_range: ClassVar[tuple[float, float]] = (…, …)",
        )


def check_signal(data: CheckData) -> Iterator[Finding]:
    """Check that different behavior gets different rewards."""
    records = data.valid_records
    if not data.target.environment.grades_answers or len({record.player for record in records}) < 2:
        return
    by_task: dict[str, set[tuple[object, ...]]] = defaultdict(set)
    for record in records:
        agent_rewards = tuple(
            sorted((role, reward) for step in record.steps for role, reward in step.agent_rewards.items())
        )
        by_task[record.task.id].add((round(record.total, 9), agent_rewards))
    if all(len(returns) == 1 for returns in by_task.values()):
        total = records[0].total
        yield Finding(
            "failure" if data.has_script else "warning",
            f"whatever is done earns the same: {total:g} in all {len(records)} episodes",
            "see what step() compares with what; or give the environment a script that plays well, so that checks see "
            "more than poor play",
        )


def check_success(data: CheckData) -> Iterator[Finding]:
    """Check that solved tasks earn more than unsolved tasks."""
    by_task: dict[str, list[EpisodeRecord]] = defaultdict(list)
    for record in data.valid_records:
        by_task[record.task.id].append(record)
    for records in by_task.values():
        solved = [record for record in records if record.success]
        others = [record for record in records if record.success is False]
        if solved and others:
            worst, best = min(solved, key=lambda record: record.total), max(others, key=lambda record: record.total)
            if worst.total <= best.total:
                yield Finding(
                    "failure",
                    f"{worst.task.id} is solved by {worst.player} for {worst.total:g}, and not by {best.player} for "
                    f"{best.total:g}",
                    "pay most for what success says is right, or have success say something else",
                )
                return
    scripted = [record for record in data.valid_records if record.player == players.PERFECT_PLAYER]
    failed = [record.task.id for record in scripted if record.success is False]
    if failed:
        yield Finding(
            "warning",
            f"its own script of skill 1 loses {len(failed)} of {len(scripted)} tasks: {summarize(failed)}",
            "see what it is shown and what it says, or whether the task can be solved",
        )
    ungradable = list(_ungradable_tasks(data))
    if ungradable:
        yield Finding(
            "warning",
            f"no plain answer is right in {len(ungradable)} tasks: {summarize(ungradable)}",
            "see what stands in the column of answers: it holds JSON, or is refused when it is said as it stands",
        )


def _ungradable_tasks(data: CheckData) -> Iterator[str]:
    """Yield tasks with a right answer in JSON, or with a right answer that the grader rejects."""
    environment = data.target.environment
    script = environment.script(1.0) if isinstance(environment, Table | Math) else None
    if not isinstance(script, OraclePolicy) or not isinstance(environment, Table | Math):
        return
    for task in data.loaded.all_tasks[:: max(1, len(data.loaded.all_tasks) // MAX_ANSWERS)]:
        right = script.get_answer(task)
        if _is_json(right) or environment.answer_grade(task, right).success is False:
            yield f"{task.id} ({truncate(right, MAX_SHOWN)!r})"


def _is_json(text: str) -> bool:
    value: object = None
    for parse in (json.loads, ast.literal_eval) if text.strip()[:1] in ("{", "[") else ():
        try:
            value = value or parse(text.strip())
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            continue
    return isinstance(value, dict) or (isinstance(value, list) and any(isinstance(item, str) for item in value))


def check_nonsense(data: CheckData) -> Iterator[Finding]:
    """Check that nonsense solves no task, or earns less than good play where success is undefined."""
    best: dict[str, float] = {}
    for record in data.valid_records:
        if record.player == players.PERFECT_PLAYER:
            best[record.task.id] = max(record.total, best.get(record.task.id, -math.inf))
    nonsense_records: dict[str, list[EpisodeRecord]] = defaultdict(list)
    for record in [*data.valid_records, *(record for record in data.odd_records if record.is_valid)]:
        if record.player in players.NONSENSE_PLAYERS and (record.task.id in best or record.success is not None):
            nonsense_records[record.player].append(record)
    rewarded = {
        player: records
        for player, records in nonsense_records.items()
        if all(
            record.total >= best[record.task.id] - TOLERANCE if record.success is None else record.success
            for record in records
        )
    }
    totals = {record.total for record in data.valid_records}
    if rewarded and len(totals) > 1:
        player, records = next(iter(rewarded.items()))
        others = f"; and so does {summarize(list(rewarded)[1:])}" if len(rewarded) > 1 else ""
        yield Finding(
            "warning",
            f"{player} earns {records[0].total:g} for {records[0].task.id}, "
            f"{'as much as good play' if best else 'which is solved with that'}{others}",
            "a reader that finds the answer anywhere in a text, or fails open, is what a model will learn to use",
        )
