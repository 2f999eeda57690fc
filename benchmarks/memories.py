"""Compare all memory systems by budget and construction: the cost of writing and reading, and the quality of the texts.

    python benchmarks/memories.py                                # minutes of one core
    python benchmarks/memories.py --readers FOLDER tiny-memory   # also the answers of two models

Conversations of the world ``memory`` in plain words are written piece by piece, including small talk. Each line with a
fact has a key that names its subject.

- *Fresh*: changed facts, asked for right after the piece that changed them. The text must hold the new value, and not
  the old one.
- *Held*: questions after the conversation whose facts are all in the text that was read.
- *Right*: questions that the world's script answers correctly from that text. The script is a flawless reader. It must
  also recognize questions about facts that the conversation never mentions.

Tokens are words and punctuation marks. Costs are per conversation; times are in ms on this machine. For ``learned``,
the world's script is the writer: it reads its notes and drops nothing.

*At once* fills a thousand memories in one process, and reports their size and the growth of the process. Writes
results/memories.json and .md.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import machine
from memory_readers import Asked, capability

from marft.agents.memories.store import Cost, MemoryStore, open_store
from marft.common.packages import bundled_plugins
from marft.common.types import Task
from marft.config.interfaces.memory import Entry
from marft.config.plugins import find_plugin
from marft.envs.scripted_policy import PolicyInput
from marft_envs.memory.conversations import Chunk, Question, contains_fact, grade_answer
from marft_envs.memory.environment import Memory, MemoryScript, parse_fact

BUDGETS = (16, 48, 160)  # tokens per read
CONSTRUCTIONS = ("eager", "batched", "lazy")
BATCH = 8
PATHS = ("write", "read", "total")
PEOPLE, DAYS, FACTS, TALK, QUESTIONS = 6, 16, 3, 2, 10
AT_ONCE, ENTRIES, TOGETHER, CAPACITY = 1000, 300, 10, 65_536
HUGE = 1_000_000  # budget in tokens, so that a writer reads all its notes


@dataclass(frozen=True)
class Conversation:
    chunks: tuple[Chunk, ...]
    questions: tuple[Question, ...]


@dataclass
class Outcome:
    """Results of one system over several conversations."""

    write: Cost = field(default_factory=Cost)
    read: Cost = field(default_factory=Cost)
    held_bytes: int = 0
    fresh: list[bool] = field(default_factory=list)
    held: list[bool] = field(default_factory=list)
    right: list[bool] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)


def conversations(count: int) -> list[Conversation]:
    """Return conversations of the world, the same each time."""
    keys: dict[str, Any] = {
        "style": "plain", "people": PEOPLE, "days": DAYS, "facts": FACTS, "filler_lines": TALK, "questions": QUESTIONS
    }  # fmt: skip
    world = Memory(**keys)
    drawn = [world.generate_task(Random(number)).data for number in range(count)]
    return [
        Conversation(tuple(map(Chunk.from_dict, data["chunks"])), tuple(map(Question.from_dict, data["questions"])))
        for data in drawn
    ]


def entries(chunk: Chunk) -> list[Entry]:
    """Return a piece's lines as entries. A line with a fact has the key of its subject."""
    found = []
    for line in chunk.lines:
        fact = parse_fact(line, chunk.date, "plain")
        kind: Any = "experiential" if fact and fact.relation == "event" else "factual"
        key = " ".join(filter(None, (fact.person, fact.relation, fact.detail))) if fact else ""
        found.append(Entry(fact.note if fact else line, key, kind))
    return found


async def write(name: str, store: MemoryStore, chunk: Chunk) -> None:
    """Write a piece as entries; for ``learned``, the world's script writes it."""
    if name != "learned":
        await store.write(entries(chunk))
        return
    notes = (await store.read("", HUGE)).text
    shown = f"{chunk.text}\n\nNotes (0 of 0):\n{notes}"
    cue = PolicyInput(Task("", ""), "writer", 0, [{"role": "user", "content": shown}], Random(0))
    await store.write([Entry(MemoryScript(1.0, "plain")(cue))])


