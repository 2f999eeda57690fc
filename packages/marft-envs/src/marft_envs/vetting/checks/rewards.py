"""Checks for rewards: finite, in range and informative."""

from __future__ import annotations

import ast
import json
import math
from collections import defaultdict
from collections.abc import Iterator

from marft.common.texts import cut
from marft.envs.answering import Answering
from marft.envs.math import Math
from marft.envs.table import Table
from marft_envs.vetting import players
from marft_envs.vetting.evidence import Evidence
from marft_envs.vetting.findings import Finding, some
from marft_envs.vetting.plays import Play

NEARLY = 1e-6
MOST_ANSWERS = 100  # maximum right answers to grade
SHOWN = 60  # maximum characters of an answer in a message


def numbers(evidence: Evidence) -> Iterator[Finding]:
    """Check that each reward is a finite number for a role in the team."""
    found = [(play, fault) for play in evidence.plays for fault in play.faults if fault.wrong == "reward"]
    for play, fault in found[:1]:
        yield Finding(
            "failure", f"{play.name}: a step {fault.said}", "return a finite number, for roles of the team alone"
        )


def in_range(evidence: Evidence) -> Iterator[Finding]:
    """Check that each episode's return lies in the declared reward range."""
    low, high = evidence.subject.environment.reward_range
    outside = []
    for play in evidence.played:
        earned = {"the team": play.total}
        for step in play.steps:
            for role, reward in step.agent_rewards.items():
                earned[role] = earned.get(role, 0.0) + reward
        outside += [
            f"{who} earns {reward:g} ({play.name})"
            for who, reward in earned.items()
            if not low - NEARLY <= reward <= high + NEARLY
        ]
    if outside:
        yield Finding(
            "failure",
            f"outside of {low:g} to {high:g}: {some(outside, 2)}",
            "scale it; or declare what is meant: reward_range: ClassVar[tuple[float, float]] = (…, …)",
        )


def telling(evidence: Evidence) -> Iterator[Finding]:
    """Check that different behavior gets different rewards."""
    plays = evidence.played
    if not evidence.subject.environment.graded or len({play.player for play in plays}) < 2:
        return
    by_task: dict[str, set[tuple[object, ...]]] = defaultdict(set)
    for play in plays:
        own = tuple(sorted((role, reward) for step in play.steps for role, reward in step.agent_rewards.items()))
        by_task[play.task.id].add((round(play.total, 9), own))
    if all(len(earned) == 1 for earned in by_task.values()):
        total = plays[0].total
        yield Finding(
            "failure" if evidence.scripted else "warning",
            f"whatever is done earns the same: {total:g} in all {len(plays)} episodes",
            "see what step() compares with what; or give the environment a script that plays well, so that checks see "
            "more than poor play",
        )


def success(evidence: Evidence) -> Iterator[Finding]:
    """Check that solved tasks earn more than unsolved tasks."""
    by_task: dict[str, list[Play]] = defaultdict(list)
    for play in evidence.played:
        by_task[play.task.id].append(play)
    for plays in by_task.values():
        solved = [play for play in plays if play.success]
        others = [play for play in plays if play.success is False]
        if solved and others:
            worst, best = min(solved, key=lambda play: play.total), max(others, key=lambda play: play.total)
            if worst.total <= best.total:
                yield Finding(
                    "failure",
                    f"{worst.task.id} is solved by {worst.player} for {worst.total:g}, and not by {best.player} for "
                    f"{best.total:g}",
                    "pay most for what success says is right, or have success say something else",
                )
                return
    played = [play for play in evidence.played if play.player == players.FLAWLESS]
    lost = [play.task.id for play in played if play.success is False]
    if lost:
        yield Finding(
            "warning",
            f"its own script of skill 1 loses {len(lost)} of {len(played)} tasks: {some(lost)}",
            "see what it is shown and what it says, or whether the task can be solved",
        )
    unanswerable = list(_unanswerable(evidence))
    if unanswerable:
        yield Finding(
            "warning",
            f"no plain answer is right in {len(unanswerable)} tasks: {some(unanswerable)}",
            "see what stands in the column of answers: it holds JSON, or is refused when it is said as it stands",
        )


def _unanswerable(evidence: Evidence) -> Iterator[str]:
    """Yield tasks with a right answer in JSON, or with a right answer that the grader rejects."""
    environment = evidence.subject.environment
    script = environment.script(1.0) if isinstance(environment, Table | Math) else None
    if not isinstance(script, Answering) or not isinstance(environment, Table | Math):
        return
    for task in evidence.loaded.everything[:: max(1, len(evidence.loaded.everything) // MOST_ANSWERS)]:
        right = script.right(task)
        if _is_json(right) or environment.answer_grade(task, right).success is False:
            yield f"{task.id} ({cut(right, SHOWN)!r})"


def _is_json(text: str) -> bool:
    found: object = None
    for read in (json.loads, ast.literal_eval) if text.strip()[:1] in ("{", "[") else ():
        try:
            found = found or read(text.strip())
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            continue
    return isinstance(found, dict) or (isinstance(found, list) and any(isinstance(one, str) for one in found))


def earned(evidence: Evidence) -> Iterator[Finding]:
    """Check that nonsense solves no task, or earns less than good play where success is undefined."""
    best: dict[str, float] = {}
    for play in evidence.played:
        if play.player == players.FLAWLESS:
            best[play.task.id] = max(play.total, best.get(play.task.id, -math.inf))
    nonsense: dict[str, list[Play]] = defaultdict(list)
    for play in [*evidence.played, *(play for play in evidence.odd if play.whole)]:
        if play.player in players.NONSENSE and (play.task.id in best or play.success is not None):
            nonsense[play.player].append(play)
    paid = {
        player: plays
        for player, plays in nonsense.items()
        if all(play.total >= best[play.task.id] - NEARLY if play.success is None else play.success for play in plays)
    }
    alike = {play.total for play in evidence.played}
    if paid and len(alike) > 1:
        player, plays = next(iter(paid.items()))
        others = f"; and so does {some(list(paid)[1:])}" if len(paid) > 1 else ""
        yield Finding(
            "warning",
            f"{player} earns {plays[0].total:g} for {plays[0].task.id}, "
            f"{'as much as good play' if best else 'which is solved with that'}{others}",
            "a reader that finds the answer anywhere in a text, or fails open, is what a model will learn to use",
        )
