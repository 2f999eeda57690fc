"""Ages of two people, which a team looks up with a tool: environment, program with an OpenAI client, demonstrations."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from openai import OpenAI

from marft.common.types import Task
from marft.config.interfaces.environment import Environment, Split
from marft.envs.graded_sessions import Grade, SingleTurn
from marft_serve.gateway.client import Client
from real.tasks import of_split

NAMES = (
    "Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gina", "Hugo", "Ida", "Jack", "Kim", "Leo", "Mia", "Nina", "Otto",
    "Paul", "Rosa", "Sam", "Tess", "Uma", "Vera", "Will", "Zoe",
)  # fmt: skip
PROMPT = "How old are {} and {}?"
ANSWER = "{}: {}, {}: {}"
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "age",
        "description": "The age of a person.",
        "parameters": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
    },
}
MAX_ROUNDS = 3  # requests of the researcher in an episode
SLIPS = 0.5  # share of demonstrated episodes with a mistake


class Lookup(Environment):
    """Pairs of people with random ages. The reward is the share of ages in the answer, in the demonstrated form."""

    count: int = 600

    def tasks(self, split: Split) -> list[Task]:
        names = [f"ages/{number}" for number in range(self.count)]
        return of_split([Task(name, PROMPT.format(*ages_of(name)), {"ages": ages_of(name)}) for name in names], split)

    def start(self, task: Task, seed: int) -> SingleTurn:  # noqa: ARG002  nothing here is random
        ages: Mapping[str, int] = task.data["ages"]
        return SingleTurn(task, lambda text: grade(text, ages))


def ages_of(task: str) -> dict[str, int]:
    """Return the records that a task asks about. A program gets no data of a task, because answers may be there."""
    drawn = random.Random(task)
    return {name: drawn.randint(10, 99) for name in drawn.sample(NAMES, 2)}


def grade(text: str, ages: Mapping[str, int]) -> Grade:
    """Grade an answer by the share of ages that it states.

    >>> grade("Ada: 34, Ben: 27", {"Ada": 34, "Ben": 27}).reward, grade("Ada: 34", {"Ada": 34, "Ben": 27}).reward
    (1.0, 0.5)
    """
    stated = [part.strip() for part in text.split(",")]
    share = sum(f"{name}: {age}" in stated for name, age in ages.items()) / len(ages)
    return Grade(share, share == 1.0)


@cache
def connection() -> OpenAI:
    """Return the connection pool for all episodes."""
    return OpenAI(base_url="http://127.0.0.1", api_key="none")


def solve(task: Task, clients: Mapping[str, Client]) -> str:
    """Let the researcher call the tool, several times in one turn if it likes, and the writer answer from the note."""
    messages: list[Any] = [
        {"role": "system", "content": clients["researcher"].instructions},
        {"role": "user", "content": task.prompt},
    ]
    note = ""
    for _ in range(MAX_ROUNDS):
        message = ask(clients["researcher"], messages, tools=[TOOL], parallel_tool_calls=True)
        note = message.content or ""
        if not message.tool_calls:
            break
        messages.append(message.model_dump(exclude_none=True))
        messages += [
            {"role": "tool", "tool_call_id": call.id, "content": look_up(ages_of(task.id), call.function.arguments)}
            for call in message.tool_calls
        ]
    writer = clients["writer"]
    question = [
        {"role": "system", "content": writer.instructions},
        {"role": "user", "content": f"{task.prompt}\n\nNote: {note}"},
    ]
    return ask(writer, question).content or ""


def ask(client: Client, messages: Sequence[Any], **settings: Any) -> Any:
    """Send a conversation to an agent; return its message."""
    chat = connection().with_options(**client.keywords).chat
    return chat.completions.create(model=client.model, messages=list(messages), **settings).choices[0].message


def look_up(ages: Mapping[str, int], arguments: str) -> str:
    """Return the tool's answer."""
    try:
        name = json.loads(arguments)["name"]
    except (ValueError, KeyError, TypeError):
        return "The tool needs a name."
    return f"{name} is {ages[name]}." if name in ages else f"Nobody is called {name}."


def demonstrate(tasks: Sequence[Task], seed: int) -> list[dict[str, Any]]:
    """Return conversations of both agents as training rows, half of them with a mistake that the team can unlearn."""
    rows = []
    for task in tasks:
        drawn = random.Random(f"{seed}/{task.id}")
        ages: dict[str, int] = dict(task.data["ages"])
        slip = drawn.choice(["one call", "wrong name", "wrong age", "wrong form"]) if drawn.random() < SLIPS else ""
        asked = list(ages)[:1] if slip == "one call" else list(ages)
        called = [name if slip != "wrong name" else drawn.choice(NAMES) for name in asked]
        calls = [
            {"id": f"call{n}", "type": "function", "function": {"name": "age", "arguments": json.dumps({"name": name})}}
            for n, name in enumerate(called)
        ]
        results = [look_up(ages, json.dumps({"name": name})) for name in called]
        note = " ".join(results)
        told = {name: age if slip != "wrong age" else drawn.randint(10, 99) for name, age in ages.items()}
        answer = ANSWER.format(*[part for pair in told.items() for part in pair])
        answer = f"They are {' and '.join(map(str, told.values()))}." if slip == "wrong form" else answer
        about = {"episode": task.id, "task": task.id}
        rows.append({**about, "tools": [TOOL], "agent": "researcher", "messages": [
            {"role": "system", "content": "Look up the ages."}, {"role": "user", "content": task.prompt},
            {"role": "assistant", "content": "", "tool_calls": calls},
            *({"role": "tool", "tool_call_id": f"call{n}", "content": text} for n, text in enumerate(results)),
            {"role": "assistant", "content": note},
        ]})  # fmt: skip
        rows.append({**about, "agent": "writer", "messages": [
            {"role": "system", "content": "Answer from the note."},
            {"role": "user", "content": f"{task.prompt}\n\nNote: {note}"}, {"role": "assistant", "content": answer},
        ]})  # fmt: skip
    return rows