def answer(question: str, texts: Sequence[str]) -> str:
    """Return the answer of a flawless reader."""
    shown = "\n".join((*(texts or ("(nothing)",)), "", f"Question: {question}"))
    return MemoryScript(1.0, "plain")(
        PolicyInput(Task("", ""), "answerer", 0, [{"role": "user", "content": shown}], Random(0))
    )


async def play(name: str, store: MemoryStore, conversation: Conversation, budget: int, outcome: Outcome) -> None:
    """Run one conversation through one memory."""
    values: dict[tuple[str, str], str] = {}
    for chunk in conversation.chunks:
        await write(name, store, chunk)
        for line in chunk.lines:
            fact = parse_fact(line, chunk.date, "plain")
            if fact is None or fact.relation not in ("city", "job", "food"):
                continue
            old = values.get((fact.person, fact.relation))
            values[fact.person, fact.relation] = fact.value
            if old is not None and old != fact.value:
                text = (await store.read(fact.question("plain"), budget)).texts
                said = [any(contains_fact(one, (fact.person, value)) for one in text) for value in (fact.value, old)]
                outcome.fresh.append(said == [True, False])
    for question in conversation.questions:
        texts = (await store.read(question.text, budget)).texts
        held = all(any(contains_fact(text, words) for text in texts) for words in question.needs)
        outcome.right.append(grade_answer(question, answer(question.text, texts), "exact") == 1.0)
        if question.needs:
            outcome.held.append(held)
            outcome.asked.append(Asked(texts, question, held))
    outcome.write += store.costs.write
    outcome.read += store.costs.read
    assert store.costs.write + store.costs.read == store.costs.total
    outcome.held_bytes += store.size_bytes


def tried(name: str, budget: int, construction: str, some: Sequence[Conversation]) -> Outcome:
    """Run a system on conversations, each with a new memory."""
    made: Any = find_plugin("memories", name)
    part = made(construction=construction, batch=BATCH)
    outcome = Outcome()
    for conversation in some:
        asyncio.run(play(name, open_store(part), conversation, budget, outcome))
    return outcome


def row_of(name: str, budget: int, construction: str, some: Sequence[Conversation]) -> tuple[dict[str, Any], Outcome]:
    one = tried(name, budget, construction, some)
    count = len(some)

    def costs(cost: Cost) -> dict[str, float]:
        return {"tokens": cost.tokens / count, "ms": cost.ms / count, "bytes": cost.bytes / count}

    shares = {what: sum(getattr(one, what)) / len(getattr(one, what)) for what in ("fresh", "held", "right")}
    counts = {"changed": len(one.fresh), "asked": len(one.right)}
    return {
        "system": name, "construction": construction, "budget": budget, "write": costs(one.write),
        "read": costs(one.read), "total": costs(one.write + one.read), "memory_bytes": one.held_bytes / count,
        **shares, **counts,
    }, one  # fmt: skip


async def _filled(name: str) -> list[MemoryStore]:
    made: Any = find_plugin("memories", name)
    part = made(max_bytes=CAPACITY)
    stores = [open_store(part) for _ in range(AT_ONCE)]

    async def fill(number: int, store: MemoryStore) -> None:
        for start in range(0, ENTRIES, TOGETHER):
            people = range(start, start + TOGETHER)
            await store.write([Entry(f"Person {n} of {number} lives at number {n}.", f"person {n}") for n in people])
            await asyncio.sleep(0)
            await store.read(f"Where does person {start} live?", 48)

    await asyncio.gather(*(fill(number, store) for number, store in enumerate(stores)))
    return stores


def at_once(name: str) -> dict[str, Any]:
    """Fill a thousand memories concurrently in this process, and return their sizes."""
    before = machine.footprint()["memory_mb"]
    with machine.Watch() as watch:
        stores = asyncio.run(_filled(name))
    grown = watch.most["memory_mb"] - before
    sizes = [store.size_bytes for store in stores]
    return {
        "system": name, "memories": len(stores), "entries": ENTRIES, "capacity": CAPACITY, "most": max(sizes),
        "held": sum(sizes), "grown": grown,
    }  # fmt: skip


