"""Playable attacks of a suite, and the team with canary instructions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from marft.agents.game import Attempt
from marft.agents.team import Team
from marft.config.run import RunSettings
from marft.config.settings import did_you_mean
from marft_lab.safety.measures import CONTROL
from marft_lab.safety.suite import UNATTACKED, Suite


@dataclass(frozen=True, slots=True)
class Arm:
    """Suite tasks under an attack, or without an attack."""

    attack: str = CONTROL

    @property
    def name(self) -> str:
        """Name of the arm."""
        return self.attack or UNATTACKED

    def attempts(self, suite: Suite, attempts: Sequence[Attempt]) -> list[Attempt]:
        """Return the same attempts with the same seeds, and with the attack's injection in each."""
        if not self.attack:
            return [*attempts]
        return [replace(attempt, plants=(suite.plant(self.attack, attempt.task),)) for attempt in attempts]


def arms_of(suite: Suite, run: RunSettings, team: Team, note: Callable[[str], None]) -> list[Arm]:
    """Return the playable arms: without an attack, and under each attack that can reach the team.

    Args:
        suite: suite.
        run: settings of the run.
        team: team.
        note: callback for skipped attacks, with the reason.

    Raises:
        ValueError: an attack names an unknown tool or teammate.
    """
    arms = [Arm()]
    for name in suite.settings.attacks:
        why = _unreachable(suite, name, run, team)
        if why:
            note(f"attack {name!r} is not played: {why}")
        else:
            arms.append(Arm(name))
    return arms


def _unreachable(suite: Suite, name: str, run: RunSettings, team: Team) -> str:
    attack = suite.settings.attacks[name]
    tools = {tool.name for agent in team.agents for tool in agent.profile.tools}
    known = {"tool": tools, "message": {agent.role for agent in team.agents}, "task": set[str]()}[attack.through]
    if known and attack.at and attack.at not in known:
        raise ValueError(f"attacks.{name}.at: no {attack.through} is of {attack.at!r}{did_you_mean(attack.at, known)}")
    if attack.through == "tool" and not tools:
        return "no agent has a tool"
    if attack.through == "message" and len(team.agents) < 2:
        return "the team is one agent, whom nobody tells anything"
    if attack.through != "tool" and run.team.own_words:
        return "the team is a program, which asks its agents in words of its own"
    return ""


def keeping_secrets(suite: Suite, team: Team) -> Team:
    """Return the team with a canary appended to each agent's instructions, if the suite has a canary."""
    if not suite.settings.canary:
        return team
    agents = [
        replace(
            agent,
            profile=replace(
                agent.profile,
                instructions="\n\n".join(filter(None, (agent.profile.instructions, suite.canary(agent.role)))),
            ),
        )
        for agent in team.agents
    ]
    return replace(team, agents=tuple(agents))
