"""Command ``marft flow``: grow a network from runs, tune the network with a team, and plot the network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from marft.cli.console import wide_console
from marft.cli.handlers import progress_bar, silence_transformers
from marft.common.errors import UserError
from marft.common.log import receive_logs
from marft.common.texts import single_line, truncate
from marft.config import load_recipe
from marft.config.secrets import redacted
from marft.config.settings import did_you_mean
from marft.runs.run_folder import RunFolder
from marft_lab.flows.growth import GrowthOptions, grow_network
from marft_lab.flows.network import Change, FlowNetwork, read_network, write_network

if TYPE_CHECKING:
    from marft.agents.game import Attempt
    from marft.common.types import Episode

MAX_EXAMPLE_CHARS = 60  # maximum characters of an example in the table
console = wide_console()


@dataclass(frozen=True, slots=True)
class TuningOptions:
    """Options of ``marft flow tune``.

    Args:
        steps: optimizer steps of path learning; 0 disables path learning.
        batch: episodes per step.
        critic: policy that proposes instructions; "" disables rewording.
        rounds: rounds of rewording.
        tolerance: held-out success rate that all skips together may cost; below 0 disables skipping.
    """

    steps: int
    batch: int
    critic: str
    rounds: int
    tolerance: float


def check_free(to: Path, overwrite: bool) -> None:
    """Check that the output file may be written.

    Raises:
        UserError: ``to`` is a folder, or exists without ``overwrite``.
    """
    if to.is_dir():
        raise UserError(f"{to} is a folder; name a file in it (--output)")
    if to.exists() and not overwrite:
        raise UserError(f"{to} is there already; name another file (--output), or let it go: --overwrite")


def grow(runs: Sequence[Path], to: Path, growth: GrowthOptions, on: Path | None) -> None:
    """Grow a network from recorded episodes and write the network to a file.

    Args:
        runs: folders of the runs.
        to: output file.
        growth: options of the growth.
        on: file of a base network to extend; None starts empty.

    Raises:
        UserError: the runs have no recorded episodes, or ``growth.apart`` names an unknown role.
    """
    from marft.runs.episode_files import read_episodes

    files = [file for run in runs for file in RunFolder.open(run).recorded_steps()]
    if not files:
        raise UserError("the runs have recorded no episodes; train with training.record_episodes_every")
    before = read_network(on) if on else None
    roles = {node.role for node in before.nodes} if before else set[str]()
    for run in runs if growth.excluded_roles else ():
        roles |= {agent.role for agent in RunFolder.open(run).settings().agents}
    for role in sorted(growth.excluded_roles - roles):
        raise UserError(f"--exclude-role: no agent of these runs is called {role!r}{did_you_mean(role, roles)}")
    network = grow_network((episode for file in files for episode in read_episodes(file)), growth, before)
    write_network(to, network)
    _print_summary(network, to)


def show(path: Path, plot_path: Path | None) -> None:
    """Print a network; plot the network too if ``plot_path`` is given."""
    network = read_network(path)
    console.print(_build_node_table(network))
    for change in network.lineage:
        console.print(_format_change(change), soft_wrap=True)
    if plot_path:
        from marft_lab.flows.plots import plot_network as drawn

        plot_path.parent.mkdir(parents=True, exist_ok=True)
        drawn(network).savefig(plot_path, metadata={"Date": None} if plot_path.suffix == ".svg" else None)
        console.print(f"see {plot_path}", soft_wrap=True)


def tune(recipe: Path, overrides: Sequence[str], to: Path, options: TuningOptions) -> None:
    """Tune the network of a recipe, and write the network after each part.

    Args:
        recipe: recipe with ``team.organization = 'flow'``.
        overrides: command-line overrides of recipe keys.
        to: output file.
        options: options of the command.

    Raises:
        UserError: the team does not sample network paths in this process, or the critic is not a policy of the recipe.
    """
    run = load_recipe(recipe, overrides)
    silence_transformers()
    from marft.envs.tasks import read_tasks
    from marft.rollout.local_runner import LocalRolloutRunner
    from marft_lab.flows.critics import PolicyCritic
    from marft_lab.flows.organization import Flow
    from marft_lab.flows.tuning import (
        FlowEvaluator,
        PathLearningOptions,
        RewordingOptions,
        learn_paths,
        reword_nodes,
        skip_nodes,
    )

    flow = run.team
    if not isinstance(flow, Flow) or flow.router:
        raise UserError("marft flow tune: give a recipe whose team.organization is 'flow', without a router")
    if run.rollout.workers:
        raise UserError("marft flow tune plays in its own process; set rollout.workers to 0")
    if options.critic and options.critic not in run.policies:
        raise UserError(f"--critic {options.critic!r} is none of the policies {', '.join(run.policies)}")
    train, held_out = read_tasks(run.environment, "train"), read_tasks(run.environment, "validation")
    network = flow.flow
    with LocalRolloutRunner(run) as rollouts:
        rollouts.publish(0)

        def play(organization: Flow, attempts: Sequence[Attempt]) -> list[Episode]:
            return rollouts.play(attempts, replace(rollouts.team, organization=organization))

        def save_change(change: Change, network: FlowNetwork) -> None:
            console.print(_format_change(change), soft_wrap=True)
            write_network(to, network)

        board = FlowEvaluator(flow, play, train, held_out[: run.evaluation.validation_tasks], run.seed)
        with progress_bar("learning paths") as advance:
            advance(options.steps)
            learning = PathLearningOptions(options.steps, options.batch)
            network = learn_paths(board, network, learning, lambda *_: advance())
        write_network(to, network)
        if options.critic:
            critic = PolicyCritic(rollouts, options.critic)
            with receive_logs(redacted(lambda text: console.print(f"  {text}", soft_wrap=True))):
                network = reword_nodes(board, network, critic, RewordingOptions(options.rounds), save_change)
            if critic.empty_replies:
                summary = f"{critic.empty_replies} of {critic.request_count} replies of the critic"
                console.print(f"  {summary} held no <instructions>: give it a model that can", soft_wrap=True)
            write_network(to, network)
        if options.tolerance >= 0:
            network = skip_nodes(board, network, options.tolerance, save_change)
            write_network(to, network)
    _print_summary(network, to)


def _format_change(change: Change) -> Text:
    action = "reworded" if change.kind == "instructions" else "skipped"
    scope = f" for {change.context}" if change.context else ""
    verdict = action if change.kept else f"not {action}"
    interval = f"at least {change.low:+.1%}" if change.kind == "skip" else f"{change.low:+.1%} to {change.high:+.1%}"
    gained = f"{change.gain:+.1%} held-out success ({interval}, {change.tasks} tasks)"
    return Text(single_line(f"  {change.node}: {verdict}{scope}: {gained}"))


def _print_summary(network: FlowNetwork, to: Path) -> None:
    kinds = "1 kind" if len(network.contexts) == 1 else f"{len(network.contexts)} kinds"
    console.print(
        f"{len(network.nodes)} nodes, {len(network.edges)} edges, {kinds} of tasks. See {to}, "
        f"or:  marft flow show {to}",
        soft_wrap=True,
    )


def _build_node_table(network: FlowNetwork) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in ("node", "role", "actions", "for example"):
        table.add_column(heading, justify="right" if heading == "actions" else "left")
    for node in network.nodes:
        example = Text(truncate(single_line(node.example), MAX_EXAMPLE_CHARS), style="dim")
        table.add_row(Text(single_line(node.name)), Text(single_line(node.role)), str(node.count), example)
    return table
