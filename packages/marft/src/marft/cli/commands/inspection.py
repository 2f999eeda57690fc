"""Commands to inspect, evaluate, compare and play."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from marft.cli.app import OVERRIDE_CONTEXT, JsonOption, QuietOption, app


@app.command("eval", context_settings=OVERRIDE_CONTEXT)
def evaluate(
    context: typer.Context,
    targets: Annotated[
        list[Path], typer.Argument(help="Runs, checkpoints, exports; or recipes: of them only the base.")
    ],
    checkpoint: Annotated[
        str, typer.Option(help="Of runs: base, last, best or step_000050; several with commas.")
    ] = "base,last",
    mode: Annotated[str, typer.Option(help="greedy, sampled, or both with a comma.")] = "",
    tasks: Annotated[int, typer.Option(min=0, help="How many held-out tasks; 0: as the recipe says.")] = 0,
    attempts: Annotated[
        int, typer.Option(min=0, help="At each task: with several, pass@k; 0: as the recipe says.")
    ] = 0,
    scenarios: Annotated[
        Path | None, typer.Option(help="Exactly those of this file, which marft scenarios has made.")
    ] = None,
    shuffle_messages: Annotated[
        bool, typer.Option("--shuffle-messages", help="Also with every agent seeing messages of another task.")
    ] = False,
    group_by: Annotated[str, typer.Option(help="Also by cohort: tasks with the same value of this field.")] = "",
    suite: Annotated[
        Path | None, typer.Option(help="Attacks, rules and gates in place of mere tasks: safety, or a file of yours.")
    ] = None,
    fail_if: Annotated[
        list[str] | None, typer.Option(help='With --suite, beside its gates: "attack_success bound > +5%"; repeat it.')
    ] = None,
    team_file: Annotated[
        Path | None, typer.Option(help="The trained agents in the team of this file: other seats, handoffs.")
    ] = None,
    rerun: Annotated[bool, typer.Option("--rerun", help="Play anew what is kept from before.")] = False,
    trust_code: Annotated[
        bool, typer.Option("--trust-code", help="Of an export: run the code that it brings.")
    ] = False,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Evaluate checkpoints and their untuned base.

    On held-out tasks, with 95 % intervals. Saved results are not played again, and an interrupted evaluation resumes.
    Settings can be overridden as in train. With a suite, the exit status is 1 if a gate fails.
    """
    from marft.cli import evaluation, options, output

    output_mode = output.output_mode(quiet, as_json)
    paths, overrides = options.parse_targets(context, targets)
    names = [name.strip() for name in checkpoint.split(",")]
    evaluation_options = evaluation.EvaluationOptions(
        names,
        mode,
        tasks,
        attempts,
        shuffle_messages,
        rerun,
        scenarios,
        trust_code,
        group_by,
        suite,
        fail_if or (),
        team_file,
    )
    if suite is None:
        evaluation.evaluate(paths, overrides, evaluation_options, output_mode)
    elif not evaluation.evaluate_suite(paths, overrides, evaluation_options, output_mode):
        raise typer.Exit(1)


@app.command(context_settings=OVERRIDE_CONTEXT)
def scenarios(
    context: typer.Context,
    recipe: Annotated[Path, typer.Argument(help="A recipe, or the folder of a run.")],
    output: Annotated[Path, typer.Option(help="The file; evaluations bear its name.")] = Path("scenarios.json"),
    tasks: Annotated[int, typer.Option(min=0, help="How many; 0: as the recipe evaluates.")] = 0,
    split: Annotated[str, typer.Option(help="train, validation or test.")] = "test",
    balance_by: Annotated[
        str, typer.Option(help="A field of the tasks: as many of each of its values as there can be.")
    ] = "",
    mode: Annotated[str, typer.Option(help="greedy, sampled, or both with a comma.")] = "",
    attempts: Annotated[int, typer.Option(min=0, help="At each task; 0: as the recipe evaluates.")] = 0,
) -> None:
    """Freeze a set of scenarios for evaluation.

    The file holds tasks with their digests, seed, modes and attempts. Keep it with your code.
    """
    from marft.cli import evaluation, options

    overrides = options.parse_overrides(context, recipe)
    evaluation.write_scenarios(recipe, overrides, output, tasks, split, balance_by, mode, attempts)


