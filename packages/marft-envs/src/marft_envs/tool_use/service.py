"""Base class with the tools that every service desk has."""

from __future__ import annotations

from marft.agents.environment import tool
from marft_envs.tool_use.arithmetic import evaluate
from marft_envs.tool_use.toolbox import Toolbox


class ServiceToolbox(Toolbox):
    """Base class for customer service worlds."""

    @tool
    def calculate(self, expression: str) -> str:
        """Work out an expression of numbers, + - * / and brackets."""
        return evaluate(expression)

    @tool
    def think(self, thought: str) -> str:  # noqa: ARG002  it is written down, and changes nothing
        """Write a thought down; it changes nothing."""
        return ""

    @tool
    def transfer_to_human_agents(self, summary: str) -> str:  # noqa: ARG002
        """Hand over to a human, where no tool can do what is asked for."""
        return "Transfer successful"
