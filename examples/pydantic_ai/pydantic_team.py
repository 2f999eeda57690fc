"""A PydanticAI triage agent that calls a calculator agent as its output."""

from __future__ import annotations

from collections.abc import Mapping

from openai import AsyncOpenAI, DefaultAsyncHttpxClient
from pydantic_ai import Agent, ToolOutput, UnexpectedModelBehavior, UsageLimitExceeded, UsageLimits
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from marft.common.types import Task
from marft_serve.gateway.client import Client

MOST = UsageLimits(request_limit=6)


def multiply(a: int, b: int) -> int:
    """Multiply."""
    return a * b


async def solve(task: Task, clients: Mapping[str, Client]) -> str:
    """Return the team's answer.

    If PydanticAI cannot use the model's text, return "". An empty answer earns 0, and the team learns from it.
    """
    async with DefaultAsyncHttpxClient(verify=False) as connections:

        def model_of(client: Client) -> OpenAIChatModel:
            asking = AsyncOpenAI(**client.keywords, http_client=connections)
            return OpenAIChatModel(client.model, provider=OpenAIProvider(openai_client=asking))

        calculator = Agent(
            model_of(clients["calculator"]), instructions=clients["calculator"].instructions, tools=[multiply]
        )

        async def transfer_to_calculator() -> str:
            """Handoff to the calculator agent to handle the request."""
            return (await calculator.run(task.prompt, usage_limits=MOST)).output

        triage = Agent(
            model_of(clients["triage"]), instructions=clients["triage"].instructions,
            output_type=[ToolOutput(transfer_to_calculator, name="transfer_to_calculator"), str],
        )  # fmt: skip
        try:
            return (await triage.run(task.prompt, usage_limits=MOST)).output
        except (UnexpectedModelBehavior, UsageLimitExceeded):
            return ""
