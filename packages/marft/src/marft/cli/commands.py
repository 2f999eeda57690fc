"""Definitions of the commands: options and help texts, in the order of the help.

The implementation of a command is imported when the command runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from marft.cli.app import OVERRIDE_CONTEXT, JsonOption, QuietOption, VerboseOption, app, command_group

engines = command_group(name="engine", help="Install an engine in its own Python environment.", no_args_is_help=True)
app.add_typer(engines, rich_help_panel="Train")


@app.command(rich_help_panel="Start")
def init(
    folder: Annotated[
        Path | None, typer.Argument(help="Folder to create (default: my_team, or my_env for an environment).")
    ] = None,
    kind: Annotated[str, typer.Option(help="Kind of project: team or environment.")] = "team",
    data: Annotated[
        str | None, typer.Option(help="Your table: a CSV, JSONL or Parquet file; '' for 60 generated rows.")
    ] = None,
    task: Annotated[str, typer.Option(help="Task of the table in one sentence, for the agents' prompt.")] = "",
    question: Annotated[str, typer.Option(help="Column with the questions (default: found by name).")] = "",
    answer: Annotated[
        str | None, typer.Option(help="Column with the right answers; '' for none (default: found by name).")
    ] = None,
    model: Annotated[
        str, typer.Option(help="Model: tiny (bundled), a folder, or a Hugging Face id (default: tiny).")
    ] = "",
    team: Annotated[
        str, typer.Option(help="Team: reasoner-actor, writer-critic or single (default: reasoner-actor).")
    ] = "",
    yes: Annotated[bool, typer.Option("--yes", help="Ask no questions; use the defaults.")] = False,
) -> None:
    """Create a team or an environment.

    The command writes a folder that can be trained at once. A team has a recipe, a reward function with its test, and
    data. An environment has a package with its tests, and a recipe. Without a terminal, or with --yes, the command asks
    no questions. It overwrites no file.
    """
    from marft.cli import project_init as begin

    options = begin.TeamOptions(data, task, question, answer, model, team)
    if begin.check_kind(kind) != begin.TEAM_KIND:
        begin.init_kind(kind, folder, options)
        return
    begin.init_team(folder or Path("my_team"), options, use_defaults=yes)


@app.command(rich_help_panel="Start")
def recipes(
    name: Annotated[str, typer.Argument(help="Bundled recipe to print (default: list all).")] = "",
) -> None:
    """List the bundled recipes, or print one.

    Train a recipe by its name, or copy one as a start: marft recipes demo > mine.toml
    """
    from marft.cli import listings

    listings.list_recipes(name)


@app.command(rich_help_panel="Start")
def algorithms(
    name: Annotated[str, typer.Argument(help="Preset to print (default: list all).")] = "",
) -> None:
    """List the algorithms, or print all settings of one."""
    from marft.cli import listings

    listings.list_algorithms(name)


@app.command(rich_help_panel="Start")
def environments(
    name: Annotated[str, typer.Argument(help="Environment whose keys to print (default: list all).")] = "",
) -> None:
    """List the environments, or print the keys of one."""
    from marft.cli import listings

    listings.list_environments(name)


@app.command(context_settings=OVERRIDE_CONTEXT, rich_help_panel="Train")
def train(
    context: typer.Context,
    recipe: Annotated[
        Path, typer.Argument(help="Recipe: a TOML file or a bundled name; with --resume, the folder of a run.")
    ],
    resume: Annotated[bool, typer.Option("--resume", help="Resume a run from its newest checkpoint.")] = False,
    resume_or_start: Annotated[
        bool, typer.Option("--resume-or-start", help="Resume the run if it exists; otherwise start it.")
    ] = False,
    ray_address: Annotated[
        str | None, typer.Option(help="Ray cluster for rollouts: host:port, or auto (sets cluster.address).")
    ] = None,
    start_from: Annotated[
        Path | None, typer.Option("--init-from", help="Start a new run with the weights of this checkpoint folder.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check and print the resolved recipe; run nothing.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing run of this name.")] = False,
    samples: Annotated[int | None, typer.Option(min=0, help="Print one episode every N steps; 0: never.")] = None,
    fail_if_unlearned: Annotated[
        bool,
        typer.Option("--fail-if-unlearned", help="Exit with status 1 if no attempt differed, so nothing was learned."),
    ] = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
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
        fail_if_unlearned=fail_if_unlearned,
        output_mode=output.output_mode(quiet, as_json, verbose),
    )


@engines.command()
def install(
    engine: Annotated[str, typer.Argument(help="Engine to install: vllm.")],
    cpu: Annotated[bool, typer.Option("--cpu", help="Install the CPU build instead of the CUDA build.")] = False,
) -> None:
    """Create the Python environment of an engine.

    An existing environment of the engine is replaced. Location: ~/.local/share/marft (or XDG_DATA_HOME). The
    installation needs several gigabytes and minutes.
    """
    from marft.cli import handlers as commands

    commands.install_engine(engine, cpu=cpu)


@app.command("eval", context_settings=OVERRIDE_CONTEXT, rich_help_panel="Evaluate")
def evaluate(
    context: typer.Context,
    targets: Annotated[
        list[Path], typer.Argument(help="Runs, checkpoints or exports to evaluate; a recipe: its untuned base only.")
    ],
    checkpoint: Annotated[
        str, typer.Option(help="Checkpoints of a run, separated by commas: base, last, best or step_000050.")
    ] = "base,last",
    mode: Annotated[
        str, typer.Option(help="Decoding mode: greedy, sampled, or greedy,sampled for both (default: the recipe's).")
    ] = "",
    tasks: Annotated[int, typer.Option(min=0, help="Number of held-out tasks; 0: the recipe's number.")] = 0,
    attempts: Annotated[
        int, typer.Option(min=0, help="Attempts per task; 2 or more also give pass@k; 0: the recipe's number.")
    ] = 0,
    scenarios: Annotated[
        Path | None, typer.Option(help="Scenario file from marft scenarios: evaluate exactly its tasks.")
    ] = None,
    shuffle_messages: Annotated[
        bool,
        typer.Option(
            "--shuffle-messages",
            help="Evaluate also with messages from another task, to measure what messages are worth.",
        ),
    ] = False,
    group_by: Annotated[str, typer.Option(help="Also report results per value of this task field.")] = "",
    suite: Annotated[
        Path | None, typer.Option(help="Suite of attacks, rules and gates: safety (bundled) or a TOML file.")
    ] = None,
    fail_if: Annotated[
        list[str] | None,
        typer.Option(help='With --suite: further gate, such as "attack_success bound > +5%"; repeatable.'),
    ] = None,
    team_file: Annotated[Path | None, typer.Option(help="Team file: evaluate the trained agents in this team.")] = None,
    rerun: Annotated[bool, typer.Option("--rerun", help="Ignore saved results and play again.")] = False,
    trust_code: Annotated[
        bool, typer.Option("--trust-code", help="Run the Python code that an export contains.")
    ] = False,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Evaluate checkpoints and their untuned base.

    The tasks are held out, and results have 95 % intervals. Saved results are not played again, and an interrupted
    evaluation resumes. Settings can be overridden as in train. With a suite, the exit status is 1 if a gate fails.
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


@app.command(rich_help_panel="Evaluate")
def compare(
    runs: Annotated[list[Path], typer.Argument(help="Folders of evaluated runs.")],
    fail_if: Annotated[
        list[str] | None,
        typer.Option(help='Two runs: exit with status 1 if this holds, such as "accuracy < -1%"; repeatable.'),
    ] = None,
    group_by: Annotated[str, typer.Option(help="Two runs: also compare per value of this task field.")] = "",
    junit: Annotated[Path | None, typer.Option(help="Two runs: write the gates to this JUnit XML file.")] = None,
    markdown: Annotated[
        Path | None, typer.Option(help="Two runs: write gates and changes to this Markdown file.")
    ] = None,
    other_tools: Annotated[
        bool, typer.Option("--other-tools", help="Compare even if the agents had different tool descriptions.")
    ] = False,
    team_name: Annotated[
        str, typer.Option(help="Two runs: use the second's evaluation of this team (marft eval --team-file).")
    ] = "",
) -> None:
    """Show evaluated runs side by side.

    Each run is compared with its own base on the same tasks; with gates or cohorts, the second with the first.
    """
    from marft.cli import handlers

    if not handlers.compare(runs, fail_if or [], group_by, junit, markdown, other_tools, team_name):
        raise typer.Exit(1)


@app.command(context_settings=OVERRIDE_CONTEXT, rich_help_panel="Evaluate")
def scenarios(
    context: typer.Context,
    recipe: Annotated[Path, typer.Argument(help="Recipe, or folder of a run.")],
    output: Annotated[Path, typer.Option(help="File to write; its name appears in the evaluations.")] = Path(
        "scenarios.json"
    ),
    tasks: Annotated[int, typer.Option(min=0, help="Number of tasks; 0: the recipe's number.")] = 0,
    split: Annotated[str, typer.Option(help="Split: train, validation or test.")] = "test",
    balance_by: Annotated[str, typer.Option(help="Task field: choose equally many tasks of each value.")] = "",
    mode: Annotated[
        str, typer.Option(help="Decoding mode: greedy, sampled, or greedy,sampled for both (default: the recipe's).")
    ] = "",
    attempts: Annotated[int, typer.Option(min=0, help="Attempts per task; 0: the recipe's number.")] = 0,
) -> None:
    """Freeze a set of scenarios for evaluation.

    The file holds tasks with their digests, seed, modes and attempts. Keep it with your code.
    """
    from marft.cli import evaluation, options

    overrides = options.parse_overrides(context, recipe)
    scenario_options = evaluation.EvaluationOptions(mode=mode, tasks=tasks, attempts=attempts, by=balance_by)
    evaluation.write_scenarios(recipe, overrides, output, split, scenario_options)


@app.command(rich_help_panel="Look")
def show(
    run: Annotated[Path, typer.Argument(help="Folder of a run, or of marft serve --record.")],
    step: Annotated[int | None, typer.Option(min=0, help="Recorded training step; 0: the last.")] = None,
    agent: Annotated[str, typer.Option(help="Show only this agent's actions.")] = "",
    task: Annotated[
        str, typer.Option(help="Show only this task, or task#sample; without --step, its results at every step.")
    ] = "",
    worst: Annotated[bool, typer.Option("--worst", help="Sort by reward, lowest first.")] = False,
    best: Annotated[bool, typer.Option("--best", help="Sort by reward, highest first.")] = False,
    failed: Annotated[bool, typer.Option("--failed", help="Show episodes that failed and were not scored.")] = False,
    count: Annotated[int, typer.Option(min=1, help="Number of episodes per step.")] = 3,
    follow: Annotated[bool, typer.Option("--follow", help="Show each new step, until the run ends or Ctrl-C.")] = False,
) -> None:
    """Show recorded episodes: prompts, outputs and rewards."""
    from marft.cli.show import show_episodes as run_show

    sort_orders = [name for name, wanted in (("worst", worst), ("best", best), ("failed", failed)) if wanted]
    if follow:
        from marft.cli.show import follow_run as run_follow

        run_follow(run, step, agent, task, sort_orders, count)
        return
    run_show(run, step, agent, task, sort_orders, count)


@app.command(rich_help_panel="Look")
def graph(
    run: Annotated[Path, typer.Argument(help="Folder of a run.")],
    episode: Annotated[str, typer.Argument(help="Episode: its index in the step (0, 1, …), or task#sample.")] = "0",
    step: Annotated[int, typer.Option(min=0, help="Recorded training step; 0: the last.")] = 0,
) -> None:
    """Draw one recorded episode.

    The graph shows the order of actions and their dependencies.
    """
    from marft.cli import handlers

    handlers.graph(run, episode, step)


@app.command(rich_help_panel="Look")
def report(
    run: Annotated[Path, typer.Argument(help="Folder of a run.")],
    against: Annotated[list[Path] | None, typer.Option(help="Other run to show for comparison; repeatable.")] = None,
) -> None:
    """Write the report.html of a run.

    The report has training curves, results before and after training, and sample episodes.
    """
    from marft.cli import handlers

    handlers.report(run, against or [])


@app.command(context_settings=OVERRIDE_CONTEXT, rich_help_panel="Look")
def play(
    context: typer.Context,
    recipe: Annotated[Path, typer.Argument(help="Recipe (plays its untuned base), or folder of a run.")],
    human: Annotated[list[str] | None, typer.Option(help="Agent that you play; repeatable.")] = None,
    checkpoint: Annotated[str, typer.Option(help="Checkpoint of a run: base, last, best or step_000050.")] = "last",
    task: Annotated[int, typer.Option(help="Index of the task in the test split.")] = 0,
    fork_from: Annotated[
        str, typer.Option(help="Continue a recorded episode of a run from an action: STEP:EPISODE@ACTION.")
    ] = "",
) -> None:
    """Play one episode live, agent by agent.

    The command shows the input of each agent. You can play any agent yourself.
    """
    from marft.cli import handlers, options

    handlers.play(recipe, options.parse_overrides(context, recipe), human or [], checkpoint, task, fork_from)


@app.command(rich_help_panel="Ship")
def export(
    run: Annotated[Path, typer.Argument(help="Folder of a run.")],
    checkpoint: Annotated[str, typer.Option(help="Checkpoint: best, last, a step number, or step_000050.")] = "best",
    output: Annotated[Path | None, typer.Option(help="Folder to write (default: exports/<run>).")] = None,
    merged: Annotated[bool, typer.Option("--merged", help="Also write whole models with merged adapters.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing export.")] = False,
    team_file: Annotated[Path | None, typer.Option(help="Team file: export the agents as this team.")] = None,
) -> None:
    """Export a trained team as a folder.

    The folder holds adapters, a manifest, a recipe and a model card. peft, vLLM, marft eval and marft serve can load
    it.
    """
    from marft.cli import handlers as team_export

    team_export.export(run, checkpoint, output, merged=merged, overwrite=overwrite, team_file=team_file)


@app.command(rich_help_panel="Ship")
def push(
    export: Annotated[Path, typer.Argument(help="Folder of an export.")],
    repo_id: Annotated[str, typer.Argument(help="Hugging Face repository, such as name/model; created if missing.")],
    private: Annotated[bool, typer.Option("--private", help="Create a private repository.")] = False,
    token: Annotated[
        str, typer.Option(envvar="HF_TOKEN", help="Hugging Face token (default: the token of hf auth login).")
    ] = "",
) -> None:
    """Upload an export to the Hugging Face hub.

    The command uploads only the files that the manifest lists, and verifies them first.
    """
    from marft.cli import handlers as team_export

    team_export.push(export, repo_id, private=private, token=token)
