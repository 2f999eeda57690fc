"""Comparison session: the team, the parts one after another, and their results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from marft.common.types import Task
from marft.config.consulting import without_helpers
from marft.config.run import RunSettings
from marft.envs.tasks import tasks_of
from marft.evaluation.evaluate import Advance
from marft.evaluation.session import BASE, find_checkpoint
from marft.rollout.rollouts import open_rollouts
from marft.runs.folder import RunFolder
from marft_lab.team_worth.ablation import ablation
from marft_lab.team_worth.arms import Arm, Player
from marft_lab.team_worth.bench import Bench
from marft_lab.team_worth.expected import expected, sentence
from marft_lab.team_worth.leaving import leave_out
from marft_lab.team_worth.options import Options
from marft_lab.team_worth.resampling import Resampled, as_json, counterfactual
from marft_lab.team_worth.scores import Measure, Row, row_of
from marft_lab.team_worth.single import answering_role, held_against, problem_of, single
from marft_lab.team_worth.swaps import Matrix, cross_play, swaps


@dataclass(slots=True)
class Worth:
    """Result of a comparison; ``rows`` start with the team, and ``notes`` explain missing rows."""

    run: str
    checkpoint: str
    tasks: int
    samples: int
    measure: Measure = "accuracy"  # main measure of tables and plots; reward without known success
    rows: list[Row] = field(default_factory=list)
    matrices: list[Matrix] = field(default_factory=list)
    resampled: Resampled | None = None
    paraphrases: Sequence[tuple[str, str]] = ()
    notes: list[tuple[str, str]] = field(default_factory=list)  # part and remark

    def as_json(self) -> dict[str, object]:
        """Return the result as JSON data, with every contribution but without other episode data."""
        plain = {
            "run": self.run, "checkpoint": self.checkpoint, "tasks": self.tasks, "samples": self.samples,
            "measure": self.measure, "rows": [asdict(row) for row in self.rows],
            "matrices": [asdict(matrix) for matrix in self.matrices],
            "paraphrases": [list(pair) for pair in self.paraphrases],
            "notes": [f"{part}: {text}" for part, text in self.notes],
        }  # fmt: skip
        if self.resampled is not None:
            plain["contributions"] = [asdict(share) for share in self.resampled.shares]
            plain["episodes"] = as_json(self.resampled.episodes)
        return plain


def worth_of(
    run: RunSettings,
    folder: RunFolder,
    options: Options,
    advance: Advance,
    note: Callable[[str], None] = lambda _: None,
) -> Worth:
    """Play the requested parts, and compare each with a checkpoint's team; cached episodes are reused.

    Args:
        run: settings of the run.
        folder: run folder.
        options: options of the comparison.
        advance: progress callback.
        note: callback for the estimated number of episodes, before the first episode.

    Raises:
        ValueError: missing checkpoint, run or policy, empty test split, or no applicable part for a single agent.
    """
    other = _single_run(options.single) if options.single else None
    own, crossed, paths = _named(run, folder, options)
    every = tasks_of(run.environment, "test")
    tasks = every[: options.tasks or run.evaluation.tasks]
    others = _same_tasks(*other, tasks) if other else []
    weights = dict.fromkeys(run.trained_policies, own)
    _refuse_nothing(run, options)
    planned = expected(run, options, weights, len(crossed), len(tasks))
    note(sentence(planned, len(tasks)))
    remote = [agent.role for agent in run.agents if run.is_remote(run.policies[agent.policy].model)]
    if remote:
        note(f"{', '.join(remote)}: asked at an endpoint, in every episode that is played")
    advance(sum(planned.values()))

    def expect(what: str, count: int) -> None:
        planned[what] = count
        advance(sum(planned.values()))

    found = Worth(folder.path.resolve().name, own, len(tasks), options.samples)
    kept = folder.worth / "arms"
    with open_rollouts(without_helpers(run)) as rollouts:
        player = Player(rollouts, paths, tasks, kept, advance, again=options.again)
        bench = Bench(
            run, options, player, Arm(weights, samples=options.samples), crossed,
            lambda part, text: found.notes.append((part, text)), expect,
        )  # fmt: skip
        _play(bench, found)
    if other is not None:
        _against_run(bench, found, *other, others, kept)
    found.notes = list(dict.fromkeys(found.notes))
    return found


def _play(bench: Bench, found: Worth) -> None:
    """Play the team, then the requested parts."""
    if not any(episode.scored for episode in bench.episodes):
        raise ValueError(f"no episode of the team could be scored: {bench.episodes[0].error}")
    found.rows.append(row_of("team", "team", bench.team))
    if "accuracy" not in found.rows[0].values:
        found.measure = "reward"
        bench.note("team", "the environment never says what is a success: rewards are compared")
    parts = bench.options.parts
    if "single" in parts:
        problem = problem_of(bench.run) or ("the team is one agent already" if len(bench.roles) < 2 else "")
        if problem:
            bench.note("single", problem)
        else:
            found.rows += single(bench)
    if "swap" in parts:
        found.rows += swaps(bench)
        found.matrices = cross_play(bench)
    if "leave-out" in parts:
        found.rows += leave_out(bench)
    if "ablation" in parts:
        rows, found.paraphrases = ablation(bench)
        found.rows += rows
    if "counterfactual" in parts:
        found.resampled = counterfactual(bench)


def _named(
    run: RunSettings, folder: RunFolder, options: Options
) -> tuple[str, list[str], Mapping[str, Path | None]]:  # fmt: skip
    """Return the team's checkpoint, the distinct checkpoints for cross-play, and checkpoint folders by name."""
    paths: dict[str, Path | None] = {BASE: None}
    names = dict[str, str]()
    wanted = [options.checkpoint, *(options.crossed if "swap" in options.parts else ())]
    for name in wanted:
        path = find_checkpoint(run, folder, name)
        names[name] = path.name if path else BASE
        paths[names[name]] = path
    return names[options.checkpoint], list(dict.fromkeys(names[name] for name in wanted[1:])), paths


