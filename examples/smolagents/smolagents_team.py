"""A manager that calls a worker with a tool, in smolagents."""

from __future__ import annotations

from collections.abc import Mapping

from smolagents import LogLevel, OpenAIServerModel, ToolCallingAgent, tool

from marft.gateway.client import Client
from marft.types import Task

MOST_STEPS = 3
QUIET = LogLevel.OFF


@tool
def multiply(a: int, b: int) -> int:
    """Multiply.

    Args:
        a: one number
        b: another
    """
    return a * b


def solve(task: Task, clients: Mapping[str, Client]) -> str:
    """What the team answers."""
    models = {
        role: OpenAIServerModel(client.model, api_base=client.base_url, api_key=client.api_key)
        for role, client in clients.items()
    }
    calculator = ToolCallingAgent(
        [multiply], models["calculator"], name="calculator", description=clients["calculator"].instructions,
        max_steps=MOST_STEPS, verbosity_level=QUIET,
    )  # fmt: skip
    triage = ToolCallingAgent(
        [], models["triage"], instructions=clients["triage"].instructions, managed_agents=[calculator],
        max_steps=MOST_STEPS, verbosity_level=QUIET,
    )  # fmt: skip
    return str(triage.run(task.prompt))