@app.command(context_settings=OVERRIDE_CONTEXT)
def play(
    context: typer.Context,
    recipe: Annotated[Path, typer.Argument(help="A recipe, then with its untuned base; or the folder of a run.")],
    human: Annotated[list[str] | None, typer.Option(help="An agent that you play; repeat the option.")] = None,
    checkpoint: Annotated[str, typer.Option(help="Of a run: base, last, best or step_000050.")] = "last",
    task: Annotated[int, typer.Option(help="Which task of the test split.")] = 0,
    fork_from: Annotated[
        str, typer.Option(help="Of a run: a recorded episode up to an action, STEP:EPISODE@ACTION, and on from there.")
    ] = "",
) -> None:
    """Play one episode live, agent by agent.

    Shows the input of each agent. You can play any agent yourself.
    """
    from marft.cli import handlers, options

    handlers.play(recipe, options.parse_overrides(context, recipe), human or [], checkpoint, task, fork_from)


@app.command()
def compare(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs that were evaluated.")],
    fail_if: Annotated[
        list[str] | None, typer.Option(help='Of two runs: exit with 1 if "accuracy < -1%"; repeat the option.')
    ] = None,
    group_by: Annotated[
        str, typer.Option(help="Of two runs: also by cohort, tasks with the same value of this field.")
    ] = "",
    junit: Annotated[Path | None, typer.Option(help="Of two runs: write the gates to this file, for CI.")] = None,
    markdown: Annotated[Path | None, typer.Option(help="Of two runs: write gates and changes to this file.")] = None,
    other_tools: Annotated[
        bool, typer.Option("--other-tools", help="Also where agents were told other things of their tools.")
    ] = False,
    team_name: Annotated[
        str, typer.Option(help="Of two runs: the second as the team of this name, evaluated with --team-file.")
    ] = "",
) -> None:
    """Show evaluated runs side by side.

    Each against its own base on the same tasks; with gates or cohorts, the second against the first.
    """
    from marft.cli import handlers

    if not handlers.compare(runs, fail_if or [], group_by, junit, markdown, other_tools, team_name):
        raise typer.Exit(1)


@app.command()
def report(
    run: Annotated[Path, typer.Argument(help="The folder of a run.")],
    against: Annotated[list[Path] | None, typer.Option(help="Other runs to show beside it; repeat the option.")] = None,
) -> None:
    """Write the report.html of a run.

    With training curves, results before and after, and sample episodes.
    """
    from marft.cli import handlers

    handlers.report(run, against or [])


@app.command()
def replay(
    run: Annotated[Path, typer.Argument(help="The folder of a run.")],
    algorithms: Annotated[str, typer.Option(help="Presets, with commas; the run's own name means its own settings.")],
    step: Annotated[int, typer.Option(min=0, help="A recorded training step; 0: the last one.")] = 0,
    episodes: Annotated[int, typer.Option(min=0, help="How many episodes to show: those most disagreed about.")] = 4,
) -> None:
    """Assign credit to recorded episodes with several algorithms.

    Shows side by side which actions each algorithm reinforces, and how much.
    """
    from marft.cli import handlers

    handlers.replay(run, algorithms.split(","), step, episodes)


@app.command()
def graph(
    run: Annotated[Path, typer.Argument(help="The folder of a run.")],
    episode: Annotated[str, typer.Argument(help="Its index in the step (0, 1, …), or task#sample.")] = "0",
    step: Annotated[int, typer.Option(min=0, help="A recorded training step; 0: the last one.")] = 0,
) -> None:
    """Draw one recorded episode.

    Shows the order of actions and their dependencies.
    """
    from marft.cli import handlers

    handlers.graph(run, episode, step)


@app.command()
def show(
    run: Annotated[Path, typer.Argument(help="The folder of a run, or one of marft serve --record.")],
    step: Annotated[int | None, typer.Option(min=0, help="A recorded training step; 0: the last one.")] = None,
    agent: Annotated[str, typer.Option(help="Only what this agent did.")] = "",
    task: Annotated[
        str, typer.Option(help="Only this task, or task#sample; without --step, how it went at every step.")
    ] = "",
    worst: Annotated[bool, typer.Option("--worst", help="Those that earned least first.")] = False,
    best: Annotated[bool, typer.Option("--best", help="Those that earned most first.")] = False,
    failed: Annotated[bool, typer.Option("--failed", help="Those that could not be scored.")] = False,
    count: Annotated[int, typer.Option(min=1, help="How many episodes, of a step.")] = 3,
    follow: Annotated[
        bool, typer.Option("--follow", help="Of each step as it is recorded, until the run ends or Ctrl-C.")
    ] = False,
) -> None:
    """Show recorded episodes: prompts, outputs and rewards."""
    from marft.cli.show import show_episodes as run_show

    sort_orders = [name for name, wanted in (("worst", worst), ("best", best), ("failed", failed)) if wanted]
    if follow:
        from marft.cli.follow import follow_run as run_follow

        run_follow(run, step, agent, task, sort_orders, count)
        return
    run_show(run, step, agent, task, sort_orders, count)
