"""Synthesis of imitation rows, from the teacher to the files.

::

    training tasks ──▶ teacher plays ──▶ filters ──▶ retold by the recipe ──▶ caps ──▶ rows of each role, manifest
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

from pydantic import TypeAdapter

from marft.agents.environment import Split
from marft.common.types import Episode, Task
from marft.config.parts import FilterPart, FilterPlugin
from marft.config.run import RunSettings
from marft.envs.tasks import NoTasksError, tasks_of
from marft.evaluation.cohorts import cohorts_of, fields_of
from marft.evaluation.evaluate import Advance
from marft.inference.samplers import renderer_of
from marft.models.formats import load_formats
from marft.runs.folder import RunFolder
from marft_lab.synthesis.candidates import Candidate, Filter, World
from marft_lab.synthesis.manifest import Made, Origin, settings_of, write_rows
from marft_lab.synthesis.playing import attempts_of, begin, begun_with, played
from marft_lab.synthesis.rows import called, rows_of, traced
from marft_lab.synthesis.settings import SynthesisSettings
from marft_lab.synthesis.sifting import Passage, out_of_balance, over_cap, passed, sifted
from marft_lab.synthesis.teachers import Teacher, teacher_of
from marft_serve.traces.record import Tally
from marft_serve.traces.stage import Stage, Told

HELD_OUT: tuple[Split, ...] = ("validation", "test")
STANDARD = ("success", "handoffs", "duplicates", "leakage")
NOTHING = (
    "nothing is left of what the teacher played, and so there is nothing to imitate. With other filters "
    "(synthesis.filters) it goes on with --resume, and plays nothing again"
)


@dataclass(frozen=True, slots=True, eq=False)
class Kept:
    """Kept episode, as played by the teacher and as retold by the recipe."""

    episode: Episode
    told: Told


def synthesize(
    run: RunSettings, folder: RunFolder, *, resume: bool = False, overwrite: bool = False, trust_code: bool = False,
    advance: Advance = lambda _=None: None, note: Callable[[str], None] = lambda _: None,
) -> Made:  # fmt: skip
    """Play tasks with a recipe's teacher (``synthesis.teacher``), and write imitation rows.

    Args:
        run: settings of the run.
        folder: run folder.
        resume: True to resume; saved episodes are not played again, but filtered again.
        overwrite: True to replace an existing run.
        trust_code: True to run code of an exported teacher.
        advance: callback with the number of attempts, and then once per attempt.
        note: callback for warnings.

    Returns:
        The written files with their statistics.

    Raises:
        ValueError: invalid recipe or folder, or no episode left to imitate.
    """
    teacher, attempts = teacher_of(run, trust_code), attempts_of(run)
    tasks = list({one.task.id: one.task for one in attempts}.values())
    if balance := SynthesisSettings.of(run).balance:
        cohorts_of(fields_of(tasks), balance)
    with folder.held():
        begin(run, folder, begun_with(run, teacher, attempts), resume=resume, overwrite=overwrite)
        episodes = played(teacher, folder, attempts, SynthesisSettings.of(run).played_together, advance, note)
        kept, passages = _funnel(run, teacher, episodes, note)
        if not kept:
            raise ValueError("\n  ".join([f"{NOTHING}:", *(reason for one in passages for reason in one.lines())]))
        origin = Origin(run, teacher.about, tuple(one.name for one in passages))
        rows = [
            row for number, one in enumerate(kept) for row in rows_of(one.told, one.episode, number, origin.of_rows())
        ]
        return write_rows(folder.path, rows, origin, [*map(settings_of, filters_of(run))], passages)


def filters_of(run: RunSettings) -> list[FilterPart]:
    """Return the filters of a recipe in order, or the default filters."""
    made = TypeAdapter(FilterPlugin)
    return [*SynthesisSettings.of(run).filters] or [made.validate_python({"name": name}) for name in STANDARD]


def _funnel(
    run: RunSettings, teacher: Teacher, episodes: Sequence[Episode], note: Callable[[str], None]
) -> tuple[list[Kept], list[Passage]]:
    """Return the kept episodes, and the rejections of each stage."""
    tally = Tally()
    formats = load_formats(run)
    with Stage(run, tally, formats) as stage:
        world = World(held_out=_held_out(run, note), told=stage.told_whatever())
        candidates = _candidates(teacher, episodes)
        left, passages = sifted(candidates, cast("list[Filter]", filters_of(run)), world)
        kept, passage = _told_again(stage, run.seed, [one.episode for one in left])
    for line in tally.lines():
        note(f"told again: {line}")
    asked = SynthesisSettings.of(run)
    episodes = [one.episode for one in kept]
    worth = [(episode.total_reward, -float(len(episode.actions))) for episode in episodes]
    refused = over_cap([episode.task.id for episode in episodes], asked.per_task, worth)
    passages += [passage, passed("per_task", len(kept), refused)]
    kept = [one for place, one in enumerate(kept) if place not in refused]
    if asked.balance:
        refused = out_of_balance([one.episode.task for one in kept], asked.balance)
        passages.append(passed("balance", len(kept), refused))
        kept = [one for place, one in enumerate(kept) if place not in refused]
    return kept, passages


def _held_out(run: RunSettings, note: Callable[[str], None]) -> list[Task]:
    """Return the tasks of both held-out splits; warn about an empty split.

    Raises:
        ValueError: unreadable tasks, because unknown tasks cannot be excluded.
    """
    found = list[Task]()
    for split in HELD_OUT:
        try:
            found += tasks_of(run.environment, split)
        except NoTasksError:
            note(f"the {split} split has no tasks: nothing that is kept was compared with it")
    return found


def _candidates(teacher: Teacher, episodes: Sequence[Episode]) -> list[Candidate]:
    """Return candidates with the prompts of their actions, decoded by the teacher's tokenizers."""
    formats = renderer_of(teacher.run, load_formats(teacher.run)).formats
    return [
        Candidate(one, {a.id: str(formats[a.policy].tokenizer.decode(a.prompt.tolist())) for a in one.actions})
        for one in episodes
    ]


def _told_again(stage: Stage, seed: int, episodes: Sequence[Episode]) -> tuple[list[Kept], Passage]:
    """Keep the episodes that the recipe's team can retell with the same outcome."""
    kept, refused = list[Kept](), dict[int, str]()
    told = {again.trace.id: again for again in stage.tell((traced(one, seed) for one in episodes), grade=False)}
    for place, one in enumerate(episodes):
        again = told.get(called(one))
        if again is None or not again.episode.scored:
            refused[place] = "the recipe's team cannot say it"
        elif again.episode.success != one.success:
            refused[place] = "comes to another end when the recipe's team says it"
        else:
            kept.append(Kept(one, again))
    return kept, passed("retold", len(episodes), refused)
