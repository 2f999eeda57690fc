"""Command implementations. Imported only when a command runs."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path

from rich.progress import Progress
from rich.text import Text

from marft.cli.console import INTERRUPTED, wide_console
from marft.cli.errors import open_run_for_command, set_run_folder
from marft.cli.output import OutputMode, open_output
from marft.common import atomic
from marft.common.errors import UserError
from marft.common.log import receive_logs
from marft.common.texts import single_line
from marft.config import RunSettings, load_recipe, to_toml
from marft.config.run import check_packages, check_trainable
from marft.config.secrets import redacted
from marft.evaluation.checkpoint_results import build_comparison_table, describe_unevaluated
from marft.evaluation.evaluate import ProgressCallback
from marft.inference.subprocess_engine.python_environment import install as make_environment
from marft.runs.run_folder import RunFolder, resolve_start

console = wide_console()


def train(
    recipe: Path,
    overrides: Sequence[str],
    *,
    resume: bool,
    start_from: Path | None,
    dry_run: bool,
    overwrite: bool,
    output_mode: OutputMode = "",
    resume_or_start: bool = False,
    fail_if_unlearned: bool = False,
) -> None:
    """``marft train``.

    Args:
        recipe: recipe file, name of a bundled recipe, or folder of a run.
        overrides: command-line overrides.
        resume: resume the run from its newest checkpoint.
        start_from: checkpoint whose weights a new run starts with.
        dry_run: check and print the resolved recipe only.
        overwrite: replace an existing run of the same name.
        output_mode: output mode.
        resume_or_start: resume the run if it exists, else start it.
        fail_if_unlearned: exit with status 1 if no step had a learning signal.

    Raises:
        UserError: the recipe, the folder or the combination of options is invalid.
        SystemExit: training was interrupted after a save, so that a command after ``&&`` does not start; or nothing was
            learned, with ``fail_if_unlearned``.
    """
    run, folder = _load_run(recipe, overrides)
    check_trainable(run)
    check_packages(run)
    if dry_run:
        _print_setup(run)
        return
    if folder is None:
        folder = RunFolder(Path(run.output) / run.name)
    if resume_or_start:
        _check_resume_or_start(resume, overwrite)
        resume, start_from, overwrite = resolve_start(folder, start_from)
    folder.check_usable(resume, overwrite)
    set_run_folder(folder.path)
    silence_transformers()
    from marft.evaluation.report import write_report
    from marft.trainer.learning_check import NO_SIGNAL, USUAL_CAUSES, had_learning_signal
    from marft.trainer.train import train as run_training

    roles, steps = [agent.role for agent in run.agents], run.training.steps
    with open_output(output_mode) as out:
        with out.build_callback(folder.path, roles, run.training.show_samples_every, "training") as callback:
            state = run_training(
                run, folder, resume=resume, start_from=start_from, overwrite=overwrite, callbacks=[callback]
            )
        write_report(folder)
        stopped = state.step < steps
        learned = had_learning_signal(folder.read_metrics())
        out.emit(
            "done",
            step=state.step,
            steps=steps,
            stopped=stopped,
            learned=learned,
            run=folder.path,
            report=folder.report_path,
        )
        if stopped:
            out.print(f"stopped after step {state.step}. Go on with:  marft train {folder.path} --resume")
            raise SystemExit(INTERRUPTED)
        if state.step == callback.completed_steps:
            out.print(f"all {state.step} steps were trained before; for more:  --training.steps {2 * state.step}")
        else:
            out.print(f"trained {state.step} steps. See {folder.report_path}, or:  marft eval {folder.path}")
        if not learned:
            out.print(f"nothing was learned: at every step, {NO_SIGNAL}. {USUAL_CAUSES}")
            if fail_if_unlearned:
                raise SystemExit(1)


def _print_setup(run: RunSettings) -> None:
    """Check a run without training, and print its resolved recipe with a summary."""
    from marft.cli.dry_run import check_setup

    summary = check_setup(run)
    console.print(to_toml(run))
    for sentence in summary:  # printed last, because earlier output scrolls away
        console.print(f"# {sentence}", soft_wrap=True)


def _check_resume_or_start(resume: bool, overwrite: bool) -> None:
    """Check that ``--resume-or-start`` is the only option of its kind.

    Raises:
        UserError: another option contradicts it.
    """
    if resume or overwrite:
        raise UserError(
            f"--resume-or-start goes on where there is a run, and {'--resume' if resume else '--overwrite'} says "
            "otherwise; give one of them"
        )


def play(
    path: Path, overrides: Sequence[str], human_roles: Sequence[str], checkpoint: str, task: int, fork_from: str = ""
) -> None:
    """``marft play``.

    Args:
        path: recipe, or folder of a run.
        overrides: command-line overrides.
        human_roles: roles that people play.
        checkpoint: checkpoint of the run; a recipe uses its base.
        task: index of the task in the test split.
        fork_from: action of a recorded episode from which to play again; "" for none.
    """
    run, folder = _load_run(path, overrides)
    silence_transformers()
    if isinstance(sys.stdin, TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")  # accept typed or pasted bytes that are not valid text
    from marft.cli.live import EpisodeScreen, play_live

    play_live(run, folder, checkpoint if folder else "base", task, human_roles, EpisodeScreen(console), fork_from)


def graph(path: Path, name: str, step: int) -> None:
    """``marft graph``.

    Args:
        path: folder of a run.
        name: index of the episode in the step, or ``task#sample``.
        step: recorded training step; 0: the last one.
    """
    from marft.evaluation.episode_graph import build_timeline, draw_episode, to_file_name
    from marft.evaluation.transcripts import find_episode
    from marft.runs.episode_files import read_episodes

    folder = open_run_for_command(path)
    file = folder.find_recorded(step)
    episode = find_episode(read_episodes(file), name)
    console.print(f"{episode.task.id} #{episode.sample} of {file.stem}: {episode.status}")
    console.print(build_timeline(episode))
    target = folder.graphs / f"{file.stem}-{to_file_name(episode.task.id)}-{episode.sample}.svg"
    target.parent.mkdir(exist_ok=True)
    draw_episode(episode).savefig(target, metadata={"Date": None})
    console.print(f"see {target}", soft_wrap=True)


def compare(
    paths: Sequence[Path],
    gates: Sequence[str] = (),
    by: str = "",
    junit: Path | None = None,
    markdown: Path | None = None,
    other_tools: bool = False,
    after_as: str = "",
) -> bool:
    """``marft compare``: return True if no gate failed."""
    if not (gates or by or junit or markdown or after_as):
        from marft.evaluation.shared_tasks import describe_different_tasks

        folders = [RunFolder.open(path) for path in paths]
        console.print(build_comparison_table(folders, other_tools))
        if difference := describe_different_tasks(folders):
            console.print("", Text(difference, style="bold"), sep="\n", soft_wrap=True)
        return True
    from marft.evaluation.comparison import compare_evaluations
    from marft.evaluation.metric_changes import build_changes_table

    if len(paths) != 2:
        raise UserError("gates, cohorts, their files and --team-name are of two runs: marft compare BEFORE AFTER")
    before, after = (RunFolder.open(path).read_evaluations(scenarios=True) for path in paths)
    names = (str(paths[0]), str(paths[1]))
    comparison = compare_evaluations(before, after, names, gates, by, other_tools=other_tools, after_as=after_as)
    for label, changes in comparison.changes.items():
        console.print(build_changes_table(changes, label), "")
        if comparison.outcome_changes[label].summary:
            console.print(Text(f"{single_line(label)}: {comparison.outcome_changes[label].summary}"), soft_wrap=True)
    for label, label_verdicts in comparison.verdicts.items():
        for verdict in label_verdicts:
            line = f"{'failed' if verdict.failed else 'passed'}: {verdict.gate.text} ({label}): {verdict.reason}"
            console.print(Text(single_line(line), style="red" if verdict.failed else ""), soft_wrap=True)
    if junit:
        atomic.write_file(junit, comparison.as_junit())
    if markdown:
        atomic.write_file(markdown, comparison.as_markdown())
    return comparison.passed


def report(path: Path, against: Sequence[Path]) -> None:
    """``marft report``."""
    from marft.evaluation.report import write_report

    folder = open_run_for_command(path)
    other_folders = [RunFolder.open(other_path) for other_path in against]
    write_report(folder, other_folders)
    for problem in describe_unevaluated(other_folders):
        console.print(f"not shown: {problem}", soft_wrap=True)
    console.print(f"wrote {folder.report_path}", soft_wrap=True)


def silence_transformers() -> None:
    """Suppress progress bars and advice from transformers."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()


