"""The demo's team as a program of its own: plain code around an OpenAI client, of which training changes the address.

    marft train demo --team "{ organization = 'program', call = 'marft_serve.examples.openai_team:solve' }"

It asks for what the demo's own chain asks for, in the same words, and trains to the same weights, bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from openai import OpenAI

from marft.common.types import Task
from marft_serve.gateway.client import Client


@cache
def shared() -> OpenAI:
    """One pool of connections for all episodes: to make a client takes longer than to ask a small model."""
    return OpenAI(base_url="http://127.0.0.1", api_key="none")


def solve(task: Task, clients: Mapping[str, Client]) -> str:
    """The reasoner works out the first step, and the actor, who is told, finishes."""
    thought = ask(clients["reasoner"], task.prompt)
    return ask(clients["actor"], f"{task.prompt}\n\nMessage from reasoner:\n{thought}")


def ask(client: Client, question: str) -> str:
    """One question to one agent → what it says."""
    completion = (
        shared()
        .with_options(**client.keywords)
        .chat.completions.create(
            model=client.model,
            messages=[{"role": "system", "content": client.instructions}, {"role": "user", "content": question}],
        )
    )
    return completion.choices[0].message.content or ""
