"""Comparison session: the team, the parts one after another, and their results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from marft.common.errors import UserError
from marft.common.log import get_logger
from marft.common.types import Task
from marft.config.helpers import without_helpers
from marft.config.run import RunSettings
from marft.envs.tasks import read_tasks
from marft.evaluation.evaluate import ProgressCallback
from marft.evaluation.session import BASE, find_checkpoint
from marft.rollout.local_runner import open_rollout_runner
from marft.runs.run_folder import RunFolder
from marft_lab.team_evaluation.context import ComparisonContext
from marft_lab.team_evaluation.counterfactual import CounterfactualResult, as_json, run_counterfactual
from marft_lab.team_evaluation.message_ablation import run_message_ablation
from marft_lab.team_evaluation.options import ComparisonOptions
from marft_lab.team_evaluation.policy_swaps import (
    CrossPlayMatrix,
    compare_leave_one_out,
    compare_swaps,
    policy_permutations,
    run_cross_play,
    swappable_policies,
)
from marft_lab.team_evaluation.scores import Measure, ResultRow, build_row
from marft_lab.team_evaluation.single_agent import (
    answer_role,
    build_single_agent_variants,
    compare_at_budget,
    compare_single_agent,
    find_problem,
)
from marft_lab.team_evaluation.variants import TeamVariant, VariantPlayer

logger = get_logger(__name__)


def estimate_episodes(
    run: RunSettings, options: ComparisonOptions, weights: Mapping[str, str], checkpoint_count: int, tasks: int
) -> dict[str, int]:
    """Return the estimated number of episodes, by part.

    The number for a single agent is the maximum. The other numbers assume that every agent acts once with visible
    messages.

    Args:
        run: settings of the run.
        options: options of the comparison.
        weights: checkpoint of each trained policy.
        checkpoint_count: number of checkpoints for cross-play.
        tasks: number of tasks.
    """
    per_variant, agents, trained = tasks * options.samples, len(run.agents), len(weights)
    counts = {"team": per_variant}
    if "single" in options.parts and agents > 1 and not find_problem(run):
        max_attempts = tasks * max(options.attempts, options.samples)
        counts |= {f"single {name}": max_attempts for name in build_single_agent_variants(run, weights)}
    if options.single is not None:
        counts[f"single {options.single}"] = tasks * max(options.attempts, options.samples)
    if "swap" in options.parts:
        counts["swap"] = per_variant * sum(len(policy_permutations(policies)) for policies in swappable_policies(run))
        matrices = 0 if trained < 2 or checkpoint_count < 2 else 1 if trained == 2 else trained
        counts["cross-play"] = per_variant * checkpoint_count**2 * matrices
    sender_count = 0 if run.team.writes_prompts else agents - 1
    if "leave-out" in options.parts:
        counts["leave-out"] = per_variant * (sender_count + trained)
    if "ablation" in options.parts and sender_count:
        counts["ablation"] = per_variant * (
            2 + (sender_count if sender_count > 1 else 0) + (sender_count if options.paraphrase else 0)
        )
    if "counterfactual" in options.parts:
        counts["counterfactual"] = tasks * agents * options.resamples
    return {name: count for name, count in counts.items() if count}


def format_estimate(counts: Mapping[str, int], tasks: int) -> str:
    """Format the estimate: ``about 480 episodes of 24 tasks: team 24, …``."""
    parts = ", ".join(f"{name} {count:,}" for name, count in counts.items())
    return f"about {sum(counts.values()):,} episodes of {tasks:,} held-out tasks ({parts}); single agents': at most"


@dataclass(slots=True)
class TeamEvaluation:
    """Result of a comparison; ``rows`` start with the team, and ``notes`` explain missing rows."""

    run: str
    checkpoint: str
    tasks: int
    samples: int
    measure: Measure = "accuracy"  # main measure of tables and plots; reward without known success
    rows: list[ResultRow] = field(default_factory=list)
    matrices: list[CrossPlayMatrix] = field(default_factory=list)
    counterfactual: CounterfactualResult | None = None
    paraphrases: Sequence[tuple[str, str]] = ()
    notes: list[tuple[str, str]] = field(default_factory=list)  # part and remark

    def as_json(self) -> dict[str, object]:
        """Return the result as JSON data, with every contribution but without other episode data."""
        plain = {
            "run": self.run,
            "checkpoint": self.checkpoint,
            "tasks": self.tasks,
            "samples": self.samples,
            "measure": self.measure,
            "rows": [asdict(row) for row in self.rows],
            "matrices": [asdict(matrix) for matrix in self.matrices],
            "paraphrases": [list(pair) for pair in self.paraphrases],
            "notes": [f"{part}: {text}" for part, text in self.notes],
        }
        if self.counterfactual is not None:
            plain["contributions"] = [asdict(share) for share in self.counterfactual.shares]
            plain["episodes"] = as_json(self.counterfactual.episodes)
        return plain


def evaluate_team(
    run: RunSettings,
    folder: RunFolder,
    options: ComparisonOptions,
    advance: ProgressCallback,
) -> TeamEvaluation:
    """Play the requested parts, and compare each with a checkpoint's team; cached episodes are reused.

    Args:
        run: settings of the run.
        folder: run folder.
        options: options of the comparison.
        advance: progress callback.

    Raises:
        UserError: missing checkpoint, run or policy, empty test split, or no applicable part for a single agent.
    """
    single_run = _open_single_run(options.single) if options.single else None
    team_checkpoint, checkpoint_names, paths = _resolve_checkpoints(run, folder, options)
    test_tasks = read_tasks(run.environment, "test")
    tasks = test_tasks[: options.tasks or run.evaluation.tasks]
    single_tasks = _match_tasks(*single_run, tasks) if single_run else []
    weights = dict.fromkeys(run.trained_policies, team_checkpoint)
    _check_comparable(run, options)
    planned = estimate_episodes(run, options, weights, len(checkpoint_names), len(tasks))
    logger.info(format_estimate(planned, len(tasks)))
    remote = [agent.role for agent in run.agents if run.is_remote(run.policies[agent.policy].model)]
    if remote:
        logger.info(f"{', '.join(remote)}: asked at an endpoint, in every episode that is played")
    advance(sum(planned.values()))

    def expect(part_name: str, count: int) -> None:
        planned[part_name] = count
        advance(sum(planned.values()))

    result = TeamEvaluation(folder.path.resolve().name, team_checkpoint, len(tasks), options.samples)
    cache_folder = folder.worth / "arms"
    with open_rollout_runner(without_helpers(run)) as rollouts:
        player = VariantPlayer(rollouts, paths, tasks, cache_folder, advance, ignore_cache=options.ignore_cache)
        context = ComparisonContext(
            run,
            options,
            player,
            TeamVariant(weights, samples=options.samples),
            checkpoint_names,
            lambda part, text: result.notes.append((part, text)),
            expect,
        )
        _run_parts(context, result)
    if single_run is not None:
        _compare_single_run(context, result, *single_run, single_tasks, cache_folder)
    result.notes = list(dict.fromkeys(result.notes))
    return result


def _run_parts(context: ComparisonContext, result: TeamEvaluation) -> None:
    """Play the team, then the requested parts."""
    if not any(episode.is_scored for episode in context.episodes):
        raise UserError(f"no episode of the team could be scored: {context.episodes[0].error}")
    result.rows.append(build_row("team", "team", context.team))
    if "accuracy" not in result.rows[0].values:
        result.measure = "reward"
        context.note("team", "the environment never says what is a success: rewards are compared")
    parts = context.options.parts
    if "single" in parts:
        problem = find_problem(context.run) or ("the team is one agent already" if len(context.roles) < 2 else "")
        if problem:
            context.note("single", problem)
        else:
            result.rows += compare_single_agent(context)
    if "swap" in parts:
        result.rows += compare_swaps(context)
        result.matrices = run_cross_play(context)
    if "leave-out" in parts:
        result.rows += compare_leave_one_out(context)
    if "ablation" in parts:
        rows, result.paraphrases = run_message_ablation(context)
        result.rows += rows
    if "counterfactual" in parts:
        result.counterfactual = run_counterfactual(context)


def _resolve_checkpoints(
    run: RunSettings, folder: RunFolder, options: ComparisonOptions
) -> tuple[str, list[str], Mapping[str, Path | None]]:
    """Return the team's checkpoint, the distinct checkpoints for cross-play, and checkpoint folders by name."""
    paths: dict[str, Path | None] = {BASE: None}
    names = dict[str, str]()
    requested = [options.checkpoint, *(options.cross_checkpoints if "swap" in options.parts else ())]
    for name in requested:
        path = find_checkpoint(run, folder, name)
        names[name] = path.name if path else BASE
        paths[names[name]] = path
    return names[options.checkpoint], list(dict.fromkeys(names[name] for name in requested[1:])), paths


