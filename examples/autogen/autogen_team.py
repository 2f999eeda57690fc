"""The demo's team as an AutoGen round-robin chat, run as a command in its own virtual environment.

MARFT writes the task as JSON to standard input and passes the agents' addresses as environment variables.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_ext.models.openai import OpenAIChatCompletionClient

MODEL = {
    "vision": False,
    "function_calling": True,
    "json_output": False,
    "structured_output": False,
    "family": "unknown",
}


def agent(role: str) -> AssistantAgent:
    """Return the AutoGen agent for a role in the recipe."""
    name = role.upper()
    client = OpenAIChatCompletionClient(
        model=os.environ[f"MARFT_{name}_MODEL"], base_url=os.environ[f"MARFT_{name}_URL"],
        api_key=os.environ["MARFT_API_KEY"], model_info=MODEL,
    )  # fmt: skip
    return AssistantAgent(role, client, system_message=os.environ[f"MARFT_{name}_INSTRUCTIONS"])


async def main() -> None:
    question = json.load(sys.stdin)["prompt"]
    team = RoundRobinGroupChat([agent("reasoner"), agent("actor")], termination_condition=MaxMessageTermination(3))
    said = await team.run(task=question)
    print(json.dumps({"answer": said.messages[-1].content}))


if __name__ == "__main__":
    asyncio.run(main())
