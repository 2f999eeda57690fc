"""Command implementations. Imported only when a command runs."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING

from rich.progress import Progress
from rich.text import Text

from marft.agents.environment import Split
from marft.cli.console import INTERRUPTED, in_bold, wide_console
from marft.cli.errors import beside
from marft.cli.listings import preset
from marft.cli.output import How, output
from marft.common import atomic
from marft.common.texts import one_line, visible
from marft.config import RunSettings, load_recipe, to_toml
from marft.config.consulting import unlearned_replies
from marft.config.run import check_room, idle_kl_stop, refuse_missing_packages, refuse_nothing_to_train
from marft.envs.tasks import NoTasksError, refuse_too_few_steps, tasks_of
from marft.evaluation.compare import comparison_tables, not_evaluated
from marft.evaluation.evaluate import Advance
from marft.runs.folder import RunFolder
from marft.runs.going_on import resumed_or_started

if TYPE_CHECKING:
    from marft.models.formats import Format

PROMPT_SHOWN = 80  # maximum length of a task in the output, in characters
console = wide_console()


def train(
    recipe: Path, overrides: Sequence[str], *, resume: bool, start_from: Path | None, dry_run: bool, overwrite: bool,
    how: How = "", resume_or_start: bool = False,
) -> None:  # fmt: skip
    """``marft train``.

    Args:
        recipe: recipe file, name of a bundled recipe, or folder of a run.
        overrides: command-line overrides.
        resume: resume the run from its newest checkpoint.
        start_from: checkpoint whose weights a new run starts with.
        dry_run: check and print the resolved recipe only.
        overwrite: replace an existing run of the same name.
        how: output mode.
        resume_or_start: resume the run if it exists, else start it.

    Raises:
        ValueError: the recipe, the folder or the combination of options is invalid.
        SystemExit: training was interrupted after a save; the status keeps a command after ``&&`` from starting.
    """
    run, folder = _run_of(recipe, overrides)
    refuse_nothing_to_train(run)
    refuse_missing_packages(run)
    if dry_run:
        looked_at = _looked_at(run)
        console.print(to_toml(run))
        for sentence in looked_at:  # printed last, because earlier output scrolls away
            console.print(f"# {sentence}", soft_wrap=True)
        return
    if folder is None:
        folder = RunFolder(Path(run.output) / run.name)
    if resume_or_start:
        if resume or overwrite:
            raise ValueError(
                f"--resume-or-start goes on where there is a run, and {'--resume' if resume else '--overwrite'} says "
                "otherwise; give one of them"
            )
        resume, start_from, overwrite = resumed_or_started(folder, start_from)
    if resume:
        RunFolder.open(folder.path)
    else:
        folder.check_free(overwrite)
    beside(folder.path)
    quieten()
    from marft.evaluation.report import write_report
    from marft.trainer.loop import train as run_training

    roles, steps = [agent.role for agent in run.agents], run.training.steps
    with output(how) as out:
        with out.observer(folder.path, roles, run.training.show_samples_every, "training") as seen:
            state = run_training(run, folder, resume=resume, start_from=start_from, overwrite=overwrite, observer=seen)
        write_report(folder)
        stopped = state.step < steps
        out.tell("done", step=state.step, steps=steps, stopped=stopped, run=folder.path, report=folder.report)
        if stopped:
            out.say(f"stopped after step {state.step}. Go on with:  marft train {folder.path} --resume")
            raise SystemExit(INTERRUPTED)
        if state.step == seen.done:
            out.say(f"all {state.step} steps were trained before; for more:  --training.steps {2 * state.step}")
            return
        out.say(f"trained {state.step} steps. See {folder.report}, or:  marft eval {folder.path}")


def _looked_at(run: RunSettings) -> list[str]:
    """Return sentences on each split that training and evaluation need, and on the models' formats."""
    from marft.models.formats import load_formats

    splits: list[Split] = ["train", "validation", "test"] if run.evaluation.every else ["train", "test"]
    sentences = []
    for split in splits:
        try:
            tasks = tasks_of(run.environment, split)
        except NoTasksError as error:
            if split != "test":
                raise
            sentences.append(f"{split}: {error}; training needs none, and marft eval does")
            continue
        if split == "train":
            refuse_too_few_steps(tasks, run.rollout.max_steps)
        prompt = visible(" ".join(tasks[0].prompt.split()))
        sentences.append(f"{split}: {len(tasks)} tasks, the first is {visible(tasks[0].id)}: {prompt[:PROMPT_SHOWN]}")
    quieten()
    formats = load_formats(run)
    _check_parts(run, formats)
    for name, model in formats.items():
        ends = " or ".join(visible(str(token)) for token in model.tokenizer.convert_ids_to_tokens(list(model.stop_ids)))
        sentences.append(
            f"models.{name}: {model.context} tokens for prompt and action together; a turn ends with {ends}"
        )
    return [*sentences, *idle_kl_stop(run), *unlearned_replies(run)]


