"""Memories whose embeddings or insides fail once: nothing is lost, nothing is there twice, and they go on."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from marft.agents.memories.store import DeferredMemory
from marft.config.interfaces.memory import Entry, Work
from tests.memory_systems import opened, run


class Breaks:
    """Takes in nothing while it fails."""

    size, fails = 0, True

    def __init__(self) -> None:
        self.texts = list[str]()

    async def write(self, entries: Sequence[Entry]) -> Work:
        if self.fails:
            raise ValueError("not now")
        self.texts += [entry.text for entry in entries]
        return Work()


def test_a_batch_that_cannot_be_built_in_is_tried_with_the_next_entry() -> None:
    broken = Breaks()
    memory = DeferredMemory(broken, 2, 10_000)  # type: ignore[arg-type]

    async def writes() -> None:
        await memory.write([Entry("a")])
        with pytest.raises(ValueError, match="not now"):
            await memory.write([Entry("b")])
        broken.fails = False
        await memory.write([Entry("c")])

    run(writes())
    assert broken.texts == ["a", "b", "c"]


FAILS = {"now": False}


def embedded(texts: Sequence[str]) -> list[list[float]]:
    if FAILS["now"]:
        raise ValueError("not now")
    return [[float(len(text)), *map(float, range(1, 8))] for text in texts]


@pytest.mark.parametrize("construction", ["eager", "lazy"])
def test_what_cannot_go_down_is_neither_lost_nor_doubled(construction: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(
        "hierarchical", max_recent=2, top_k=100, dimensions=8, embed=f"{__name__}:embedded", construction=construction
    )

    def entries(*numbers: int) -> list[Entry]:
        return [Entry(f"number {n}", f"key{n}") for n in numbers]

    async def fails() -> None:
        await store.write(entries(2, 3))
        await store.read("number", 10**6)

    run(store.write(entries(0, 1)))
    monkeypatch.setitem(FAILS, "now", True)
    with pytest.raises(ValueError, match="not now"):
        run(fails())
    monkeypatch.setitem(FAILS, "now", False)
    if construction == "eager":
        run(store.write(entries(2, 3)))
    assert sorted(run(store.read("number", 10**6)).texts) == [f"number {n}" for n in range(4)]
