"""Who is who in a recipe: what an agent is told, and what its model is called. Needs none of the recipe's parts."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any

from marft.common.types import Profile

PROGRAM = "program"  # the organization whose agents are asked by somebody else's program, in its own words


@dataclass(frozen=True, slots=True)
class Seat:
    """What a recipe says of an agent.

    Args:
        model: the name of what answers: of a policy in training it has the policy's name as well.
        provider: ``marft`` where the model is here, ``openai`` behind an endpoint that speaks its protocol.
    """

    profile: Profile
    model: str
    provider: str = "marft"


@dataclass(frozen=True, slots=True)
class Cast:
    """The agents of a run by their roles.

    Args:
        name: of the run.
        own_words: whether a program asks them, so that what they were shown is not known from what they saw.
    """

    name: str = ""
    seats: Mapping[str, Seat] = field(default_factory=dict)
    own_words: bool = False

    def seat(self, role: str, policy: str) -> Seat:
        """An agent's; one of whom the recipe says nothing goes by its policy."""
        return self.seats.get(role) or Seat(Profile(role), policy)

    @staticmethod
    def of(table: Mapping[str, Any], name: str = "") -> Cast:
        """From a recipe as a plain table. What it does not say, or not as a recipe would, is left out."""
        agents = table.get("agents")
        listed = [one for one in agents if isinstance(one, dict)] if isinstance(agents, list | tuple) else []
        return Cast(
            name=name or str(table.get("name") or ""),
            seats={str(one.get("role")): _seat(table, one) for one in listed},
            own_words=_at(table, "team").get("organization") == PROGRAM,
        )

    @staticmethod
    def read(config: Path, name: str = "") -> Cast:
        """From the recipe in a run's folder; an empty one where that cannot be read."""
        try:
            return Cast.of(tomllib.loads(config.read_text(encoding="utf-8")), name)
        except (OSError, ValueError, RecursionError):
            return Cast(name)


def _seat(table: Mapping[str, Any], agent: Mapping[str, Any]) -> Seat:
    policy = str(agent.get("policy"))
    told = _at(table, "policies", policy)
    model = _at(table, "models", str(told.get("model")))
    path = str(model.get("path") or policy)
    label = PurePath(path).name if path.startswith(("/", ".", "~")) else path
    profile = Profile(
        role=str(agent.get("role")),
        instructions=str(agent.get("instructions") or ""),
        guidance=str(agent.get("guidance") or ""),
        answers=agent.get("answers") is True,
    )
    remote = isinstance(model.get("endpoint"), dict)
    trained = not remote and told.get("train", "lora") != "frozen"
    return Seat(profile, f"{label}:{policy}" if trained else label, "openai" if remote else "marft")


def _at(table: Mapping[str, Any], *keys: str) -> Mapping[str, Any]:
    for key in keys:
        inner = table.get(key)
        table = inner if isinstance(inner, dict) else {}
    return table
