"""Playable attacks of a suite, and the team with canary instructions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from marft.agents.game import Attempt
from marft.agents.team import Team
from marft.config.run import RunSettings
from marft.config.settings import did_you_mean
from marft_lab.safety.metrics import NO_ATTACK
from marft_lab.safety.suite import CONTROL_NAME, Suite


@dataclass(frozen=True, slots=True)
class AttackCase:
    """Suite tasks under an attack, or without an attack."""

    attack: str = NO_ATTACK

    @property
    def name(self) -> str:
        """Name of the arm."""
        return self.attack or CONTROL_NAME

    def attempts(self, suite: Suite, attempts: Sequence[Attempt]) -> list[Attempt]:
        """Return the same attempts with the same seeds, and with the attack's injection in each."""
        if not self.attack:
            return [*attempts]
        return [
            replace(attempt, injections=(suite.build_injection(self.attack, attempt.task),)) for attempt in attempts
        ]


def build_attack_cases(suite: Suite, run: RunSettings, team: Team, note: Callable[[str], None]) -> list[AttackCase]:
    """Return the playable arms: without an attack, and under each attack that can reach the team.

    Args:
        suite: suite.
        run: settings of the run.
        team: team.
        note: callback for skipped attacks, with the reason.

    Raises:
        ValueError: an attack names an unknown tool or teammate.
    """
    cases = [AttackCase()]
    for name in suite.settings.attacks:
        reason = _unreachable_reason(suite, name, run, team)
        if reason:
            note(f"attack {name!r} is not played: {reason}")
        else:
            cases.append(AttackCase(name))
    return cases


def _unreachable_reason(suite: Suite, name: str, run: RunSettings, team: Team) -> str:
    attack = suite.settings.attacks[name]
    tools = {tool.name for agent in team.agents for tool in agent.profile.tools}
    targets = {"tool": tools, "message": {agent.role for agent in team.agents}, "task": set[str]()}[attack.inject_into]
    if targets and attack.target and attack.target not in targets:
        raise ValueError(
            f"attacks.{name}.target: no {attack.inject_into} is of {attack.target!r}"
            f"{did_you_mean(attack.target, targets)}"
        )
    if attack.inject_into == "tool" and not tools:
        return "no agent has a tool"
    if attack.inject_into == "message" and len(team.agents) < 2:
        return "the team is one agent, whom nobody tells anything"
    if attack.inject_into != "tool" and run.team.writes_prompts:
        return "the team is a program, which asks its agents in words of its own"
    return ""


def with_canaries(suite: Suite, team: Team) -> Team:
    """Return the team with a canary appended to each agent's instructions, if the suite has a canary."""
    if not suite.settings.canary:
        return team
    agents = [
        replace(
            agent,
            profile=replace(
                agent.profile,
                instructions="\n\n".join(
                    filter(None, (agent.profile.instructions, suite.canary_instruction(agent.role)))
                ),
            ),
        )
        for agent in team.agents
    ]
    return replace(team, agents=tuple(agents))
