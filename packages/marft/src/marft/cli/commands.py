"""Definitions of the commands: options and help texts, in the order of the help.

The implementation of a command is imported when the command runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from marft.cli.app import OVERRIDE_CONTEXT, JsonOption, QuietOption, app, command_group

engines = command_group(name="engine", help="Engines with a Python environment of their own.", no_args_is_help=True)
app.add_typer(engines)


@app.command()
def init(
    folder: Annotated[
        Path | None, typer.Argument(help="Where the files go, made where it is not there; my_team, or my_env.")
    ] = None,
    kind: Annotated[str, typer.Option(help="What to begin: a team, or an environment.")] = "team",
    data: Annotated[
        str | None, typer.Option(help="Your table: CSV, JSONL, Parquet; '' for a few invented rows.")
    ] = None,
    question: Annotated[str, typer.Option(help="Its column with the questions.")] = "",
    answer: Annotated[str | None, typer.Option(help="Its column with the right answers; '' for none.")] = None,
    model: Annotated[str, typer.Option(help="tiny (bundled), a folder, or a Hugging Face id.")] = "",
    team: Annotated[str, typer.Option(help="reasoner-actor, writer-critic, or single.")] = "",
    yes: Annotated[bool, typer.Option("--yes", help="Ask nothing; take what is not named by default.")] = False,
) -> None:
    """Create a team or an environment.

    Writes a folder that can be trained at once. A team has a recipe, a reward function with its test, and some data. An
    environment has a package with its tests, and a recipe. Asks questions only on a terminal, and overwrites nothing.
    """
    from marft.cli import project_init as begin

    if begin.check_kind(kind) != begin.TEAM_KIND:
        begin.init_kind(kind, folder, [data, question, answer, model, team])
        return
    begin.init_team(folder or Path("my_team"), data, question, answer, model, team, yes)


@app.command()
def algorithms(
    name: Annotated[str, typer.Argument(help="A preset, to see every setting of it.")] = "",
) -> None:
    """List the algorithms, or print all settings of one."""
    from marft.cli import listings

    listings.list_algorithms(name)


@app.command()
def recipes(
    name: Annotated[str, typer.Argument(help="A bundled recipe, to print it as it is.")] = "",
) -> None:
    """List the bundled recipes, or print one.

    Train a recipe by its name, or copy one as a start: marft recipes demo > mine.toml
    """
    from marft.cli import listings

    listings.list_recipes(name)


@app.command()
def environments(
    name: Annotated[str, typer.Argument(help="An environment, to see its keys and what they take.")] = "",
) -> None:
    """List the environments, or print the keys of one."""
    from marft.cli import listings

    listings.list_environments(name)


@engines.command()
def install(
    engine: Annotated[str, typer.Argument(help="vllm.")],
    cpu: Annotated[bool, typer.Option("--cpu", help="The build for processors, instead of CUDA's.")] = False,
) -> None:
    """Create the Python environment of an engine.

    Replaces an existing one. Location: ~/.local/share/marft (or XDG_DATA_HOME). Needs gigabytes of space and some
    minutes.
    """
    from marft.cli import handlers as commands

    commands.install_engine(engine, cpu=cpu)


@app.command()
def export(
    run: Annotated[Path, typer.Argument(help="The folder of a run.")],
    checkpoint: Annotated[str, typer.Option(help="best, last, a step, or step_000050.")] = "best",
    output: Annotated[Path | None, typer.Option(help="The folder to write; exports/<run> where none is named.")] = None,
    merged: Annotated[bool, typer.Option("--merged", help="Also whole weights, with the adapters in them.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Take the place of another export.")] = False,
    team_file: Annotated[
        Path | None, typer.Option(help="The file of a team as which its agents go out, as in marft eval --team-file.")
    ] = None,
) -> None:
    """Export a trained team as a folder.

    The folder holds adapters, a manifest, a recipe and a model card. peft, vLLM, marft eval and marft serve can load
    it.
    """
    from marft.cli import handlers as team_export

    team_export.export(run, checkpoint, output, merged=merged, overwrite=overwrite, team_file=team_file)


@app.command()
def push(
    export: Annotated[Path, typer.Argument(help="The folder of an export.")],
    repo_id: Annotated[str, typer.Argument(help="name/model on the Hugging Face hub; made where it is not there.")],
    private: Annotated[bool, typer.Option("--private", help="Where it is made: for you alone.")] = False,
    token: Annotated[str, typer.Option(envvar="HF_TOKEN", help="Of the hub; else that of hf auth login.")] = "",
) -> None:
    """Upload an export to the Hugging Face hub.

    Uploads only the listed files, and verifies them first.
    """
    from marft.cli import handlers as team_export

    team_export.push(export, repo_id, private=private, token=token)


@app.command(context_settings=OVERRIDE_CONTEXT)
def train(
    context: typer.Context,
    recipe: Annotated[Path, typer.Argument(help="A TOML file, a bundled recipe's name, or with --resume a run.")],
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a run from its newest checkpoint.")] = False,
    resume_or_start: Annotated[
        bool, typer.Option("--resume-or-start", help="Go on with the run where there is one, else start it.")
    ] = False,
    ray_address: Annotated[
        str | None, typer.Option(help="A Ray cluster to play in: host:port, or auto (cluster.address).")
    ] = None,
    start_from: Annotated[
        Path | None, typer.Option("--init-from", help="Start a new run with the weights of this checkpoint folder.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check and print the resolved recipe; run nothing.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Take the place of a run of that name.")] = False,
    samples: Annotated[
        int | None, typer.Option(min=0, help="Show one episode of every so many steps; 0: none.")
    ] = None,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Train the team of a recipe.

    Override any setting: --algorithm.level token --training.steps 50
    """
    from marft.cli import handlers, options, output

    changes = options.parse_overrides(context, recipe)
    if samples is not None:
        changes = [*changes, "--training.show_samples_every", str(samples)]
    if ray_address is not None:
        changes = [*changes, "--cluster.address", ray_address]
    handlers.train(
        recipe,
        changes,
        resume=resume,
        resume_or_start=resume_or_start,
        start_from=start_from,
        dry_run=dry_run,
        overwrite=overwrite,
        output_mode=output.output_mode(quiet, as_json),
    )


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
    names, gates = [name.strip() for name in checkpoint.split(",")], fail_if or ()
    evaluation_options = evaluation.EvaluationOptions(
        names, mode, tasks, attempts, shuffle_messages, rerun, scenarios, trust_code, group_by, suite, gates, team_file
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
    scenario_options = evaluation.EvaluationOptions(mode=mode, tasks=tasks, attempts=attempts, by=balance_by)
    evaluation.write_scenarios(recipe, overrides, output, split, scenario_options)


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
        from marft.cli.show import follow_run as run_follow

        run_follow(run, step, agent, task, sort_orders, count)
        return
    run_show(run, step, agent, task, sort_orders, count)