def _check_comparable(run: RunSettings, options: ComparisonOptions) -> None:
    if len(run.agents) < 2 and not set(options.parts) & {"leave-out", "counterfactual"} and not options.single:
        raise UserError(
            f"the team is one agent ({run.agents[0].role}): of {', '.join(options.parts)} there is nothing to compare. "
            "Give --only leave-out,counterfactual, or another run of one agent (--single)"
        )


def _open_single_run(path: Path) -> tuple[RunSettings, RunFolder]:
    """Open a single agent's run.

    Raises:
        UserError: no run, or a run of several agents.
    """
    folder = RunFolder.open(path)
    run = folder.relocated_settings()
    if len(run.agents) != 1:
        raise UserError(f"single: {path} is a run of {len(run.agents)} agents, and one of a single agent is needed")
    return run, folder


def _match_tasks(run: RunSettings, folder: RunFolder, tasks: Sequence[Task]) -> list[Task]:
    """Return the other run's tasks with the same ids.

    Raises:
        UserError: the other run does not hold out these tasks.
    """
    by_id = {task.id: task for task in read_tasks(run.environment, "test")}
    missing = [task.id for task in tasks if task.id not in by_id or by_id[task.id].prompt != task.prompt]
    if missing:
        raise UserError(
            f"single: {folder.path} does not hold out {len(missing)} of the {len(tasks)} tasks, such as "
            f"{missing[0]!r}: train it in the same environment"
        )
    return [by_id[task.id] for task in tasks]


def _compare_single_run(
    context: ComparisonContext,
    result: TeamEvaluation,
    run: RunSettings,
    folder: RunFolder,
    tasks: Sequence[Task],
    cache_folder: Path,
) -> None:
    """Compare the team with the single agent of another run, after release of the team's models."""
    path = find_checkpoint(run, folder, "last")
    assert path is not None
    with open_rollout_runner(without_helpers(run)) as rollouts:
        variant = TeamVariant(dict.fromkeys(run.trained_policies, path.name))
        player = VariantPlayer(
            rollouts,
            {path.name: path},
            tasks,
            cache_folder,
            context.player.advance,
            ignore_cache=context.options.ignore_cache,
        )
        role = answer_role(run)
        result.rows += compare_at_budget(context, player, variant, str(context.options.single), role)
