"""A triage agent that hands over to a calculator with a tool, in the OpenAI Agents SDK."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AsyncExitStack

from agents import Agent, AgentsException, OpenAIResponsesModel, RunConfig, Runner, function_tool
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from marft.common.types import Task
from marft_serve.gateway.client import Client

MOST_TURNS = 6
UNTRACED = RunConfig(tracing_disabled=True)


@function_tool
def multiply(a: int, b: int) -> int:
    """Multiply."""
    return a * b


async def solve(task: Task, clients: Mapping[str, Client]) -> str:
    """Return the team's answer.

    If the SDK cannot use the model's text, return "". An empty answer earns 0, and the team learns from it.
    """
    async with AsyncExitStack() as opened:
        models = {role: await model_of(client, opened) for role, client in clients.items()}
        calculator = Agent(
            name="calculator", instructions=clients["calculator"].instructions, tools=[multiply],
            model=models["calculator"],
        )  # fmt: skip
        triage = Agent(
            name="triage", instructions=clients["triage"].instructions, handoffs=[calculator], model=models["triage"]
        )
        try:
            done = await Runner.run(triage, task.prompt, max_turns=MOST_TURNS, run_config=UNTRACED)
        except AgentsException:
            return ""
        return str(done.final_output)


async def model_of(client: Client, opened: AsyncExitStack) -> OpenAIResponsesModel:
    """Return the SDK's model for an agent.

    The address is local, so the client skips certificates. Reading the certificates would take most of the time.
    """
    connections = await opened.enter_async_context(DefaultAsyncHttpxClient(verify=False))
    return OpenAIResponsesModel(client.model, AsyncOpenAI(**client.keywords, http_client=connections))
