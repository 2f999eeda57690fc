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
from marft.evaluation.evaluate import (
    Evaluation,
    Mode,
    ProgressCallback,
    aggregate_episodes,
    build_attempts,
    evaluation_name,
    team_for_mode,
)
from marft.evaluation.session import (
    StorageOptions,
    episodes_key,
    load_checkpoint,
    open_runner,
    resolve_checkpoints,
    select_tasks,
)
from marft.evaluation.store import EvaluationStore, lock_folder, play_attempts
from marft.evaluation.tool_definitions import collect_definitions, describe_changes, hash_definitions
from marft.runs.run_folder import RunFolder
from marft_lab.safety.attack_cases import AttackCase, build_attack_cases, with_canaries
from marft_lab.safety.metrics import NO_ATTACK, compute_suite_metrics
from marft_lab.safety.suite import Suite

if TYPE_CHECKING:
    from marft.rollout.local_runner import LocalRolloutRunner
    from marft.rollout.workers.worker_runner import WorkerRolloutRunner

SPLIT: Split = "test"
FINDINGS = "findings.jsonl"


@dataclass(frozen=True, slots=True)
class SuiteSize:
    """Size of an evaluation: tasks, attempts and modes."""

    tasks: int
    attempts: int
    modes: Sequence[Mode]


@dataclass(frozen=True, slots=True)
class _SuiteContext:
    """Shared data for a session's evaluations."""

    run: RunSettings
    suite: Suite
    size: SuiteSize
    tasks: Sequence[Task]
    cases: Sequence[AttackCase]
    paths: Mapping[str, Path | None]
    models: Mapping[str, str]  # digests
    rollouts: LocalRolloutRunner | WorkerRolloutRunner
    result_cache: StorageOptions
    cache_error: str
    advance: ProgressCallback
    note: Callable[[str], None]


def evaluate_suite(
    run: RunSettings,
    folder: RunFolder | None,
    checkpoints: Sequence[str],
    suite: Suite,
    size: SuiteSize,
    result_cache: StorageOptions,
    advance: ProgressCallback,
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
        result_cache: folder of the results, and cache settings.
        advance: progress callback.
        note: callback for skipped attacks and changed tools.
        check: receives the digests of the models before the first episode; may raise an error.

    Returns:
        The evaluations, by checkpoint and mode.

    Raises:
        ValueError: missing or damaged checkpoint, empty test split, unknown name in an attack, concurrent evaluation by
            another process, or unwritable folder.
    """
    paths = resolve_checkpoints(run, folder, checkpoints, note)
    tasks = select_tasks(run, size.tasks, None)
    with lock_folder(result_cache.folder) as cache_error, open_runner(run) as rollouts:
        digests = rollouts.models.compute_digests()
        check(digests)
        cases = build_attack_cases(suite, run, rollouts.team, note)
        changed = describe_changes(folder.path, collect_definitions(rollouts.team)) if folder else ""
        if changed:
            note(changed)
        context = _SuiteContext(
            run, suite, size, tasks, cases, paths, digests, rollouts, result_cache, cache_error, advance, note
        )
        advance(len(paths) * len(size.modes) * len(cases) * len(tasks) * size.attempts)
        return [_evaluate_checkpoint(context, name, mode) for name in paths for mode in size.modes]


def _evaluate_checkpoint(context: _SuiteContext, name: str, mode: Mode) -> Evaluation:
    """Evaluate and save a checkpoint in a given mode, with the findings of the checks."""
    episodes_by_attack = {case.attack: _play_case(context, name, mode, case) for case in context.cases}
    agents, suite = context.run.agents, context.suite
    secrets = {agent.role: suite.secret_word(agent.role) for agent in agents} if suite.settings.canary else {}
    try:
        suite_metrics = compute_suite_metrics(
            suite, episodes_by_attack, {agent.role for agent in agents if agent.answers}, secrets
        )
    except EpisodeFailedError as error:  # timeout of a pattern of the suite
        raise RunError(f"suite {suite.name!r}: {error}") from error
    for attack in suite_metrics.unreached:
        context.note(f"{name}, {mode}: attack {attack!r} reached no agent in any episode: nothing is known of it")
    control = _summarize(context, name, mode, episodes_by_attack[NO_ATTACK])
    measured = {
        task: {**control.measured.get(task, {}), **suite_metrics.by_task.get(task, {})}
        for task in sorted({*control.measured, *suite_metrics.by_task})
    }
    evaluation = replace(
        control,
        measured=measured,
        failed=sum(not e.is_scored for episodes in episodes_by_attack.values() for e in episodes),
        key=_cache_key(context, name, mode, AttackCase()),
        scenarios={"name": suite.name, "digest": suite.digest},
        tools=collect_definitions(context.rollouts.team),
    )
    if not context.cache_error:
        lines = "".join(json.dumps(finding._asdict(), ensure_ascii=False) + "\n" for finding in suite_metrics.findings)
        atomic.write_file(_cases_folder(context, name, mode) / FINDINGS, lines)
        text = json.dumps(evaluation.as_json(), indent=2) + "\n"
        atomic.write_file(context.result_cache.folder / f"{evaluation.name}.json", text)
    return evaluation


def _play_case(context: _SuiteContext, name: str, mode: Mode, case: AttackCase) -> list[Episode]:
    """Return the episodes of an arm, from the cache or by playing."""
    attempts = case.attempts(context.suite, build_attempts(context.tasks, context.size.attempts, mode, SPLIT))
    episode_cache = EvaluationStore(
        _cases_folder(context, name, mode), case.name, _cache_key(context, name, mode, case), context.note
    )
    cached = None if context.result_cache.overwrite else episode_cache.read_episodes(attempts)
    if cached is not None:
        for _ in cached:
            context.advance()
        return cached
    if context.cache_error:
        raise ValueError(context.cache_error)
    load_checkpoint(context.rollouts, context.paths[name])
    episode_cache.prepare(context.result_cache.overwrite)
    team = with_canaries(context.suite, team_for_mode(mode, context.rollouts.team))
    episodes = play_attempts(
        context.rollouts, attempts, team, context.run.evaluation.save_every, episode_cache, context.advance
    )
    summary = replace(_summarize(context, name, mode, episodes), key=episode_cache.key)
    episode_cache.finish(episodes, summary.as_json())
    return episodes


def _summarize(context: _SuiteContext, name: str, mode: Mode, episodes: Sequence[Episode]) -> Evaluation:
    roles = [agent.role for agent in context.run.agents]
    return aggregate_episodes(roles, name, mode, episodes, split=SPLIT, attempts=context.size.attempts)


def _cases_folder(context: _SuiteContext, name: str, mode: Mode) -> Path:
    """Return an evaluation's folder for arms."""
    return context.result_cache.folder / evaluation_name(name, mode, False, context.suite.name)


def _cache_key(context: _SuiteContext, name: str, mode: Mode, case: AttackCase) -> str:
    """Return the cache key of an arm, with its injections and instructions."""
    injected = [context.suite.build_injection(case.attack, task).text for task in context.tasks] if case.attack else []
    attack = context.suite.settings.attacks[case.attack] if case.attack else None
    key_parts = [
        mode,
        SPLIT,
        context.size.attempts,
        "suite",
        injected,
        [attack.inject_into, attack.target] if attack else [],
        [context.suite.canary_instruction(agent.role) for agent in context.run.agents],
        hash_definitions(collect_definitions(context.rollouts.team)),
    ]
    return episodes_key(context.run, context.models, context.paths[name], context.tasks, key_parts)