def _check_parts(run: RunSettings, formats: Mapping[str, Format]) -> None:
    """Run the checks at training start: context, tools, grammars, skills, endpoints and reward terms.

    Raises:
        ValueError: training would reject the recipe.
    """
    from marft.agents.tools.skills import read_skill
    from marft.envs.game_parts import check_agent, open_terms
    from marft.inference.endpoints.client import Endpoint
    from marft.inference.samplers import renderer_of

    renderer = renderer_of(run, formats)
    check_room(run, {policy: format.context for policy, format in renderer.formats.items()})
    for agent in run.agents:
        for folder in agent.skills:
            read_skill(folder)
        check_agent(run, agent, bool(agent.tools or agent.skills), renderer)
    with ExitStack() as opened:
        for name, model in run.models.items():
            if model.endpoint:
                opened.callback(Endpoint(name, model.endpoint, model.path).close)
        open_terms(run, opened.callback)


def play(
    path: Path, overrides: Sequence[str], humans: Sequence[str], checkpoint: str, task: int, again: str = ""
) -> None:
    """``marft play``.

    Args:
        path: recipe, or folder of a run.
        overrides: command-line overrides.
        humans: roles that people play.
        checkpoint: checkpoint of the run; a recipe uses its base.
        task: index of the task in the test split.
        again: action of a recorded episode from which to play again; "" for none.
    """
    run, folder = _run_of(path, overrides)
    quieten()
    if isinstance(sys.stdin, TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")  # accept typed or pasted bytes that are not valid text
    from marft.cli.live import Screen, play_live

    play_live(run, folder, checkpoint if folder else "base", task, humans, Screen(console), again)


def replay(path: Path, names: Sequence[str], step: int, episodes: int) -> None:
    """``marft replay``.

    Args:
        path: folder of a run.
        names: presets to compare; the run's own name means its own settings.
        step: recorded training step; 0: the last one.
        episodes: number of episodes to show.
    """
    folder = RunFolder.open(path)
    beside(folder.path)
    own = folder.settings().algorithm
    names = list(dict.fromkeys(name.strip() for name in names if name.strip()))
    if not names:
        raise ValueError("--algorithms: name at least one, for example marft,grpo")
    algorithms = [own if name == own.name else preset(name).model_copy(update={"reward": own.reward}) for name in names]
    quieten()
    from marft.trainer import replay_page
    from marft.trainer.replay import replay as run_replay

    with bar("crediting") as advance:
        advance(len(algorithms))
        audit = run_replay(folder, algorithms, step, on_done=advance)
    pictures = replay_page.pictures_of(audit, episodes)
    target = folder.replays / f"step_{audit.step:06d}"
    replay_page.write_replay(target, f"{folder.path.resolve().name}: step {audit.step}", audit, pictures)
    console.print(in_bold(f"{len(audit.episodes)} episodes of step {audit.step}\n"))
    console.print(replay_page.audit_table(audit), "")
    if len(algorithms) > 1:
        console.print(replay_page.agreement_table(audit), "")
    if pictures:
        console.print(replay_page.action_table(audit, pictures), "")
    for note in replay_page.notes_of(audit):
        console.print(note, soft_wrap=True)
    console.print(f"see {target.with_suffix('.html')}", soft_wrap=True)


def graph(path: Path, name: str, step: int) -> None:
    """``marft graph``.

    Args:
        path: folder of a run.
        name: index of the episode in the step, or ``task#sample``.
        step: recorded training step; 0: the last one.
    """
    from marft.evaluation.graph import draw, file_name, find_episode, timeline
    from marft.runs.episodes import read_episodes

    folder = RunFolder.open(path)
    beside(folder.path)
    file = folder.recorded(step)
    episode = find_episode(read_episodes(file), name)
    console.print(f"{episode.task.id} #{episode.sample} of {file.stem}: {episode.status}")
    console.print(timeline(episode))
    target = folder.graphs / f"{file.stem}-{file_name(episode.task.id)}-{episode.sample}.svg"
    target.parent.mkdir(exist_ok=True)
    draw(episode).savefig(target, metadata={"Date": None})
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
    if gates or by or junit or markdown or after_as:
        return _changed(paths, gates, by, junit, markdown, other_tools, after_as)
    for table in comparison_tables([RunFolder.open(path) for path in paths], other_tools):
        console.print(table)
    return True


def _changed(
    paths: Sequence[Path], gates: Sequence[str], by: str, junit: Path | None, markdown: Path | None, other_tools: bool,
    after_as: str,
) -> bool:  # fmt: skip
    from marft.evaluation.changes import changes_table
    from marft.evaluation.comparison import compared, saved_in

    if len(paths) != 2:
        raise ValueError("gates, cohorts, their files and --as are of two runs: marft compare BEFORE AFTER")
    before, after = (saved_in(RunFolder.open(path)) for path in paths)
    names = (str(paths[0]), str(paths[1]))
    found = compared(before, after, names, gates, by, other_tools=other_tools, after_as=after_as)
    for label, some in found.changes.items():
        console.print(changes_table(some, label), "")
        if found.turned[label].sentence:
            console.print(Text(f"{one_line(label)}: {found.turned[label].sentence}"), soft_wrap=True)
    for label, of_label in found.verdicts.items():
        for verdict in of_label:
            said = f"{'failed' if verdict.failed else 'passed'}: {verdict.gate.text} ({label}): {verdict.reason}"
            console.print(Text(one_line(said), style="red" if verdict.failed else ""), soft_wrap=True)
    if junit:
        atomic.write_file(junit, found.as_junit())
    if markdown:
        atomic.write_file(markdown, found.as_markdown())
    return found.passed


def report(path: Path, against: Sequence[Path]) -> None:
    """``marft report``."""
    from marft.evaluation.report import write_report

    folder = RunFolder.open(path)
    beside(folder.path)
    others = [RunFolder.open(other) for other in against]
    write_report(folder, others)
    for problem in not_evaluated(others):
        console.print(f"not shown: {problem}", soft_wrap=True)
    console.print(f"wrote {folder.report}")


def quieten() -> None:
    """Suppress progress bars and advice from transformers."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()


def _run_of(path: Path, overrides: Sequence[str]) -> tuple[RunSettings, RunFolder | None]:
    """Return settings from a recipe file or a run's folder, with the folder of the run."""
    if path.is_dir():
        folder = RunFolder.open(path)
        beside(folder.path)
        return folder.settings_in_place(overrides), folder
    return load_recipe(path, overrides), None


@contextmanager
def bar(label: str, shown: bool = True) -> Iterator[Advance]:
    """Show a transient progress bar on a terminal.

    Yields:
        A function that sets the total with an argument, and advances by one step without.
    """
    with Progress(console=console, transient=True, disable=not (shown and console.is_terminal)) as progress:
        task = progress.add_task(label, total=None)

        def advance(total: int | None = None) -> None:
            if total is not None:
                progress.update(task, total=total)
            else:
                progress.advance(task)

        yield advance
