"""``marft``: train, evaluate, compare and report. Heavy imports wait until a command runs."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from marft import __version__

app = typer.Typer(
    name="marft",
    help="Multi-agent reinforcement fine-tuning: tune the language models of a team of agents together.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    epilog="--debug, with any command, prints the traceback of an error.",
)

OVERRIDES = {"allow_extra_args": True, "ignore_unknown_options": True}


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"marft {__version__}")
        raise typer.Exit


@app.callback()
def _every_command(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


Traces = Annotated[
    list[Path] | None, typer.Option("--from", help="Conversations or spans, JSON lines; repeat the option.")
]
Roles = Annotated[
    list[str] | None, typer.Option(help='Whose turns those of a name are: "name in the traces=role"; repeat it.')
]


@app.command(context_settings=OVERRIDES)
def train(
    context: typer.Context,
    recipe: Annotated[Path, typer.Argument(help="A TOML file, a bundled recipe's name, or with --resume a run.")],
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a run from its newest checkpoint.")] = False,
    start_from: Annotated[
        Path | None, typer.Option("--from", help="Start a new run with the weights of this checkpoint folder.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check and print the resolved recipe; run nothing.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Take the place of a run of that name.")] = False,
    samples: Annotated[
        int | None, typer.Option(min=0, help="Show one episode of every so many steps; 0: none.")
    ] = None,
) -> None:
    """Train the team of a recipe.

    Any setting can be changed: --algorithm.level token --training.steps 50
    """
    from marft.cli import commands, options

    changes = options.overrides_of(context, recipe)
    if samples is not None:
        changes = [*changes, "--training.show_samples_every", str(samples)]
    commands.train(recipe, changes, resume=resume, start_from=start_from, dry_run=dry_run, overwrite=overwrite)


@app.command(context_settings=OVERRIDES)
def sft(
    context: typer.Context,
    recipe: Annotated[Path, typer.Argument(help="A TOML file, a bundled recipe's name, or with --resume a run.")],
    traces: Traces = None,
    role: Roles = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a run from its newest checkpoint.")] = False,
    start_from: Annotated[
        Path | None, typer.Option(help="Start with the weights of this checkpoint folder, not the base's.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Take the place of a run of that name.")] = False,
) -> None:
    """Warm start a team from traces of other programs.

    By imitation, each role of its own turns alone. Settings can be changed: --sft.epochs 2
    """
    from marft.cli import options
    from marft.cli import traces as of_traces

    changes = options.overrides_of(context, recipe)
    of_traces.sft(recipe, changes, traces or [], role or [], resume=resume, start_from=start_from, overwrite=overwrite)


@app.command(context_settings=OVERRIDES)
def score(
    context: typer.Context,
    recipe: Annotated[Path, typer.Argument(help="A TOML file, a bundled recipe's name, or the folder of a run.")],
    traces: Traces = None,
    role: Roles = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Take the place of a run of that name.")] = False,
) -> None:
    """Grade traces of other programs.

    By the environment and the reward terms of a recipe: a table by term and agent. No model is loaded.
    """
    from marft.cli import options
    from marft.cli import traces as of_traces

    of_traces.score(recipe, options.overrides_of(context, recipe), traces or [], role or [], overwrite)


@app.command("eval", context_settings=OVERRIDES)
def evaluate(
    context: typer.Context,
    run: Annotated[Path, typer.Argument(help="The folder of a run; an export; or a recipe: then only the base.")],
    checkpoint: Annotated[
        str, typer.Option(help="base, last, best or step_000050; several with commas.")
    ] = "base,last",
    mode: Annotated[str, typer.Option(help="greedy, sampled, or both with a comma.")] = "",
    tasks: Annotated[int, typer.Option(min=0, help="How many held-out tasks; 0: as the recipe says.")] = 0,
    shuffle_messages: Annotated[
        bool, typer.Option("--shuffle-messages", help="Also with every agent seeing messages of another task.")
    ] = False,
    trust_code: Annotated[
        bool, typer.Option("--trust-code", help="Of an export: run the code that it brings.")
    ] = False,
) -> None:
    """Evaluate checkpoints and their untuned base.

    On held-out tasks, with 95 % intervals. Settings can be changed as in train.
    """
    from marft.cli import commands, options

    if (run / "team.json").is_file():
        from marft.cli import shipping

        shipping.evaluate(run, options.overrides_of(context, run), mode, tasks, shuffle_messages, trust_code)
        return
    names = [name.strip() for name in checkpoint.split(",")]
    commands.evaluate(run, options.overrides_of(context, run), names, mode, tasks, shuffle_messages)


@app.command(context_settings=OVERRIDES)
def play(
    context: typer.Context,
    recipe: Annotated[Path, typer.Argument(help="A recipe, then with its untuned base; or the folder of a run.")],
    human: Annotated[list[str] | None, typer.Option(help="An agent that you play; repeat the option.")] = None,
    checkpoint: Annotated[str, typer.Option(help="Of a run: base, last, best or step_000050.")] = "last",
    task: Annotated[int, typer.Option(help="Which task of the test split.")] = 0,
) -> None:
    """Play one episode live, agent by agent.

    With what each of them saw; take any seat yourself.
    """
    from marft.cli import commands, options

    commands.play(recipe, options.overrides_of(context, recipe), human or [], checkpoint, task)


@app.command()
def compare(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs that were evaluated.")],
    fail_if: Annotated[
        list[str] | None, typer.Option(help='Of two runs: exit with 1 if "accuracy < -1%"; repeat the option.')
    ] = None,
    by: Annotated[str, typer.Option(help="Of two runs: also by cohort, tasks with the same value of this field.")] = "",
    junit: Annotated[Path | None, typer.Option(help="Of two runs: write the gates to this file, for CI.")] = None,
    markdown: Annotated[Path | None, typer.Option(help="Of two runs: write gates and changes to this file.")] = None,
) -> None:
    """Show evaluated runs side by side.

    Each against its own base on the same tasks; with gates or cohorts, the second against the first.
    """
    from marft.cli import commands

    if not commands.compare(runs, fail_if or [], by, junit, markdown):
        raise typer.Exit(1)


@app.command()
def report(
    run: Annotated[Path, typer.Argument(help="The folder of a run.")],
    against: Annotated[list[Path] | None, typer.Option(help="Other runs to show beside it; repeat the option.")] = None,
) -> None:
    """Write the report.html of a run.

    Training curves, before and after, sample episodes.
    """
    from marft.cli import commands

    commands.report(run, against or [])


@app.command()
def replay(
    run: Annotated[Path, typer.Argument(help="The folder of a run.")],
    algorithms: Annotated[str, typer.Option(help="Presets, with commas; the run's own name means its own settings.")],
    step: Annotated[int, typer.Option(min=0, help="A recorded training step; 0: the last one.")] = 0,
    episodes: Annotated[int, typer.Option(min=0, help="How many episodes to show: those most disagreed about.")] = 4,
) -> None:
    """Credit recorded episodes by several algorithms.

    Side by side: which would push what, and how far.
    """
    from marft.cli import commands

    commands.replay(run, algorithms.split(","), step, episodes)


@app.command()
def graph(
    run: Annotated[Path, typer.Argument(help="The folder of a run.")],
    episode: Annotated[str, typer.Argument(help="Its index in the step (0, 1, …), or task#sample.")] = "0",
    step: Annotated[int, typer.Option(min=0, help="A recorded training step; 0: the last one.")] = 0,
) -> None:
    """Draw one recorded episode.

    Who acted when, and who depended on whom.
    """
    from marft.cli import commands

    commands.graph(run, episode, step)


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
    """Read recorded episodes: what agents saw, said and earned."""
    from marft.cli.show import show as run_show

    orders = [name for name, wanted in (("worst", worst), ("best", best), ("failed", failed)) if wanted]
    if follow:
        from marft.cli.following import follow as run_follow

        run_follow(run, step, agent, task, orders, count)
        return
    run_show(run, step, agent, task, orders, count)


@app.command()
def export(
    run: Annotated[Path, typer.Argument(help="The folder of a run.")],
    checkpoint: Annotated[str, typer.Option(help="best, last, a step, or step_000050.")] = "best",
    output: Annotated[Path | None, typer.Option(help="The folder to write; exports/<run> where none is named.")] = None,
    merged: Annotated[bool, typer.Option("--merged", help="Also whole weights, with the adapters in them.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Take the place of another export.")] = False,
) -> None:
    """Write a trained team as a folder that others can use.

    Adapters, a manifest, a recipe and a model card; peft, vLLM, marft eval and marft serve read it.
    """
    from marft.cli import shipping

    shipping.export(run, checkpoint, output, merged=merged, force=force)


@app.command()
def push(
    export: Annotated[Path, typer.Argument(help="The folder of an export.")],
    repo_id: Annotated[str, typer.Argument(help="name/model on the Hugging Face hub; made where it is not there.")],
    private: Annotated[bool, typer.Option("--private", help="Where it is made: for you alone.")] = False,
    token: Annotated[str, typer.Option(envvar="HF_TOKEN", help="Of the hub; else that of hf auth login.")] = "",
) -> None:
    """Upload an export to the Hugging Face hub.

    Its listed files, checked before; nothing else of the folder.
    """
    from marft.cli import shipping

    shipping.push(export, repo_id, private=private, token=token)


@app.command(context_settings=OVERRIDES)
def serve(
    context: typer.Context,
    team: Annotated[Path, typer.Argument(help="The folder of a run, or an export.")],
    checkpoint: Annotated[str, typer.Option(help="Of a run: best, last, a step, or step_000050.")] = "best",
    host: Annotated[str, typer.Option(help="Where to listen.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free.")] = 8000,
    token: Annotated[str, typer.Option(envvar="MARFT_TOKEN", help="What requests must bring.")] = "",
    without_token: Annotated[bool, typer.Option("--without-token", help="Let anybody ask who reaches it.")] = False,
    concurrency: Annotated[int, typer.Option(min=1, help="Requests that are answered at a time.")] = 32,
    queue: Annotated[int, typer.Option(min=0, help="Requests that wait for that; more are refused.")] = 256,
    timeout: Annotated[float, typer.Option(min=0.001, help="Seconds for one answer.")] = 600.0,
    grace: Annotated[int, typer.Option(min=0, help="Seconds for what was begun, once it is to end.")] = 30,
    record: Annotated[Path | None, typer.Option(help="A folder for what is asked and answered.")] = None,
    mcp: Annotated[str, typer.Option(help="Also as an MCP tool: http (at /mcp), or stdio and nothing else.")] = "",
    a2a: Annotated[bool, typer.Option("--a2a", help="Also as an A2A agent (at /a2a).")] = False,
    address: Annotated[str, typer.Option(help="By which others reach it, for the agent's card; else as asked.")] = "",
    trust_code: Annotated[
        bool, typer.Option("--trust-code", help="Of an export: run the code that it brings.")
    ] = False,
) -> None:
    """Answer requests with a trained team, as OpenAI's API does.

    One model for each role, and one for the whole team. SIGTERM ends it when what was begun is answered.
    """
    from marft.cli import options, shipping

    shipping.serve(
        team, options.overrides_of(context, team), checkpoint, (host, port, token, without_token),
        (concurrency, queue, timeout), grace=grace, record=record, also=(mcp, a2a, address),
        trust_code=trust_code,
    )  # fmt: skip


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(help="Where the files go; made where it is not there.")] = Path("my_team"),
    data: Annotated[
        str | None, typer.Option(help="Your table: CSV, JSONL, Parquet; '' for a few invented rows.")
    ] = None,
    question: Annotated[str, typer.Option(help="Its column with the questions.")] = "",
    answer: Annotated[str | None, typer.Option(help="Its column with the right answers; '' for none.")] = None,
    model: Annotated[str, typer.Option(help="tiny (bundled), a folder, or a Hugging Face id.")] = "",
    team: Annotated[str, typer.Option(help="reasoner-actor, writer-critic, or single.")] = "",
    yes: Annotated[bool, typer.Option("--yes", help="Ask nothing; take what is not named by default.")] = False,
) -> None:
    """Begin a team of your own, in a folder that trains at once.

    A recipe, a reward function with its test, some data. It asks on a terminal alone, and overwrites nothing.
    """
    from marft.cli.init import init as run_init

    run_init(folder, data, question, answer, model, team, yes)


@app.command()
def algorithms(
    name: Annotated[str, typer.Argument(help="A preset, to see every setting of it.")] = "",
) -> None:
    """List the algorithms, or print all settings of one."""
    from marft.cli import listings

    listings.algorithms(name)


@app.command()
def recipes(
    name: Annotated[str, typer.Argument(help="A bundled recipe, to print it as it is.")] = "",
) -> None:
    """List the bundled recipes, or print one.

    Each can be trained by its name; one of your own may begin with marft recipes demo > mine.toml
    """
    from marft.cli import listings

    listings.recipes(name)


@app.command()
def environments(
    name: Annotated[str, typer.Argument(help="An environment, to see its keys and what they take.")] = "",
) -> None:
    """List the environments, or the keys of one."""
    from marft.cli import listings

    listings.environments(name)


def main() -> None:
    """The console entry point: errors of the user's making are one message, not a traceback.

    Parts that a recipe names by import path may lie in the folder that the command is run from.
    """
    from marft.cli.errors import DEBUG, friendly
    from marft.cli.interrupts import heeded, terminated

    signal.signal(signal.SIGTERM, terminated)
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    words = [word for word in sys.argv[1:] if word != DEBUG]
    with heeded(), friendly(debug=DEBUG in sys.argv):
        app(words, prog_name="marft")


if __name__ == "__main__":
    main()
