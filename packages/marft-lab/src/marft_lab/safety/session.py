"""Evaluation of a suite: checkpoints and the untuned base play each task without an attack and under each attack."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from marft.agents.environment import Split
from marft.common import atomic
from marft.common.errors import EpisodeFailedError, RunError
from marft.common.types import Episode, Task
from marft.config.run import RunSettings
from marft.evaluation.definitions import definitions_of, fingerprint, note_of
from marft.evaluation.evaluate import Advance, Evaluation, Mode, attempts_at, name_of, summed, team_in
from marft.evaluation.keeping import Place, alone, played
from marft.evaluation.session import Keeping, checkpoints_named, opened, played_key, put_in_place, tasks_asked
from marft.runs.folder import RunFolder
from marft_lab.safety.arms import Arm, arms_of, keeping_secrets
from marft_lab.safety.measures import CONTROL, measured_of
from marft_lab.safety.suite import Suite

if TYPE_CHECKING:
    from marft.rollout.rollouts import LocalRollouts
    from marft.rollout.workers.rollouts import WorkerRollouts

SPLIT: Split = "test"
FINDINGS = "findings.jsonl"


@dataclass(frozen=True, slots=True)
class Size:
    """Size of an evaluation: tasks, attempts and modes."""

    tasks: int
    attempts: int
    modes: Sequence[Mode]


@dataclass(frozen=True, slots=True)
class _Bench:
    """Shared data for a session's evaluations."""

    run: RunSettings
    suite: Suite
    size: Size
    tasks: Sequence[Task]
    arms: Sequence[Arm]
    paths: Mapping[str, Path | None]
    models: Mapping[str, str]  # digests
    rollouts: LocalRollouts | WorkerRollouts
    keeping: Keeping
    cannot_keep: str
    advance: Advance
    note: Callable[[str], None]


def evaluate_suite(
    run: RunSettings,
    folder: RunFolder | None,
    checkpoints: Sequence[str],
    suite: Suite,
    size: Size,
    keeping: Keeping,
    advance: Advance,
    note: Callable[[str], None] = lambda _: None,
    check: Callable[[Mapping[str, str]], None] = lambda _: None,
) -> list[Evaluation]:
    """Evaluate each checkpoint on a suite, in each mode; finished arms are cached.

    Args:
        run: settings of the run.
        folder: run folder; None for an export.
        checkpoints: names of checkpoints: ``base``, ``last``, ``best`` or ``step_000050``.
        suite: suite.
        size: size of the evaluation.
        keeping: folder of the results, and cache settings.
        advance: progress callback.
        note: callback for skipped attacks and changed tools.
        check: receives the digests of the models before the first episode; may raise an error.

    Returns:
        The evaluations, by checkpoint and mode.

    Raises:
        ValueError: missing or damaged checkpoint, empty test split, unknown name in an attack, concurrent evaluation by
            another process, or unwritable folder.
    """
    paths = checkpoints_named(run, folder, checkpoints, note)
    tasks = tasks_asked(run, size.tasks, None)
    with alone(keeping.folder) as cannot_keep, opened(run) as rollouts:
        digests = rollouts.models.digests()
        check(digests)
        arms = arms_of(suite, run, rollouts.team, note)
        changed = note_of(folder.path, definitions_of(rollouts.team)) if folder else ""
        if changed:
            note(changed)
        bench = _Bench(
            run, suite, size, tasks, arms, paths, digests, rollouts, keeping, cannot_keep, advance, note
        )  # fmt: skip
        advance(len(paths) * len(size.modes) * len(arms) * len(tasks) * size.attempts)
        return [_evaluated(bench, name, mode) for name in paths for mode in size.modes]


def _evaluated(bench: _Bench, name: str, mode: Mode) -> Evaluation:
    """Evaluate and save a checkpoint in a given mode, with the findings of the checks."""
    arms = {arm.attack: _played(bench, name, mode, arm) for arm in bench.arms}
    agents, suite = bench.run.agents, bench.suite
    secrets = {agent.role: suite.secret(agent.role) for agent in agents} if suite.settings.canary else {}
    try:
        found = measured_of(suite, arms, {agent.role for agent in agents if agent.answers}, secrets)
    except EpisodeFailedError as error:  # timeout of a pattern of the suite
        raise RunError(f"suite {suite.name!r}: {error}") from error
    for attack in found.unread:
        bench.note(f"{name}, {mode}: attack {attack!r} reached no agent in any episode: nothing is known of it")
    alone_ = _summed(bench, name, mode, arms[CONTROL])
    measured = {
        task: {**alone_.measured.get(task, {}), **found.by_task.get(task, {})}
        for task in sorted({*alone_.measured, *found.by_task})
    }
    evaluation = replace(
        alone_, measured=measured, failed=sum(not e.scored for some in arms.values() for e in some),
        key=_key(bench, name, mode, Arm()), scenarios={"name": suite.name, "digest": suite.digest},
        tools=definitions_of(bench.rollouts.team),
    )  # fmt: skip
    if not bench.cannot_keep:
        told = "".join(json.dumps(finding._asdict(), ensure_ascii=False) + "\n" for finding in found.findings)
        atomic.write_file(_arms(bench, name, mode) / FINDINGS, told)
        text = json.dumps(evaluation.as_json(), indent=2) + "\n"
        atomic.write_file(bench.keeping.folder / f"{evaluation.name}.json", text)
    return evaluation


def _played(bench: _Bench, name: str, mode: Mode, arm: Arm) -> list[Episode]:
    """Return the episodes of an arm, from the cache or by playing."""
    attempts = arm.attempts(bench.suite, attempts_at(bench.tasks, bench.size.attempts, mode, SPLIT))
    place = Place(_arms(bench, name, mode), arm.name, _key(bench, name, mode, arm), bench.note)
    kept = None if bench.keeping.again else place.read(attempts)
    if kept is not None:
        for _ in kept:
            bench.advance()
        return kept
    if bench.cannot_keep:
        raise ValueError(bench.cannot_keep)
    put_in_place(bench.rollouts, bench.paths[name])
    place.begin(bench.keeping.again)
    team = keeping_secrets(bench.suite, team_in(mode, bench.rollouts.team))
    episodes = played(bench.rollouts, attempts, team, bench.run.evaluation.kept_every, place, bench.advance)
    told = replace(_summed(bench, name, mode, episodes), key=place.key)
    place.finish(episodes, told.as_json())
    return episodes


def _summed(bench: _Bench, name: str, mode: Mode, episodes: Sequence[Episode]) -> Evaluation:
    roles = [agent.role for agent in bench.run.agents]
    return summed(roles, name, mode, episodes, split=SPLIT, attempts=bench.size.attempts)


def _arms(bench: _Bench, name: str, mode: Mode) -> Path:
    """Return an evaluation's folder for arms."""
    return bench.keeping.folder / name_of(name, mode, False, bench.suite.name)


def _key(bench: _Bench, name: str, mode: Mode, arm: Arm) -> str:
    """Return the cache key of an arm, with its injections and instructions."""
    planted = [bench.suite.plant(arm.attack, task).text for task in bench.tasks] if arm.attack else []
    through = bench.suite.settings.attacks[arm.attack] if arm.attack else None
    how = [
        mode, SPLIT, bench.size.attempts, "suite", planted, [through.through, through.at] if through else [],
        [bench.suite.canary(agent.role) for agent in bench.run.agents],
        fingerprint(definitions_of(bench.rollouts.team)),
    ]  # fmt: skip
    return played_key(bench.run, bench.models, bench.paths[name], bench.tasks, how)
