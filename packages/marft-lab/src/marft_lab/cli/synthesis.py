"""Command ``marft synthesize``: imitation rows from a teacher's episodes, optionally followed by training."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.table import Table
from rich.text import Text

from marft.cli.commands import bar, quieten
from marft.cli.commands import train as train_command
from marft.cli.errors import beside
from marft.cli.output import How, Output, output
from marft.config import RunSettings, load_recipe
from marft.config.load import keys_of
from marft.runs.folder import RunFolder
from marft_lab.synthesis.asked import changes_of, check_teacher
from marft_lab.synthesis.manifest import Made
from marft_lab.synthesis.settings import SynthesisSettings
from marft_lab.synthesis.sifting import Passage
from marft_serve.cli.traces import sft as sft_command


def synthesize(
    recipe: Path, overrides: Sequence[str], teacher: str, *, resume: bool, overwrite: bool, trust_code: bool,
    how: How = "", goes_on: bool = False,
) -> RunFolder:  # fmt: skip
    """Create imitation rows from a teacher's episodes.

    Args:
        recipe: recipe, or with ``resume`` the folder of the rows.
        overrides: command-line overrides of recipe keys.
        teacher: teacher to play; "" for ``synthesis.teacher``.
        resume: True to resume an interrupted run.
        overwrite: True to replace an existing run.
        trust_code: True to run code of an exported teacher.
        how: output format.
        goes_on: True with ``--train``: resume if the rows exist.

    Returns:
        The folder of the rows.

    Raises:
        ValueError: unknown teacher, missing folder with ``resume``, or existing folder without ``overwrite``.
    """
    if recipe.is_dir() and resume:
        folder = RunFolder.open(recipe)
        run = folder.settings_in_place(overrides, changes_of(teacher))
    else:
        run = named(recipe, overrides, "rows", changes_of(teacher))
        check_teacher(SynthesisSettings.of(run).teacher)
        folder = RunFolder(Path(run.output) / run.name)
        resume = resume or (goes_on and not overwrite and folder.is_run())
    if resume:
        RunFolder.open(folder.path)
    else:
        folder.check_free(overwrite)
    beside(folder.path)
    quieten()
    from marft_lab.synthesis.session import synthesize as make

    with output(how) as out:
        with bar("playing", shown=not how) as advance:
            made = make(
                run, folder, resume=resume, overwrite=overwrite, trust_code=trust_code, advance=advance, note=out.note
            )
        _say(made, out)
        if not goes_on:
            out.say(f"  marft sft {folder.config if recipe.is_dir() else recipe} --from {folder.path}")
    return folder


def cold_start(
    recipe: Path, overrides: Sequence[str], teacher: str, *, overwrite: bool, trust_code: bool, how: How = ""
) -> None:
    """Run ``marft synthesize --train``: rows, supervised fine-tuning, and reinforcement learning from there.

    Each part is a separate run. Existing parts are resumed.

    Raises:
        SystemExit: a part was interrupted after saving its progress.
        ValueError: the last part's run exists and started from a different checkpoint.
    """
    run = load_recipe(recipe, overrides)
    learned = RunFolder(Path(run.output) / run.name)
    imitated = RunFolder(learned.path.with_name(f"{run.name}-sft"))
    if learned.is_run() and not overwrite and imitated.path.resolve() not in Path(learned.started_from()).parents:
        raise ValueError(
            f"{learned.path} is a run that began with something else than what is imitated here; give this one another "
            "name (--name), or let that one go (--overwrite)"
        )
    rows = synthesize(
        recipe, [*overrides, "--name", f"{run.name}-rows"], teacher, resume=False, overwrite=overwrite,
        trust_code=trust_code, how=how, goes_on=True,
    )  # fmt: skip
    resume = not overwrite and imitated.goes_on(begins_with=False)
    sft_command(
        recipe, [*overrides, "--name", imitated.path.name], [rows.path], [],
        resume=resume, start_from=None, overwrite=overwrite or (not resume and imitated.is_run()), how=how,
    )  # fmt: skip
    train_command(
        recipe, overrides, resume=False, start_from=imitated.saved_steps()[-1], dry_run=False, how=how,
        overwrite=overwrite, resume_or_start=not overwrite,
    )  # fmt: skip
    with output(how) as out:
        out.say(f"  marft compare {imitated.path} {learned.path}")


def named(recipe: Path, overrides: Sequence[str], what: str, changes: dict[str, object]) -> RunSettings:
    """Load a recipe under its own name with suffix ``-{what}``; a name in ``overrides`` takes precedence."""
    run = load_recipe(recipe, overrides, changes)
    if "name" in keys_of(overrides):
        return run
    return load_recipe(recipe, overrides, {**changes, "name": f"{run.name}-{what}"})


def _say(made: Made, out: Output) -> None:
    out.say(_table(made.funnel))
    rows = ", ".join(f"{count} of {role}" for role, count in made.rows.items())
    out.say(f"{made.episodes} episodes: {rows}. See {made.path}, or:")
    funnel = [{"part": one.name, "came": one.came, "kept": one.kept, "dropped": one.dropped} for one in made.funnel]
    out.tell("done", path=made.path, episodes=made.episodes, rows=made.rows, funnel=funnel)


def _table(funnel: Sequence[Passage]) -> Table:
    """Return the filter funnel as a table, with a row per stage and a row per rejection reason."""
    table = Table(box=None, pad_edge=False)
    for heading in ("", "episodes", "left out", "kept"):
        table.add_column(heading, justify="right" if heading else "left")
    for part in funnel:
        table.add_row(Text(part.name), str(part.came), str(part.came - part.kept), str(part.kept))
        for why, count in part.dropped.items():
            table.add_row(Text(f"  {why}", style="dim"), "", str(count), "")
    return table
