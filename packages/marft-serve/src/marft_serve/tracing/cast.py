"""Metadata about agents from a recipe's plain table: profile and model name."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any

from marft.common.types import Profile

PROGRAM = "program"  # organization with an external program, which writes its own prompts


@dataclass(frozen=True, slots=True)
class Seat:
    """Metadata about an agent.

    Args:
        profile: profile of the agent.
        model: name of the model; for a trained policy, it includes the policy's name.
        provider: ``marft`` for a local model, ``openai`` for an endpoint with OpenAI's protocol.
    """

    profile: Profile
    model: str
    provider: str = "marft"


@dataclass(frozen=True, slots=True)
class Cast:
    """Metadata about the agents in a run, by role.

    Args:
        name: name of the run.
        seats: metadata by role.
        own_words: True for an external program. Its prompts cannot be derived from the actions that an agent saw.
    """

    name: str = ""
    seats: Mapping[str, Seat] = field(default_factory=dict)
    own_words: bool = False

    def seat(self, role: str, policy: str) -> Seat:
        """Return an agent's metadata; for an unknown role, use the policy as model name."""
        return self.seats.get(role) or Seat(Profile(role), policy)

    @staticmethod
    def of(table: Mapping[str, Any], name: str = "") -> Cast:
        """Read the metadata from a recipe's plain table; missing or invalid entries are left out."""
        agents = table.get("agents")
        listed = [one for one in agents if isinstance(one, dict)] if isinstance(agents, list | tuple) else []
        return Cast(
            name=name or str(table.get("name") or ""),
            seats={str(one.get("role")): _seat(table, one) for one in listed},
            own_words=_at(table, "team").get("organization") == PROGRAM,
        )

    @staticmethod
    def read(config: Path, name: str = "") -> Cast:
        """Read the metadata from the recipe in a run folder; empty if the recipe cannot be read."""
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
