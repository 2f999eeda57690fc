"""What of a suite a team can be asked: attacks that can reach it, and the team that has something to keep."""

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
    """The suite's tasks under one attack, or under none."""

    attack: str = CONTROL

    @property
    def name(self) -> str:
        return self.attack or UNATTACKED

    def attempts(self, suite: Suite, attempts: Sequence[Attempt]) -> list[Attempt]:
        """The same attempts, under the same seeds, with what the attack plants in each."""
        if not self.attack:
            return [*attempts]
        return [replace(attempt, plants=(suite.plant(self.attack, attempt.task),)) for attempt in attempts]


def arms_of(suite: Suite, run: RunSettings, team: Team, note: Callable[[str], None]) -> list[Arm]:
    """The arms that are played: without an attack, and under each that can reach the team.

    Args:
        note: told of those that cannot, and why.

    Raises:
        ValueError: an attack names a tool or a teammate that there is not.
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
    """The team, each agent with its canary behind its instructions, where the suite has one."""
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