def _refuse_nothing(run: RunSettings, options: Options) -> None:
    if len(run.agents) < 2 and not set(options.parts) & {"leave-out", "counterfactual"} and not options.single:
        raise ValueError(
            f"the team is one agent ({run.agents[0].role}): of {', '.join(options.parts)} there is nothing to compare. "
            "Give --only leave-out,counterfactual, or another run of one agent (--single)"
        )


def _single_run(path: Path) -> tuple[RunSettings, RunFolder]:
    """Open a single agent's run.

    Raises:
        ValueError: no run, or a run of several agents.
    """
    folder = RunFolder.open(path)
    run = folder.settings_in_place()
    if len(run.agents) != 1:
        raise ValueError(f"single: {path} is a run of {len(run.agents)} agents, and one of a single agent is needed")
    return run, folder


def _same_tasks(run: RunSettings, folder: RunFolder, tasks: Sequence[Task]) -> list[Task]:
    """Return the other run's tasks with the same ids.

    Raises:
        ValueError: the other run does not hold out these tasks.
    """
    theirs = {task.id: task for task in tasks_of(run.environment, "test")}
    missing = [task.id for task in tasks if task.id not in theirs or theirs[task.id].prompt != task.prompt]
    if missing:
        raise ValueError(
            f"single: {folder.path} does not hold out {len(missing)} of the {len(tasks)} tasks, such as "
            f"{missing[0]!r}: train it in the same environment"
        )
    return [theirs[task.id] for task in tasks]


def _against_run(
    bench: Bench, found: Worth, run: RunSettings, folder: RunFolder, tasks: Sequence[Task], kept: Path
) -> None:
    """Compare the team with the single agent of another run, after release of the team's models."""
    path = find_checkpoint(run, folder, "last")
    assert path is not None
    with open_rollouts(without_helpers(run)) as rollouts:
        arm = Arm(dict.fromkeys(run.trained_policies, path.name))
        player = Player(rollouts, {path.name: path}, tasks, kept, bench.player.advance, again=bench.options.again)
        role = answering_role(run)
        found.rows += held_against(bench, player, arm, str(bench.options.single), role)
