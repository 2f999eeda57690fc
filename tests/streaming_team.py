"""The demo's team as a program that reads what its agents say while they say it."""

from __future__ import annotations

from collections.abc import Mapping

from marft.common.types import Task
from marft_serve.examples.openai_team import get_shared_client
from marft_serve.gateway.client import Client


def solve(task: Task, clients: Mapping[str, Client]) -> str:
    thought = ask(clients["reasoner"], task.prompt)
    return ask(clients["actor"], f"{task.prompt}\n\nMessage from reasoner:\n{thought}")


def ask(client: Client, question: str) -> str:
    chunks = (
        get_shared_client()
        .with_options(**client.keywords)
        .chat.completions.create(
            model=client.model,
            messages=[{"role": "system", "content": client.instructions}, {"role": "user", "content": question}],
            stream=True,
        )
    )
    return "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
