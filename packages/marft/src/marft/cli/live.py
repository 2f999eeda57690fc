"""``marft play``: one episode in the terminal, agent by agent; a person may play any agent."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.panel import Panel
from rich.prompt import IntPrompt, Prompt
from rich.text import Text

from marft.agents.game import Attempt, Game
from marft.agents.play import play
from marft.agents.rendering import Message
from marft.cli.outcomes import outcome_of
from marft.common.errors import RunError
from marft.common.texts import one_line, visible
from marft.common.types import Action, Episode, Observation
from marft.config import RunSettings
from marft.config.settings import did_you_mean
from marft.envs.tasks import tasks_of
from marft.evaluation.again import Again
from marft.evaluation.session import find_checkpoint
from marft.inference.human import HumanSampler
from marft.rollout.rollouts import LocalRollouts
from marft.runs.checkpoints import load_policies
from marft.runs.folder import RunFolder
from marft.runs.stated import told_at


class Screen:
    """Terminal view of an episode, with input for human players.

    If people play (``people``, their roles), the screen shows only what their agents would see. Observations for other
    agents are hidden, and messages arrive as the game delivers them.
    """

    def __init__(self, console: Console) -> None:
        self.console = console
        self.people: Collection[str] = ()
        self.recorded: Collection[str] = ()  # ids of replayed actions

    def observed(self, observation: Observation) -> None:
        """Show an observation, without private views of non-human agents if people play."""
        mine = {role: view for role, view in observation.views.items() if role in self.people}
        seen = replace(observation, views=mine) if self.people else observation
        if seen.whole:
            self._show(seen.whole, "the environment shows")

    def seated(self, role: str, instructions: str) -> None:
        """Show the instructions for a role that a person plays."""
        self._show(instructions, f"you are {role}")

    def asked(self, role: str, read: Sequence[Message]) -> None:
        """Show the messages that an agent reads at the start of its turn."""
        for message in read if role in self.people or not self.people else ():
            self.console.print(Text(visible(f"  {role} reads from {message.role}: {message.text}"), style="dim"))

    def acted(self, action: Action) -> None:
        """Show an action: its text and tool calls, or only a short note for hidden agents."""
        how = "recorded" if action.id in self.recorded else f"{action.ended - action.started:.1f} s"
        if self.people and action.agent not in self.people:
            self.console.print(Text(visible(f"  {action.agent} acts, {how}"), style="dim"))
            return
        for call in action.calls:
            style = "red" if call.error else "dim"
            used = f"  {action.agent} uses {call.name} {call.arguments} → {call.output}"
            self.console.print(Text(visible(used), style=style))
        self._show(action.text, f"{action.id}, {how}")

    def ask(self, role: str, options: Sequence[str]) -> str:
        """Return the person's text or chosen option.

        Raises:
            RunError: the input has ended.
        """
        try:
            return self._ask(role, options)
        except EOFError:
            raise RunError(
                f"the input ended when it was {role}'s turn, so the episode was not played to its end"
            ) from None

    def _ask(self, role: str, options: Sequence[str]) -> str:
        if not options:
            return Prompt.ask(Text(visible(f"you are {role}"), style="bold"), console=self.console)
        for number, option in enumerate(options, 1):
            self.console.print(Text(visible(f"  {number}  {option}")))
        numbers = [str(number) for number in range(1, len(options) + 1)]
        question = Text.assemble((visible(f"you are {role}"), "bold"), ": which one?")
        chosen = IntPrompt.ask(question, console=self.console, choices=numbers)
        return options[chosen - 1]

    def _show(self, text: str, title: str) -> None:
        heading = Text(one_line(title))
        self.console.print(Panel(Text(visible(text)), title=heading, title_align="left", expand=False))

    def ended(self, episode: Episode) -> None:
        """Show the outcome."""
        for line in outcome_of(episode):
            self.console.print(line)


def play_live(
    run: RunSettings, folder: RunFolder | None, checkpoint: str, task: int, humans: Sequence[str], screen: Screen,
    again: str = "",
) -> Episode:  # fmt: skip
    """Play one episode from the test split, or continue a recorded one.

    Args:
        checkpoint: ``base`` or a checkpoint of the run.
        task: index of the task in the split.
        humans: roles that people play.
        screen: view and input.
        again: action of a recorded episode from which to play again; "" for none.

    Raises:
        ValueError: the task, role or checkpoint does not exist.
    """
    roles = [agent.role for agent in run.agents]
    for role in humans:
        if role not in roles:
            raise ValueError(f"--human: no agent is called {role!r}{did_you_mean(role, roles)}")
    if again and folder is None:
        raise ValueError("--again: a recipe has no recorded episodes; give the folder of a run")
    path: Path | None = find_checkpoint(run, folder, checkpoint)
    attempt = Again.of(again).attempt(run, folder) if again and folder else None
    with LocalRollouts(run) as rollouts:
        attempt = attempt or _of_test_split(run, task)
        screen.recorded = attempt.replay.actions if attempt.replay else ()
        if path is not None:
            load_policies(path, rollouts.models, dict.fromkeys(run.trained_policies))
            rollouts.instruct(told_at(path))
        rollouts.publish(0)
        screen.people = humans
        for agent in rollouts.team.agents:
            if agent.role in humans and agent.profile.instructions:
                screen.seated(agent.role, agent.profile.instructions)
        person = HumanSampler(rollouts.game.renderer, screen.ask, rollouts.decode)
        seats = rollouts.engine.seating(dict.fromkeys(humans, person))
        game = replace(rollouts.game, engine=seats, watcher=screen)
        episode = rollouts.wait_for(_played(rollouts, game, attempt))
    screen.ended(episode)
    return episode


def _of_test_split(run: RunSettings, task: int) -> Attempt:
    tasks = tasks_of(run.environment, "test")
    if not 0 <= task < len(tasks):
        raise ValueError(f"--task: the test split has tasks 0 to {len(tasks) - 1}, not {task}")
    return Attempt(tasks[task], "play")


async def _played(rollouts: LocalRollouts, game: Game, attempt: Attempt) -> Episode:
    """Return an episode with the rewards from the recipe's terms."""
    return await rollouts.compose(await play(game, attempt))
