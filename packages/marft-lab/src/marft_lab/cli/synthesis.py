"""Command ``marft synthesize``: imitation rows from a teacher's episodes, optionally followed by training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from marft.cli.errors import set_run_folder
from marft.cli.handlers import progress_bar, silence_transformers
from marft.cli.handlers import train as train_command
from marft.cli.output import Output, OutputMode, open_output
from marft.common.errors import UserError
from marft.config import RunSettings, load_recipe
from marft.config.load import override_keys
from marft.runs.run_folder import RunFolder
from marft_lab.synthesis.overrides import check_teacher, teacher_overrides
from marft_lab.synthesis.settings import SynthesisSettings
from marft_serve.cli.traces import RecipeWithTraces, run_sft

if TYPE_CHECKING:
    from marft_lab.synthesis.filtering import FilterCounts
    from marft_lab.synthesis.rows import SynthesisResult


@dataclass(frozen=True, slots=True)
class SynthesisOptions:
    """Options of ``marft synthesize``.

    Args:
        teacher: teacher to play; "" for ``synthesis.teacher``.
        resume: True to resume an interrupted run.
        overwrite: True to replace an existing run.
        trust_code: True to run code of an exported teacher.
        output_mode: output format.
    """

    teacher: str = ""
    resume: bool = False
    overwrite: bool = False
    trust_code: bool = False
    output_mode: OutputMode = ""


def synthesize(
    recipe: Path, overrides: Sequence[str], options: SynthesisOptions, *, continues: bool = False
) -> RunFolder:
    """Create imitation rows from a teacher's episodes.

    Args:
        recipe: recipe, or with ``resume`` the folder of the rows.
        overrides: command-line overrides of recipe keys.
        options: options of the command.
        continues: True with ``--train``: resume if the rows exist.

    Returns:
        The folder of the rows.

    Raises:
        UserError: unknown teacher, missing folder with ``resume``, or existing folder without ``overwrite``.
    """
    resume, overwrite, changes = options.resume, options.overwrite, teacher_overrides(options.teacher)
    if recipe.is_dir() and resume:
        folder = RunFolder.open(recipe)
        run = folder.relocated_settings(overrides, changes)
    else:
        run = load_named_recipe(recipe, overrides, "rows", changes)
        check_teacher(SynthesisSettings.from_run(run).teacher)
        folder = RunFolder(Path(run.output) / run.name)
        resume = resume or (continues and not overwrite and folder.is_run())
    folder.check_usable(resume, overwrite)
    set_run_folder(folder.path)
    silence_transformers()
    from marft_lab.synthesis import session

    with open_output(options.output_mode) as out:
        with progress_bar("playing", enabled=not options.output_mode) as advance:
            result = session.synthesize(
                run,
                folder,
                resume=resume,
                overwrite=overwrite,
                trust_code=options.trust_code,
                advance=advance,
            )
        _print_summary(result, out)
        if not continues:
            out.print(f"  marft sft {folder.config_path if recipe.is_dir() else recipe} --traces {folder.path}")
    return folder


def cold_start(recipe: Path, overrides: Sequence[str], options: SynthesisOptions) -> None:
    """Run ``marft synthesize --train``: rows, supervised fine-tuning, and reinforcement learning from there.

    Each part is a separate run. Existing parts are resumed.

    Raises:
        SystemExit: a part was interrupted after saving its progress.
        UserError: the last part's run exists and started from a different checkpoint.
    """
    run, overwrite, output_mode = load_recipe(recipe, overrides), options.overwrite, options.output_mode
    rl_folder = RunFolder(Path(run.output) / run.name)
    sft_folder = RunFolder(rl_folder.path.with_name(f"{run.name}-sft"))
    if (
        rl_folder.is_run()
        and not overwrite
        and sft_folder.path.resolve() not in Path(rl_folder.initial_checkpoint()).parents
    ):
        raise UserError(
            f"{rl_folder.path} is a run that began with something else than what is imitated here; give this one "
            "another name (--name), or let that one go (--overwrite)"
        )
    rows = synthesize(recipe, [*overrides, "--name", f"{run.name}-rows"], options, continues=True)
    resume = not overwrite and sft_folder.should_resume(begins_with=False)
    run_sft(
        RecipeWithTraces(recipe, [*overrides, "--name", sft_folder.path.name], [rows.path]),
        resume=resume,
        start_from=None,
        overwrite=overwrite or (not resume and sft_folder.is_run()),
        output_mode=output_mode,
    )
    train_command(
        recipe,
        overrides,
        resume=False,
        start_from=sft_folder.saved_steps()[-1],
        dry_run=False,
        output_mode=output_mode,
        overwrite=overwrite,
        resume_or_start=not overwrite,
    )
    with open_output(output_mode) as out:
        out.print(f"  marft compare {sft_folder.path} {rl_folder.path}")


def load_named_recipe(recipe: Path, overrides: Sequence[str], suffix: str, changes: dict[str, object]) -> RunSettings:
    """Load a recipe under its own name with suffix ``-{what}``; a name in ``overrides`` takes precedence."""
    run = load_recipe(recipe, overrides, changes)
    if "name" in override_keys(overrides):
        return run
    return load_recipe(recipe, overrides, {**changes, "name": f"{run.name}-{suffix}"})


def _print_summary(result: SynthesisResult, out: Output) -> None:
    out.print(_build_table(result.stages))
    rows = ", ".join(f"{count} of {role}" for role, count in result.rows.items())
    out.print(f"{result.episodes} episodes: {rows}. See {result.path}, or:")
    funnel = [
        {"part": stage.name, "came": stage.came, "kept": stage.kept_count, "dropped": stage.dropped}
        for stage in result.stages
    ]
    out.emit("done", path=result.path, episodes=result.episodes, rows=result.rows, funnel=funnel)


def _build_table(stages: Sequence[FilterCounts]) -> Table:
    """Return the filter funnel as a table, with a row per stage and a row per rejection reason."""
    table = Table(box=None, pad_edge=False)
    for heading in ("", "episodes", "left out", "kept"):
        table.add_column(heading, justify="right" if heading else "left")
    for part in stages:
        table.add_row(Text(part.name), str(part.came), str(part.came - part.kept_count), str(part.kept_count))
        for reason, count in part.dropped.items():
            table.add_row(Text(f"  {reason}", style="dim"), "", str(count), "")
    return table