def table(heads: Sequence[str], rows: Sequence[Sequence[object]], texts: int) -> str:
    lines = [f"| {' | '.join(heads)} |", f"|{' --- |' * texts}{' ---: |' * (len(heads) - texts)}"]
    return "\n".join([*lines, *(f"| {' | '.join(map(str, row))} |" for row in rows)])


def written(result: dict[str, Any]) -> str:
    """Return the tables as Markdown."""
    size = f"{result['conversations']} conversations of {DAYS} pieces, {QUESTIONS} questions each"
    parts = [f"Memory systems on {size}; batches of {BATCH}; ms of {result['machine']['processor']}.", ""]
    heads = ["system", "construction", "budget"]
    heads += [f"{path} {what}" for path in PATHS for what in ("tokens", "ms", "bytes")]
    rows: list[list[object]] = [
        [row["system"], row["construction"], row["budget"]]
        + [f"{row[path][what]:,.{int(what == 'ms')}f}" for path in PATHS for what in ("tokens", "ms", "bytes")]
        + [f"{row['memory_bytes']:,.0f}", *(f"{100 * row[what]:.0f} %" for what in ("fresh", "held", "right"))]
        for row in result["systems"]
    ]
    parts += [table([*heads, "bytes held", "fresh", "held", "right"], rows, 2), ""]
    rows = [
        [row["system"], f"{row['most']:,}", f"{row['held'] / 2**20:.1f}", f"{row['grown']:,}"]
        for row in result["at_once"]
    ]
    bound = AT_ONCE * CAPACITY / 2**20
    about = f"{AT_ONCE:,} concurrent memories with {ENTRIES} entries each. The limit is {CAPACITY:,} bytes each, "
    about += f"{bound:.1f} MiB in total."
    parts += [
        about,
        "",
        table(["system", "bytes of the largest", "MiB held", "MiB the process grew, at most"], rows, 1),
    ]
    if result.get("readers"):
        readers = result["readers"]
        heads = [
            "system",
            "budget",
            "facts read",
            *(f"{one['model']} ({one['parameters'] / 1e6:.2f} M)" for one in readers),
        ]
        body: list[list[object]] = []
        for place, cell in enumerate(readers[0]["cells"]):
            shares = [f"{one['cells'][place]['right']} of {cell['held']}" for one in readers]
            body.append([cell["system"], cell["budget"], f"{cell['held']} of {cell['asked']}", *shares])
        parts += [
            "",
            "Right answers of two models, among the questions whose facts they were given.",
            "",
            table(heads, body, 1),
        ]
    return "\n".join(parts) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--conversations", type=int, default=20)
    parser.add_argument("--readers", nargs="*", default=[], help="models that read: names or folders")
    parser.add_argument("--read", type=int, default=20, help="number of conversations that models read")
    parser.add_argument(
        "--at-once",
        choices=sorted(bundled_plugins("memories")),
        help="measure only this system at once, and print JSON",
    )
    parser.add_argument("--results", type=Path, default=machine.RESULTS)
    arguments = parser.parse_args()
    if arguments.at_once:
        print(json.dumps(at_once(arguments.at_once)))
        return
    some = conversations(arguments.conversations)
    names = ["log", "summary", "key_value", "index", "hierarchical", "learned"]
    systems = [row_of(name, budget, how, some)[0] for name, how, budget in product(names, CONSTRUCTIONS, BUDGETS)]
    command = [sys.executable, __file__, "--at-once"]
    many = [json.loads(subprocess.run([*command, name], check=True, capture_output=True).stdout) for name in names]
    asked = {
        (name, budget): row_of(name, budget, "eager", some[: arguments.read])[1].asked
        for name, budget in product(names, BUDGETS)
    }
    readers = [capability(model, asked) for model in arguments.readers]
    result = {
        "machine": machine.describe(), "conversations": len(some), "systems": systems, "at_once": many,
        "readers": readers,
    }  # fmt: skip
    arguments.results.mkdir(exist_ok=True)
    (arguments.results / "memories.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    (arguments.results / "memories.md").write_text(written(result), encoding="utf-8")
    print(written(result))


if __name__ == "__main__":
    main()
