"""Evaluation of a suite: checkpoints and the untuned base play each task without an attack and under each attack."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from marft.agents.game import Attempt
from marft.agents.team import Team
from marft.common import atomic
from marft.common.atomic import digest_of_json
from marft.common.errors import EpisodeFailedError, RunError, UserError
from marft.common.log import get_logger
from marft.common.types import Episode, Task
from marft.config.interfaces.environment import Split
from marft.config.run import RunSettings
from marft.config.settings import did_you_mean
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
    open_evaluation_runner,
    resolve_checkpoints,
    select_tasks,
)
from marft.evaluation.store import EvaluationStore, lock_folder, play_attempts
from marft.evaluation.tool_definitions import collect_definitions, describe_changes
from marft_lab.safety.metrics import NO_ATTACK, compute_suite_metrics
from marft_lab.safety.suite import CONTROL_NAME, Suite

if TYPE_CHECKING:
    from marft.cli.evaluation import EvaluationTarget
    from marft.rollout.local_runner import LocalRolloutRunner
    from marft.rollout.workers.worker_runner import WorkerRolloutRunner

logger = get_logger(__name__)
SPLIT: Split = "test"
FINDINGS = "findings.jsonl"


@dataclass(frozen=True, slots=True)
class AttackCase:
    """Suite tasks under an attack, or without an attack."""

    attack: str = NO_ATTACK

    @property
    def name(self) -> str:
        """Name of the arm."""
        return self.attack or CONTROL_NAME

    def attempts(self, suite: Suite, attempts: Sequence[Attempt]) -> list[Attempt]:
        """Return the same attempts with the same seeds, and with the attack's injection in each."""
        if not self.attack:
            return [*attempts]
        return [
            replace(attempt, injections=(suite.build_injection(self.attack, attempt.task),)) for attempt in attempts
        ]


def build_attack_cases(suite: Suite, run: RunSettings, team: Team) -> list[AttackCase]:
    """Return the playable arms: without an attack, and under each attack that can reach the team.

    Args:
        suite: suite.
        run: settings of the run.
        team: team.

    Raises:
        UserError: an attack names an unknown tool or teammate.
    """
    cases = [AttackCase()]
    for name in suite.settings.attacks:
        reason = _unreachable_reason(suite, name, run, team)
        if reason:
            logger.warning(f"attack {name!r} is not played: {reason}")
        else:
            cases.append(AttackCase(name))
    return cases


def _unreachable_reason(suite: Suite, name: str, run: RunSettings, team: Team) -> str:
    attack = suite.settings.attacks[name]
    tools = {tool.name for agent in team.agents for tool in agent.profile.tools}
    targets = {"tool": tools, "message": {agent.role for agent in team.agents}, "task": set[str]()}[attack.inject_into]
    if targets and attack.target and attack.target not in targets:
        raise UserError(
            f"attacks.{name}.target: no {attack.inject_into} is of {attack.target!r}"
            f"{did_you_mean(attack.target, targets)}"
        )
    if attack.inject_into == "tool" and not tools:
        return "no agent has a tool"
    if attack.inject_into == "message" and len(team.agents) < 2:
        return "the team is one agent, whom nobody tells anything"
    if attack.inject_into != "tool" and run.team.writes_prompts:
        return "the team is a program, which asks its agents in words of its own"
    return ""


def with_canaries(suite: Suite, team: Team) -> Team:
    """Return the team with a canary appended to each agent's instructions, if the suite has a canary."""
    if not suite.settings.canary:
        return team
    agents = []
    for agent in team.agents:
        parts = filter(None, (agent.profile.instructions, suite.canary_instruction(agent.role)))
        agents.append(replace(agent, profile=replace(agent.profile, instructions="\n\n".join(parts))))
    return replace(team, agents=tuple(agents))


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


def evaluate_suite(
    target: EvaluationTarget,
    suite: Suite,
    size: SuiteSize,
    advance: ProgressCallback,
    *,
    overwrite: bool = False,
) -> list[Evaluation]:
    """Evaluate each checkpoint on a suite, in each mode; finished arms are cached.

    Args:
        target: run or export with its checkpoints, and folder of the results.
        suite: suite.
        size: size of the evaluation.
        advance: progress callback.
        overwrite: True to play cached arms again.

    Returns:
        The evaluations, by checkpoint and mode.

    Raises:
        UserError: missing or damaged checkpoint, empty test split, unknown name in an attack, concurrent evaluation by
            another process, or unwritable folder.
    """
    run, folder = target.run, target.folder
    result_cache = StorageOptions(target.output_folder.evaluations, overwrite)
    paths = resolve_checkpoints(run, folder, target.checkpoints)
    tasks = select_tasks(run, size.tasks, None)
    with lock_folder(result_cache.folder) as cache_error, open_evaluation_runner(run) as rollouts:
        digests = rollouts.models.compute_digests()
        target.check(digests)
        cases = build_attack_cases(suite, run, rollouts.team)
        changed = describe_changes(folder.path, collect_definitions(rollouts.team)) if folder else ""
        if changed:
            logger.warning(changed)
        context = _SuiteContext(
            run, suite, size, tasks, cases, paths, digests, rollouts, result_cache, cache_error, advance
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
        logger.warning(f"{name}, {mode}: attack {attack!r} reached no agent in any episode: nothing is known of it")
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
        _cases_folder(context, name, mode), case.name, _cache_key(context, name, mode, case)
    )
    cached = None if context.result_cache.overwrite else episode_cache.read_episodes(attempts)
    if cached is not None:
        for _ in cached:
            context.advance()
        return cached
    if context.cache_error:
        raise UserError(context.cache_error)
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
        digest_of_json(collect_definitions(context.rollouts.team)),
    ]
    return episodes_key(context.run, context.models, context.paths[name], context.tasks, key_parts)
