"""Team shapes for a first recipe: agents, answering agent and organization."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

BOX_INSTRUCTION = r"put the answer in \boxed{}."


@dataclass(frozen=True, slots=True)
class AgentTemplate:
    """One agent in a team shape."""

    role: str
    instructions: str
    answers: bool = False


@dataclass(frozen=True, slots=True)
class TeamTemplate:
    """Team shape: description, agents and organization."""

    description: str
    agents: Sequence[AgentTemplate]
    organization: Mapping[str, object] = field(default_factory=lambda: {"organization": "chain"})


TEAM_TEMPLATES: Mapping[str, TeamTemplate] = {
    "reasoner-actor": TeamTemplate(
        "one works out what it can, another finishes",
        (
            AgentTemplate("reasoner", "You are the reasoner. Work out the first step and pass on what is left."),
            AgentTemplate(
                "actor", f"You are the actor. Finish the work with the help of the message and {BOX_INSTRUCTION}", True
            ),
        ),
    ),
    "writer-critic": TeamTemplate(
        "a draft, criticism, a better draft",
        (
            AgentTemplate(
                "writer",
                f"You are the writer. Solve the problem, heed what the critic says, and {BOX_INSTRUCTION}",
                True,
            ),
            AgentTemplate(
                "critic", "You are the critic. Say in a few words what is wrong with the draft and how to mend it."
            ),
        ),
        {"organization": "reflective", "actor": "writer", "critic": "critic", "reviser": "writer"},
    ),
    "single": TeamTemplate(
        "one agent alone",
        (
            AgentTemplate(
                "solver", f"You are the solver. Work out the problem step by step and {BOX_INSTRUCTION}", True
            ),
        ),
    ),
}
