"""Command ``marft flow``: grow a network from runs, tune the network with a team, and plot the network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.table import Table
from rich.text import Text

from marft.cli.commands import bar, quieten
from marft.cli.console import wide_console
from marft.common.texts import cut, one_line
from marft.config import load_recipe
from marft.config.settings import did_you_mean
from marft.runs.folder import RunFolder
from marft_lab.flows.growing import Growth, grown
from marft_lab.flows.network import Change, FlowNetwork, read_network, write_network

SHOWN = 60  # maximum characters of an example in the table
console = wide_console()


@dataclass(frozen=True, slots=True)
class Tuning:
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
        ValueError: ``to`` is a folder, or exists without ``overwrite``.
    """
    if to.is_dir():
        raise ValueError(f"{to} is a folder; name a file in it (--to)")
    if to.exists() and not overwrite:
        raise ValueError(f"{to} is there already; name another file (--to), or let it go: --overwrite")


def grow(runs: Sequence[Path], to: Path, growth: Growth, on: Path | None) -> None:
    """Grow a network from recorded episodes and write the network to a file.

    Args:
        runs: folders of the runs.
        to: output file.
        growth: options of the growth.
        on: file of a base network to extend; None starts empty.

    Raises:
        ValueError: the runs have no recorded episodes, or ``growth.apart`` names an unknown role.
    """
    from marft.runs.episodes import read_episodes

    files = [file for run in runs for file in RunFolder.open(run).recorded_steps()]
    if not files:
        raise ValueError("the runs have recorded no episodes; train with training.record_episodes_every")
    before = read_network(on) if on else None
    roles = {node.role for node in before.nodes} if before else set[str]()
    for run in runs if growth.apart else ():
        roles |= {agent.role for agent in RunFolder.open(run).settings().agents}
    for role in sorted(growth.apart - roles):
        raise ValueError(f"--apart: no agent of these runs is called {role!r}{did_you_mean(role, roles)}")
    network = grown((episode for file in files for episode in read_episodes(file)), growth, before)
    write_network(to, network)
    _say(network, to)


def show(path: Path, picture: Path | None) -> None:
    """Print a network; plot the network too if ``picture`` is given."""
    network = read_network(path)
    console.print(_nodes(network))
    for change in network.lineage:
        console.print(_said(change), soft_wrap=True)
    if picture:
        from marft_lab.flows.drawing import picture as drawn

        picture.parent.mkdir(parents=True, exist_ok=True)
        drawn(network).savefig(picture, metadata={"Date": None} if picture.suffix == ".svg" else None)
        console.print(f"see {picture}", soft_wrap=True)


def tune(recipe: Path, overrides: Sequence[str], to: Path, asked: Tuning) -> None:
    """Tune the network of a recipe, and write the network after each part.

    Args:
        recipe: recipe with ``team.organization = 'flow'``.
        overrides: command-line overrides of recipe keys.
        to: output file.
        asked: options of the command.

    Raises:
        ValueError: the team does not sample network paths in this process, or the critic is not a policy of the recipe.
    """
    run = load_recipe(recipe, overrides)
    quieten()
    from marft.envs.tasks import tasks_of
    from marft.rollout.rollouts import LocalRollouts
    from marft_lab.flows.board import Board
    from marft_lab.flows.critics import PolicyCritic
    from marft_lab.flows.improving import Improving, reworded
    from marft_lab.flows.learning import Learning, edges_learned
    from marft_lab.flows.organization import Flow
    from marft_lab.flows.skipping import skipped

    flow = run.team
    if not isinstance(flow, Flow) or flow.router:
        raise ValueError("marft flow tune: give a recipe whose team.organization is 'flow', without a router")
    if run.rollout.processes:
        raise ValueError("marft flow tune plays in its own process; set rollout.processes to 0")
    if asked.critic and asked.critic not in run.policies:
        raise ValueError(f"--critic {asked.critic!r} is none of the policies {', '.join(run.policies)}")
    train, held_out = tasks_of(run.environment, "train"), tasks_of(run.environment, "validation")
    network = flow.flow
    with LocalRollouts(run) as rollouts:
        rollouts.publish(0)

        def play(organization: Flow, attempts: Sequence[object]) -> list[object]:
            return rollouts.play(attempts, replace(rollouts.team, organization=organization))  # type: ignore[arg-type, return-value]

        def tell(change: Change, network: FlowNetwork) -> None:
            console.print(_said(change), soft_wrap=True)
            write_network(to, network)

        board = Board(flow, play, train, held_out[: run.evaluation.validation_tasks], run.seed)  # type: ignore[arg-type]
        with bar("learning paths") as advance:
            advance(asked.steps)
            learning = Learning(asked.steps, asked.batch)
            network = edges_learned(board, network, learning, lambda *_: advance())
        write_network(to, network)
        if asked.critic:
            critic = PolicyCritic(rollouts, asked.critic, note=lambda text: console.print(f"  {text}", soft_wrap=True))
            network = reworded(board, network, critic, Improving(asked.rounds), tell)
            if critic.silent:
                proposals = f"{critic.silent} of {critic.asked} replies of the critic"
                console.print(f"  {proposals} held no <instructions>: give it a model that can", soft_wrap=True)
            write_network(to, network)
        if asked.tolerance >= 0:
            network = skipped(board, network, asked.tolerance, tell)
            write_network(to, network)
    _say(network, to)


def _said(change: Change) -> Text:
    what = "reworded" if change.kind == "instructions" else "skipped"
    where = f" for {change.context}" if change.context else ""
    verdict = what if change.kept else f"not {what}"
    sure = f"at least {change.low:+.1%}" if change.kind == "skip" else f"{change.low:+.1%} to {change.high:+.1%}"
    gained = f"{change.gain:+.1%} held-out success ({sure}, {change.tasks} tasks)"
    return Text(one_line(f"  {change.node}: {verdict}{where}: {gained}"))


def _say(network: FlowNetwork, to: Path) -> None:
    kinds = f"{len(network.contexts)} kind{'s' * (len(network.contexts) != 1)}"
    console.print(
        f"{len(network.nodes)} nodes, {len(network.edges)} edges, {kinds} of tasks. See {to}, "
        f"or:  marft flow show {to}",
        soft_wrap=True,
    )


def _nodes(network: FlowNetwork) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in ("node", "role", "actions", "for example"):
        table.add_column(heading, justify="right" if heading == "actions" else "left")
    for node in network.nodes:
        example = Text(cut(one_line(node.example), SHOWN), style="dim")
        table.add_row(Text(one_line(node.name)), Text(one_line(node.role)), str(node.count), example)
    return table
