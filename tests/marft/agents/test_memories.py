"""Memory systems: every one of them, under any calls, keeps its budgets and bounds, counts what it costs, and forgets."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marft.agents.memories.selection import count_words
from marft.agents.memories.store import Cost, normalize_key, open_store
from marft.config.interfaces.memory import Entry
from tests.memory_systems import (
    CALLS,
    CONSTRUCTIONS,
    ENTRIES,
    SYSTEMS,
    Clock,
    facts,
    follow,
    opened,
    part,
    run,
    tokens,
)
from tests.nights import by_day

LEAST = 16_384  # bytes of the smallest memory
every_system = pytest.mark.parametrize("name", SYSTEMS)
every_construction = pytest.mark.parametrize("construction", CONSTRUCTIONS)


@every_system
class TestUnderAnyCalls:
    @given(calls=CALLS, construction=st.sampled_from(CONSTRUCTIONS))
    @settings(max_examples=by_day(12, 25))
    def test_what_is_read_fits_into_its_budget_and_was_written(
        self, name: str, construction: str, calls: list[tuple[Any, ...]]
    ) -> None:
        budgets = [max(call[2], 0) for call in calls if call[0] == "read"]
        for texts, budget in zip(run(follow(opened(name, construction=construction), calls)), budgets, strict=True):
            assert tokens("\n".join(texts)) <= budget
            "\n".join(texts).encode()

    @given(calls=CALLS, construction=st.sampled_from(CONSTRUCTIONS))
    @settings(max_examples=by_day(12, 25))
    def test_writing_and_reading_together_cost_the_whole(
        self, name: str, construction: str, calls: list[tuple[Any, ...]]
    ) -> None:
        clock = Clock()
        store = open_store(part(name, construction=construction), clock=clock)
        slow = {"write": [0, 0, 0, 0], "read": [0, 0, 0, 0]}

        async def all_of_them() -> None:
            for what, *arguments in calls:
                done = await getattr(store, what)(*arguments)
                work = done if what == "write" else done.work
                path = "read" if what == "read" else "write"
                taken = (1, work.tokens, work.bytes, 1000 * clock.calls)
                slow[path] = [a + b for a, b in zip(slow[path], taken, strict=True)]

        run(all_of_them())
        assert store.costs.write == Cost(*slow["write"])
        assert store.costs.read == Cost(*slow["read"])
        assert store.costs.total == store.costs.write + store.costs.read
        assert store.costs.total.ms == pytest.approx(sum(1000 * 2 * n for n in range(1, len(calls) + 1)) / 1e6)

    @given(calls=CALLS, construction=st.sampled_from(CONSTRUCTIONS))
    @settings(max_examples=by_day(8, 15))
    def test_the_same_calls_read_the_same(self, name: str, construction: str, calls: list[tuple[Any, ...]]) -> None:
        first, again = (run(follow(opened(name, construction=construction), calls)) for _ in range(2))
        assert first == again

    @given(calls=CALLS, construction=st.sampled_from(CONSTRUCTIONS))
    @settings(max_examples=by_day(8, 15))
    def test_what_was_forgotten_is_read_no_more(
        self, name: str, construction: str, calls: list[tuple[Any, ...]]
    ) -> None:
        store = opened(name, construction=construction)
        secret = Entry("Zoë hides the qqqqword.", "zoe")

        async def reads() -> list[str]:
            await follow(store, calls[:6])
            await store.write([secret, secret])
            await store.forget(" ZOE")
            await follow(store, calls[6:])
            return [(await store.read(query, 10_000)).text for query in ("", "Zoë", "qqqqword hides", "ann")]

        assert not any("qqqq" in text for text in run(reads()))


@every_construction
@every_system
def test_a_memory_is_bounded_whatever_is_written(name: str, construction: str) -> None:
    store = opened(name, construction=construction, max_bytes=LEAST)

    async def fill() -> None:
        for start in range(0, 400, 20):
            await store.write(facts(range(start, start + 20)))
            assert store.size_bytes <= LEAST
        await store.write(
            [Entry("é" * 100_000, "long"), Entry("a\n" * 5000, "k" * 10_000), Entry("b" * 3, "", "working")]
        )
        assert store.size_bytes <= LEAST
        await store.read("Where does person399x live?", 10)
        assert store.size_bytes <= LEAST

    run(fill())


@every_system
def test_forgetting_takes_out_what_waits_what_is_kept_and_what_was_made_of_it(name: str) -> None:
    for construction in CONSTRUCTIONS:
        store = opened(name, construction=construction, batch_size=3)

        async def reads(store: Any = store) -> tuple[int, str, str]:
            for entry in facts(range(10)):
                await store.write([entry])  # with batches of 3 the last one waits
            counts = [(await store.forget(f"person{n}x")).count for n in (0, 9)]
            await store.write(facts(range(20, 25)))  # so that everything is built in
            return min(counts), (await store.read("person0x", 10_000)).text, (await store.read("", 10_000)).text

        count, asked, everything = run(reads())
        assert count >= 1
        for text in (asked, everything):
            assert "place0y" not in text
            assert "place9y" not in text
        assert "place8y" in everything


@pytest.mark.parametrize("name", ["index", "key_value", "learned", "log"])
@given(written=st.lists(ENTRIES, max_size=10), query=st.sampled_from(["", "ann red", "rome"]))
@settings(max_examples=by_day(12, 25))
def test_when_it_is_built_in_changes_nothing_of_what_a_read_that_builds_finds(
    name: str, written: list[Entry], query: str
) -> None:
    async def found(**keys: Any) -> tuple[str, ...]:
        store = opened(name, **keys)
        for entry in written:
            await store.write([entry])
        return (await store.read(query, 50)).texts

    assert run(found(construction="lazy")) == run(found()) == run(found(construction="batched", batch_size=1))


def test_a_batch_is_found_when_it_is_whole_and_a_lazy_memory_works_when_it_is_read() -> None:
    batched, lazy = opened("log", construction="batched", batch_size=2), opened("log", construction="lazy")

    async def reads() -> list[tuple[str, ...]]:
        found = []
        for entry in facts([1, 2]):
            for store in (batched, lazy):
                await store.write([entry])
                found.append((await store.read("", 100)).texts)
        return found

    first, both = "Person1x lives at place1y.", ("Person1x lives at place1y.", "Person2x lives at place2y.")
    assert run(reads()) == [(), (first,), both, both]
    assert lazy.costs.write.tokens == 0
    assert lazy.costs.read.tokens == sum(map(tokens, [*both, first, *both]))
    assert batched.costs.write.tokens == sum(map(tokens, both))


@pytest.mark.parametrize("name", ["hierarchical", "index", "key_value", "summary"])
def test_a_fact_takes_the_place_of_the_earlier_one_of_its_key(name: str) -> None:
    async def read() -> str:
        store = opened(name)
        await store.write([Entry("Ann lives in Rome.", "ann city"), *facts(range(8))])
        await store.write([Entry("Ann lives in Oslo.", "Ann  City")])
        await store.write(facts(range(8, 16)))
        return (await store.read("Where does Ann live? city", 10_000)).text

    assert "Oslo" in run(read())
    assert "Rome" not in run(read())


@pytest.mark.parametrize("name", ["hierarchical", "index", "key_value", "summary", "log"])
def test_what_happened_takes_nothings_place(name: str) -> None:
    async def read() -> str:
        store = opened(name)
        await store.write([Entry(f"Ann lost at game{n}.", "ann game", "experiential") for n in range(3)])
        return (await store.read("ann game", 100)).text

    assert [f"game{n}" in run(read()) for n in range(3)] == [True] * 3


@pytest.mark.parametrize("name", ["hierarchical", "index", "key_value", "summary", "log"])
def test_of_the_work_under_way_the_newest_is_read_first_and_the_oldest_goes(name: str) -> None:
    async def read(budget: int) -> tuple[str, ...]:
        store = opened(name, max_working_entries=2)
        await store.write([Entry(f"Step{n}.", f"step {n}", "working") for n in range(4)])
        await store.write(facts(range(3)))
        return (await store.read("Where does person1x live?", budget)).texts

    assert run(read(3)) == ("Step3.",)
    everything = "\n".join(run(read(1000)))
    assert [f"Step{n}." in everything for n in range(4)] == [False, False, True, True]
    assert "place1y" in everything


@every_system
def test_nothing_written_gives_nothing_and_odd_words_are_taken(name: str) -> None:
    async def read() -> list[tuple[str, ...]]:
        store = opened(name)
        empty = await store.read("anything", 100)
        await store.write([])
        await store.write([Entry(""), Entry("  \n ", "blank"), Entry("\ud83d half", "\udc00")])
        assert (await store.forget("never written")).count == 0
        return [empty.texts, (await store.read("half", 100)).texts, (await store.read("half", 0)).texts]

    assert run(read()) == [(), ("? half",), ()]


def test_a_text_that_is_too_long_is_cut_and_the_writer_told() -> None:
    store = opened("log", max_bytes=LEAST)
    work = run(store.write([Entry("é" * 1000)]))
    assert work.message == "A text has at most 1024 bytes: the rest was cut."
    assert run(store.read("", 10)).texts == ("é" * 512,)


def test_a_key_is_the_same_however_it_is_written() -> None:
    assert normalize_key("Ann's  CAT ") == normalize_key(" ann's\ncat")
    assert len(normalize_key("ß" * 300)) == 200


def test_tokens_are_words_and_marks() -> None:
    for text in ("Ann's cat is red.", "", " \n", "é-è 1,5 _x", "日本 語!"):
        assert count_words(text) == tokens(text)
