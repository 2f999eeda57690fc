"""Team shapes for a first recipe: agents, answering agent and organization."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

BOXED = r"put the answer in \boxed{}."


@dataclass(frozen=True, slots=True)
class Seat:
    """One agent in a team shape."""

    role: str
    instructions: str
    answers: bool = False


@dataclass(frozen=True, slots=True)
class Shape:
    """Team shape: description, agents and organization."""

    about: str
    seats: Sequence[Seat]
    organization: Mapping[str, object] = field(default_factory=lambda: {"organization": "chain"})


SHAPES: Mapping[str, Shape] = {
    "reasoner-actor": Shape(
        "one works out what it can, another finishes",
        (
            Seat("reasoner", "You are the reasoner. Work out the first step and pass on what is left."),
            Seat("actor", f"You are the actor. Finish the work with the help of the message and {BOXED}", True),
        ),
    ),
    "writer-critic": Shape(
        "a draft, criticism, a better draft",
        (
            Seat("writer", f"You are the writer. Solve the problem, heed what the critic says, and {BOXED}", True),
            Seat("critic", "You are the critic. Say in a few words what is wrong with the draft and how to mend it."),
        ),
        {"organization": "reflective", "actor": "writer", "critic": "critic", "reviser": "writer"},
    ),
    "single": Shape(
        "one agent alone",
        (Seat("solver", f"You are the solver. Work out the problem step by step and {BOXED}", True),),
    ),
}
