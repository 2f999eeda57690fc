"""Synthesis of imitation rows, from the teacher to the files.

::

    training tasks ──▶ teacher plays ──▶ filters ──▶ replayed by the recipe ──▶ caps ──▶ rows of each role, manifest
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from marft.common.errors import UserError
from marft.common.log import get_logger
from marft.common.types import Episode, Task
from marft.config.interfaces.environment import Split
from marft.config.run import RunSettings
from marft.envs.tasks import NoTasksError, read_tasks
from marft.evaluation.cohorts import collect_fields, group_tasks_by_field
from marft.evaluation.evaluate import ProgressCallback
from marft.inference.runtime import build_renderer
from marft.models.tokenizer_format import load_tokenizer_formats
from marft.runs.run_folder import RunFolder
from marft_lab.synthesis.candidates import Candidate, Filter, FilterContext
from marft_lab.synthesis.filtering import FilterCounts, apply_filters, build_stage, reject_over_cap, reject_unbalanced
from marft_lab.synthesis.rows import (
    SynthesisResult,
    build_rows,
    episode_name,
    to_trace,
    write_rows,
)
from marft_lab.synthesis.settings import SynthesisSettings
from marft_lab.synthesis.teachers import (
    Teacher,
    build_attempts,
    episode_identity,
    load_teacher,
    play_or_load,
    start_or_resume,
)
from marft_serve.traces.replayer import ReplayedTrace, TraceReplayer
from marft_serve.traces.types import SkipCounter

logger = get_logger(__name__)
HELD_OUT_SPLITS: tuple[Split, ...] = ("validation", "test")
DEFAULT_FILTERS = ("success", "handoffs", "duplicates", "leakage")
NO_ROWS_MESSAGE = (
    "nothing is left of what the teacher played, and so there is nothing to imitate. With other filters "
    "(synthesis.filters) it goes on with --resume, and plays nothing again"
)


@dataclass(frozen=True, slots=True, eq=False)
class KeptEpisode:
    """Kept episode, as played by the teacher and as replayed by the recipe."""

    episode: Episode
    replayed: ReplayedTrace


def synthesize(
    run: RunSettings,
    folder: RunFolder,
    *,
    resume: bool = False,
    overwrite: bool = False,
    trust_code: bool = False,
    advance: ProgressCallback = lambda _=None: None,
) -> SynthesisResult:
    """Play tasks with a recipe's teacher (``synthesis.teacher``), and write imitation rows.

    Args:
        run: settings of the run.
        folder: run folder.
        resume: True to resume; saved episodes are not played again, but filtered again.
        overwrite: True to replace an existing run.
        trust_code: True to run code of an exported teacher.
        advance: callback with the number of attempts, and then once per attempt.

    Returns:
        The written files with their statistics.

    Raises:
        UserError: invalid recipe or folder, or no episode left to imitate.
    """
    teacher, attempts = load_teacher(run, trust_code), build_attempts(run)
    tasks = list({item.task.id: item.task for item in attempts}.values())
    if balance := SynthesisSettings.from_run(run).balance_by:
        group_tasks_by_field(collect_fields(tasks), balance)
    with folder.acquire_lock():
        start_or_resume(run, folder, episode_identity(run, teacher, attempts), resume=resume, overwrite=overwrite)
        episodes = play_or_load(teacher, folder, attempts, SynthesisSettings.from_run(run).save_every, advance)
        kept_episodes, stages = _filter_episodes(run, teacher, episodes)
        if not kept_episodes:
            raise UserError(
                "\n  ".join(
                    [f"{NO_ROWS_MESSAGE}:", *(reason for item in stages for reason in item.format_rejections())]
                )
            )
        source = {
            "split": SynthesisSettings.from_run(run).split,
            "seed": run.seed,
            "teacher": dict(teacher.description),
            "filters": [item.name for item in stages],
        }
        rows = [
            row
            for number, item in enumerate(kept_episodes)
            for row in build_rows(item.replayed, item.episode, number, source)
        ]
        return write_rows(folder.path, run, rows, source, build_filters(run), stages)


def build_filters(run: RunSettings) -> list[Filter]:
    """Return the filters of a recipe in order, or the default filters."""
    return [*SynthesisSettings.from_run(run).filters] or [
        Filter.model_validate({"name": name}) for name in DEFAULT_FILTERS
    ]


def _filter_episodes(
    run: RunSettings, teacher: Teacher, episodes: Sequence[Episode]
) -> tuple[list[KeptEpisode], list[FilterCounts]]:
    """Return the kept episodes, and the rejections of each stage."""
    tally = SkipCounter()
    formats = load_tokenizer_formats(run)
    with TraceReplayer(run, tally, formats) as stage:
        context = FilterContext(held_out=_held_out_tasks(run), role_prompts=stage.render_fixed_prompts())
        candidates = _build_candidates(teacher, episodes)
        remaining, stages = apply_filters(candidates, build_filters(run), context)
        kept_episodes, replayed_stage = _replay_kept(stage, run.seed, [item.episode for item in remaining])
    for line in tally.format_lines():
        logger.warning(f"told again: {line}")
    settings = SynthesisSettings.from_run(run)
    episodes = [item.episode for item in kept_episodes]
    scores = [(episode.total_reward, -float(len(episode.actions))) for episode in episodes]
    rejections = reject_over_cap([episode.task.id for episode in episodes], settings.max_per_task, scores)
    stages += [replayed_stage, build_stage("max_per_task", len(kept_episodes), rejections)]
    kept_episodes = [item for index, item in enumerate(kept_episodes) if index not in rejections]
    if settings.balance_by:
        rejections = reject_unbalanced([item.episode.task for item in kept_episodes], settings.balance_by)
        stages.append(build_stage("balance_by", len(kept_episodes), rejections))
        kept_episodes = [item for index, item in enumerate(kept_episodes) if index not in rejections]
    return kept_episodes, stages


def _held_out_tasks(run: RunSettings) -> list[Task]:
    """Return the tasks of both held-out splits; warn about an empty split.

    Raises:
        UserError: unreadable tasks, because unknown tasks cannot be excluded.
    """
    tasks = list[Task]()
    for split in HELD_OUT_SPLITS:
        try:
            tasks += read_tasks(run.environment, split)
        except NoTasksError:
            logger.warning(f"the {split} split has no tasks: nothing that is kept was compared with it")
    return tasks


def _build_candidates(teacher: Teacher, episodes: Sequence[Episode]) -> list[Candidate]:
    """Return candidates with the prompts of their actions, decoded by the teacher's tokenizers."""
    formats = build_renderer(teacher.run, load_tokenizer_formats(teacher.run)).formats
    return [
        Candidate(episode, {a.id: str(formats[a.policy].tokenizer.decode(a.prompt.tolist())) for a in episode.actions})
        for episode in episodes
    ]


def _replay_kept(
    stage: TraceReplayer, seed: int, episodes: Sequence[Episode]
) -> tuple[list[KeptEpisode], FilterCounts]:
    """Keep the episodes that the recipe's team can replay with the same outcome."""
    kept_episodes, rejections = list[KeptEpisode](), dict[int, str]()
    replayed_by_name = {
        replayed.trace.id: replayed
        for replayed in stage.replay((to_trace(original, seed) for original in episodes), grade=False)
    }
    for index, original in enumerate(episodes):
        replayed = replayed_by_name.get(episode_name(original))
        if replayed is None or not replayed.episode.is_scored:
            rejections[index] = "the recipe's team cannot say it"
        elif replayed.episode.success != original.success:
            rejections[index] = "comes to another end when the recipe's team says it"
        else:
            kept_episodes.append(KeptEpisode(original, replayed))
    return kept_episodes, build_stage("replayed", len(episodes), rejections)
