"""Metadata about agents from a recipe's plain table: profile and model name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePath

from marft.common.types import AgentProfile
from marft.config.load import get_table, read_plain_table

PROGRAM_ORGANIZATION = "program"  # organization with an external program, which writes its own prompts


@dataclass(frozen=True, slots=True)
class AgentMetadata:
    """Metadata about an agent.

    Args:
        profile: profile of the agent.
        model: name of the model; for a trained policy, it includes the policy's name.
        provider: ``marft`` for a local model, ``openai`` for an endpoint with OpenAI's protocol.
    """

    profile: AgentProfile
    model: str
    provider: str = "marft"


@dataclass(frozen=True, slots=True)
class TeamMetadata:
    """Metadata about the agents in a run, by role.

    Args:
        name: name of the run.
        agents: metadata by role.
        writes_prompts: True for an external program. Its prompts cannot be derived from the actions that an agent saw.
    """

    name: str = ""
    agents: Mapping[str, AgentMetadata] = field(default_factory=dict)
    writes_prompts: bool = False

    def get_agent(self, role: str, policy: str) -> AgentMetadata:
        """Return an agent's metadata; for an unknown role, use the policy as model name."""
        return self.agents.get(role) or AgentMetadata(AgentProfile(role), policy)

    @staticmethod
    def from_table(table: Mapping[str, object], name: str = "") -> TeamMetadata:
        """Read the metadata from a recipe's plain table; missing or invalid entries are left out."""
        agents = table.get("agents")
        listed = [agent for agent in agents if isinstance(agent, dict)] if isinstance(agents, list | tuple) else []
        return TeamMetadata(
            name=name or str(table.get("name") or ""),
            agents={str(agent.get("role")): _parse_agent(table, agent) for agent in listed},
            writes_prompts=get_table(table, "team").get("organization") == PROGRAM_ORGANIZATION,
        )

    @staticmethod
    def from_file(config: Path, name: str = "") -> TeamMetadata:
        """Read the metadata from the recipe in a run folder; empty if the recipe cannot be read."""
        return TeamMetadata.from_table(read_plain_table(config), name)


def _parse_agent(table: Mapping[str, object], agent: Mapping[str, object]) -> AgentMetadata:
    policy = str(agent.get("policy"))
    policy_table = get_table(table, "policies", policy)
    model = get_table(table, "models", str(policy_table.get("model")))
    path = str(model.get("path") or policy)
    label = PurePath(path).name if path.startswith(("/", ".", "~")) else path
    profile = AgentProfile(
        role=str(agent.get("role")),
        instructions=str(agent.get("instructions") or ""),
        guidance=str(agent.get("guidance") or ""),
        answers=agent.get("answers") is True,
    )
    remote = isinstance(model.get("endpoint"), dict)
    trained = not remote and policy_table.get("train", "lora") != "frozen"
    return AgentMetadata(profile, f"{label}:{policy}" if trained else label, "openai" if remote else "marft")