def _load_run(path: Path, overrides: Sequence[str]) -> tuple[RunSettings, RunFolder | None]:
    """Return settings from a recipe file or a run's folder, with the folder of the run."""
    if path.is_dir():
        folder = open_run_for_command(path)
        return folder.relocated_settings(overrides), folder
    return load_recipe(path, overrides), None


@contextmanager
def progress_bar(label: str, enabled: bool = True) -> Iterator[ProgressCallback]:
    """Show a transient progress bar on a terminal.

    Yields:
        A function that sets the total with an argument, and advances by one step without.
    """
    with Progress(console=console, transient=True, disable=not (enabled and console.is_terminal)) as progress:
        task = progress.add_task(label, total=None)

        def advance(total: int | None = None) -> None:
            if total is not None:
                progress.update(task, total=total)
            else:
                progress.advance(task)

        yield advance


def install_engine(engine: str, *, cpu: bool) -> None:
    """``marft engine install``.

    Args:
        engine: name of the engine.
        cpu: install the CPU build.
    """
    python = make_environment(engine, cpu=cpu, report=lambda text: console.print(text, soft_wrap=True, style="dim"))
    console.print(f"{engine} is there: {python}. Train with it:  marft train RECIPE --engine.kind {engine}")


def export(
    run: Path, checkpoint: str, output: Path | None, *, merged: bool, overwrite: bool, team_file: Path | None
) -> None:
    """``marft export``.

    Args:
        run: folder of a run.
        checkpoint: ``best``, ``last``, a step, or ``step_000050``.
        output: folder to write; None: ``exports/<run>``.
        merged: also write full weights with merged adapters.
        overwrite: overwrite an existing export.
        team_file: file of another team for the agents.
    """
    from marft.config.team_changes import read_team_change

    change = read_team_change(team_file) if team_file else None
    folder = open_run_for_command(run)
    silence_transformers()
    from marft.runs.export.exporter import export_run
    from marft.runs.export.manifest import RECIPE, read_manifest
    from marft.runs.export.recipe import trust_flag

    with receive_logs(redacted(lambda text: console.print(text, soft_wrap=True))):
        target = export_run(folder, checkpoint, output, merged=merged, overwrite=overwrite, target_team=change)
    trust = trust_flag(tomllib.loads((target / RECIPE).read_text(encoding="utf-8")))
    exported = read_manifest(target).checkpoint.name
    console.print(
        f"wrote {target} ({exported}). See {target / 'README.md'}, or:  marft serve {target}{trust}", soft_wrap=True
    )


def push(path: Path, repo_id: str, *, private: bool, token: str) -> None:
    """``marft push``.

    Args:
        path: folder of an export.
        repo_id: ``name/model`` on the Hugging Face hub.
        private: create the repository as private.
        token: token of the hub.
    """
    silence_transformers()
    from marft.runs.export.push import push_export as run_push

    console.print(f"see {run_push(path, repo_id, private=private, token=token)}", soft_wrap=True)
