"""The demo's team as a separate program: plain code around an OpenAI client, with the address from MARFT.

    marft train demo --team "{ organization = 'program', call = 'marft_serve.examples.openai_team:solve' }"

The program sends the same prompts as the demo's own chain. Training gives the same weights, bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from openai import OpenAI

from marft.agents.prompt_messages import format_message
from marft.common.types import Task
from marft.config.interfaces.channel import Message
from marft_serve.gateway.client import Client


@cache
def get_shared_client() -> OpenAI:
    """Return the connection pool for all episodes; creating a client takes longer than a request to a small model."""
    return OpenAI(base_url="http://127.0.0.1", api_key="none")


def solve(task: Task, clients: Mapping[str, Client]) -> str:
    """Let the reasoner work out the first step, then let the actor answer."""
    reasoning = ask_agent(clients["reasoner"], task.prompt)
    return ask_agent(clients["actor"], f"{task.prompt}\n\n{format_message(Message('reasoner', reasoning))}")


def ask_agent(client: Client, question: str) -> str:
    """Send a question to an agent; return the reply."""
    completion = (
        get_shared_client()
        .with_options(**client.keywords)
        .chat.completions.create(
            model=client.model,
            messages=[{"role": "system", "content": client.instructions}, {"role": "user", "content": question}],
        )
    )
    return completion.choices[0].message.content or ""
