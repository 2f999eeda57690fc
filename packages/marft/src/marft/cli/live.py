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
from marft.cli.show import render_outcome
from marft.common.errors import RunError, UserError
from marft.common.texts import sanitize, single_line
from marft.common.types import Action, Episode, Observation
from marft.config import RunSettings
from marft.config.interfaces.channel import Message
from marft.config.settings import did_you_mean
from marft.envs.tasks import read_tasks
from marft.evaluation.replay_point import ReplayPoint
from marft.evaluation.session import find_checkpoint
from marft.inference.remote import HumanSampler
from marft.rollout.local_runner import LocalRolloutRunner
from marft.runs.run_folder import RunFolder


class EpisodeScreen:
    """Terminal view of an episode, with input for human players.

    If people play (``human_roles``, their roles), the screen shows only what their agents would see. Observations for
    other agents are hidden, and messages arrive as the game delivers them.
    """

    def __init__(self, console: Console) -> None:
        self.console = console
        self.human_roles: Collection[str] = ()
        self.replayed_ids: Collection[str] = ()  # ids of replayed actions

    def on_observation(self, observation: Observation) -> None:
        """Show an observation, without private views of non-human agents if people play."""
        human_views = {role: view for role, view in observation.views.items() if role in self.human_roles}
        seen = replace(observation, views=human_views) if self.human_roles else observation
        if seen.full_text:
            self._print_panel(seen.full_text, "the environment shows")

    def show_instructions(self, role: str, instructions: str) -> None:
        """Show the instructions for a role that a person plays."""
        self._print_panel(instructions, f"you are {role}")

    def on_request(self, role: str, messages: Sequence[Message]) -> None:
        """Show the messages that an agent reads at the start of its turn."""
        for message in messages if role in self.human_roles or not self.human_roles else ():
            self.console.print(Text(sanitize(f"  {role} reads from {message.role}: {message.text}"), style="dim"))

    def on_action(self, action: Action) -> None:
        """Show an action: its text and tool calls, or only a short note for hidden agents."""
        duration = "recorded" if action.id in self.replayed_ids else f"{action.ended - action.started:.1f} s"
        if self.human_roles and action.agent not in self.human_roles:
            self.console.print(Text(sanitize(f"  {action.agent} acts, {duration}"), style="dim"))
            return
        for call in action.calls:
            style = "red" if call.error else "dim"
            tool_line = f"  {action.agent} uses {call.name} {call.arguments} → {call.output}"
            self.console.print(Text(sanitize(tool_line), style=style))
        self._print_panel(action.text, f"{action.id}, {duration}")

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
            return Prompt.ask(Text(sanitize(f"you are {role}"), style="bold"), console=self.console)
        for number, option in enumerate(options, 1):
            self.console.print(Text(sanitize(f"  {number}  {option}")))
        numbers = [str(number) for number in range(1, len(options) + 1)]
        question = Text.assemble((sanitize(f"you are {role}"), "bold"), ": which one?")
        chosen = IntPrompt.ask(question, console=self.console, choices=numbers)
        return options[chosen - 1]

    def _print_panel(self, text: str, title: str) -> None:
        heading = Text(single_line(title))
        self.console.print(Panel(Text(sanitize(text)), title=heading, title_align="left", expand=False))

    def show_outcome(self, episode: Episode) -> None:
        """Show the outcome."""
        for line in render_outcome(episode):
            self.console.print(line)


def play_live(
    run: RunSettings,
    folder: RunFolder | None,
    checkpoint: str,
    task: int,
    human_roles: Sequence[str],
    screen: EpisodeScreen,
    resume_at: str = "",
) -> Episode:
    """Play one episode from the test split, or continue a recorded one.

    Args:
        checkpoint: ``base`` or a checkpoint of the run.
        task: index of the task in the split.
        human_roles: roles that people play.
        screen: view and input.
        resume_at: action of a recorded episode from which to play again; "" for none.

    Raises:
        UserError: the task, role or checkpoint does not exist.
    """
    roles = [agent.role for agent in run.agents]
    for role in human_roles:
        if role not in roles:
            raise UserError(f"--human: no agent is called {role!r}{did_you_mean(role, roles)}")
    if resume_at and folder is None:
        raise UserError("--fork-from: a recipe has no recorded episodes; give the folder of a run")
    path: Path | None = find_checkpoint(run, folder, checkpoint)
    attempt = ReplayPoint.parse(resume_at).build_attempt(run, folder) if resume_at and folder else None
    with LocalRolloutRunner(run) as rollouts:
        attempt = attempt or _test_attempt(run, task)
        screen.replayed_ids = attempt.replay.actions if attempt.replay else ()
        rollouts.load_checkpoint(path)
        rollouts.publish(0)
        screen.human_roles = human_roles
        for agent in rollouts.team.agents:
            if agent.role in human_roles and agent.profile.instructions:
                screen.show_instructions(agent.role, agent.profile.instructions)
        human_sampler = HumanSampler(rollouts.game.renderer, screen.ask, rollouts.decode)
        engine = rollouts.engine.with_agent_samplers(dict.fromkeys(human_roles, human_sampler))
        game = replace(rollouts.game, engine=engine, callback=screen)
        episode = rollouts.wait_for(_play_and_score(rollouts, game, attempt))
    screen.show_outcome(episode)
    return episode


def _test_attempt(run: RunSettings, task: int) -> Attempt:
    tasks = read_tasks(run.environment, "test")
    if not 0 <= task < len(tasks):
        raise UserError(f"--task: the test split has tasks 0 to {len(tasks) - 1}, not {task}")
    return Attempt(tasks[task], "play")


async def _play_and_score(rollouts: LocalRolloutRunner, game: Game, attempt: Attempt) -> Episode:
    """Return an episode with the rewards from the recipe's terms."""
    return await rollouts.compose(await play(game, attempt))
