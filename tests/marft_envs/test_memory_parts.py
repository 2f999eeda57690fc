"""What memories are made of, each held to a slow version of its formula; memories as tools, and in the world."""

from __future__ import annotations

import asyncio
import tomllib
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from marft.agents.memories.buffered import EntryBuffer, entry_size
from marft.agents.memories.index import VectorTable, hash_text, validate_embeddings
from marft.agents.memories.notes import FULL_MESSAGE, LearnedMemory, NoteList
from marft.agents.memories.selection import (
    ANY_KEY,
    MAX_KEYS,
    NumberedText,
    count_words,
    has_source,
    merge_keys,
    select_fitting,
    truncate,
)
from marft.agents.memories.store import DeferredMemory, MemoryStore
from marft.agents.memories.summary import SummaryLine, assign_keys, select_lines
from marft.agents.tools.memory import MemoryToolSettings
from marft.common.types import Task
from marft.config import parse_recipe, to_toml
from marft.config.interfaces.memory import Entry, Work
from marft.config.load import load_recipe
from marft_envs.memory.environment import Memory
from tests.helpers import recipe
from tests.memory_systems import SYSTEMS, facts, opened, part, run, tokens
from tests.visits import by_script

TEAM = ["writer", "retriever", "answerer"]
PLAIN: dict[str, Any] = {
    "style": "plain", "people": 3, "days": 6, "facts": 2, "filler_lines": 1, "questions": 4, "train_tasks": 10,
    "held_out_tasks": 5,
}  # fmt: skip


def twice(texts: Sequence[str]) -> list[list[float]]:
    """Vectors of somebody else's: how often each letter is there."""
    return [[float(text.count(letter)) for letter in "aeiorstn"] for text in texts]


async def later(texts: Sequence[str]) -> list[list[float]]:
    await asyncio.sleep(0)
    return twice(texts)


def too_short(texts: Sequence[str]) -> list[list[float]]:
    return [[1.0] for _ in texts]


def shorter(texts: Sequence[str], size: int) -> list[str]:
    return [" and ".join(text.rstrip(".") for text in texts) + "."]


def talkative(texts: Sequence[str], size: int) -> list[str]:
    return ["word " * 10 * size]


def no_list(texts: Sequence[str], size: int) -> str:
    return "all"


def noted(table: dict[str, Any]) -> dict[str, Any]:
    """A recipe whose first agent has a source of tools."""
    whole = recipe(tools={"notes": table})
    first, *others = whole["agents"]
    return {**whole, "agents": [{**first, "tools": ["notes"]}, *others]}


class TestFormulas:
    @given(st.text(max_size=30), st.sampled_from([8, 64, 257]))
    def test_a_text_is_hashed_by_pieces_of_its_words(self, text: str, dimensions: int) -> None:
        slow = [0.0] * dimensions
        for word in text.casefold().split():
            for length in (3, 4):
                padded = "<" + word + ">"
                pieces = [padded[i : i + length] for i in range(len(padded)) if i + length <= len(padded)] or [padded]
                for piece in pieces:
                    code = zlib.crc32(piece.encode())
                    slow[(code // 2) % dimensions] += 1.0 if code % 2 else -1.0
        norm = sum(x * x for x in slow) ** 0.5
        np.testing.assert_allclose(hash_text(text, dimensions), [x / norm if norm else 0.0 for x in slow], atol=1e-6)

    @given(st.lists(st.tuples(st.booleans(), st.integers(0, 9)), max_size=30))
    def test_a_table_scores_what_it_holds_by_cosine(self, changes: list[tuple[bool, int]]) -> None:
        table, slow = VectorTable(3), dict[int, list[float]]()
        for add, number in changes:
            if add and number not in slow:
                slow[number] = [number + 1.0, 1.0, -2.0 * number]
                table.add(number, np.array(slow[number], np.float32))
            elif not add and number in slow:
                table.remove(number)
                del slow[number]
        assert len(table) == len(slow)
        scores = {number: score for score, number in table.scores(np.array([0.5, 2.0, 1.0], np.float32))}
        assert scores == pytest.approx({n: v[0] * 0.5 + v[1] * 2 + v[2] for n, v in slow.items()}, abs=1e-5)

    @given(st.lists(st.text("ab .", max_size=8), max_size=7), st.integers(0, 12), st.integers(0, 3))
    def test_texts_fit_one_after_the_other_from_the_best_on(self, texts: list[str], budget: int, most: int) -> None:
        ranked = [NumberedText(len(texts) - place, text) for place, text in enumerate(texts)]
        slow, used = list[NumberedText](), 0
        for one in ranked:
            if used < budget and (not most or len(slow) < most) and used + tokens(one.text) <= budget:
                slow.append(one)
                used += tokens(one.text)
        found = select_fitting(ranked, budget, count_words, most)
        if slow:
            assert found == tuple(text for _, text in sorted(slow))
        else:
            assert found in ((), (truncate(ranked[0].text, budget, count_words),) if ranked else ())

    @given(st.lists(st.tuples(st.sampled_from(["a b", "a c d", "e", "a"]), st.sampled_from(["", "k"])), max_size=7))
    def test_a_summary_drops_what_says_least(self, given: list[tuple[str, str]]) -> None:
        lines = [SummaryLine(text, frozenset([key]), "factual") for text, key in given]
        kept = list(range(len(lines)))
        worth = {}
        for place in kept:
            words = set(lines[place].text.split())
            shares = [1 / sum(word in other.text.split() for other in lines) for word in sorted(words)]
            worth[place] = (lines[place].keys == {"k"}, round(sum(shares) / len(words), 9), place)
        while sum(len(lines[place].text.split()) for place in kept) > 4:
            kept.remove(min(kept, key=worth.__getitem__))
        assert run(select_lines(lines, 4, count_words)) == [lines[place] for place in kept]

    def test_what_was_made_of_more_keys_than_are_remembered_goes_with_any(self) -> None:
        few = merge_keys(frozenset([str(n)]) for n in range(MAX_KEYS))
        many = merge_keys([few, frozenset(["one more"])])
        assert (has_source(few, "0"), has_source(few, "x"), has_source(many, "x")) == (True, False, True)
        assert merge_keys([many, frozenset(["y"])]) == {ANY_KEY}

    def test_a_shelf_knows_its_size_and_lets_the_oldest_fall(self) -> None:
        some = facts(range(5))
        shelf = EntryBuffer(3 * entry_size(some[0]), working=1, replaces=True)
        assert [len(shelf.add(entry)[1].dropped) for entry in some] == [0, 0, 0, 1, 1]
        assert shelf.size == sum(map(entry_size, shelf.entries.values()))
        _, gone = shelf.add(Entry("Person4x lives elsewher.", "person4x"))
        assert (gone.replaced, gone.dropped) == ((4,), ())

    def test_a_note_goes_with_every_key_that_was_written_to_it(self) -> None:
        notes = NoteList(100)
        notes.write("Ann is a cook.", "ann")
        notes.write("1: Ann and Bea are cooks.\nCal left.", "bea")
        assert notes.forget("ann") == 1
        assert (notes.notes, notes.keys) == (["Cal left."], [frozenset(["bea"])])

    @given(st.lists(st.text("ab ", max_size=9), max_size=6), st.integers(1, 12))
    def test_notes_are_cut_where_their_room_ends(self, lines: list[str], budget: int) -> None:
        notes, slow = NoteList(budget), list[str]()
        for line in lines:
            notes.write(line)
            words = " ".join(line.split())
            kept = words[: max(budget - sum(len(one) + 1 for one in slow), 0)].rstrip()
            slow += [kept] if kept else []
        assert notes.notes == slow
        assert notes.num_characters == len("\n".join(slow)) <= budget

    def test_a_line_of_two_things_is_made_old_by_neither(self) -> None:
        one, both = (SummaryLine("x", frozenset(keys), "factual") for keys in ("a", "ab"))
        assert (one.is_replaced_by(Entry("y", "a")), both.is_replaced_by(Entry("y", "a"))) == (True, False)

    def test_texts_that_count_more_where_they_meet_fit_all_the_same(self) -> None:
        count = lambda text: len(text.split()) + 10 * ("x\ny" in text)  # noqa: E731
        assert select_fitting([NumberedText(1, "y"), NumberedText(0, "x")], 3, count) == ("y",)


class TestLevels:
    """Of a hierarchy: what is written last, and what is below it."""

    def test_what_an_entry_makes_old_is_on_none_of_them(self) -> None:
        """Not even where it goes down while both are written."""
        store = opened("hierarchical", max_recent=1, top_k=9)
        run(store.write([Entry("Ann is in Rome.", "ann"), Entry("Bea left.", "bea"), Entry("Ann is in Oslo.", "ann")]))
        assert "Rome" not in run(store.read("Ann Bea", 1000)).text

    def test_no_text_is_shown_twice_and_no_more_than_so_many_are_recent(self) -> None:
        store = opened("hierarchical", max_recent=2, top_k=9)
        run(store.write([Entry("Look there.", "", "working"), *facts(range(4))]))
        texts = run(store.read("Where does person0x live?", 1000)).texts
        assert len(texts) == len(set(texts)) == 5
        held = store.memory.recent.entries.values()  # type: ignore[attr-defined]
        assert [entry.kind for entry in held].count("factual") == 2

    def test_what_has_no_room_among_the_recent_goes_down_and_is_not_lost(self) -> None:
        store = opened("hierarchical", max_recent=100, top_k=100, max_bytes=65_536)
        run(store.write([Entry(f"{n} " + "long " * 1000, f"key{n}") for n in range(5)]))
        texts = run(store.read("long", 10**6)).texts
        assert sorted(int(text.split()[0]) for text in texts) == [0, 1, 2, 3, 4]


class TestWrites:
    def test_what_cannot_be_built_in_goes_on_waiting(self) -> None:
        class Fails(LearnedMemory):
            fails = True

            async def write(self, entries: Sequence[Entry]) -> Work:
                if self.fails:
                    raise ValueError("not now")
                return await super().write(entries)

        inner = Fails(NoteList(100), count_words, 10_000)
        memory = DeferredMemory(inner, 0, 10_000)

        async def reads() -> tuple[str, ...]:
            await memory.write([Entry("Ann left.")])
            with pytest.raises(ValueError, match="not now"):
                await memory.read("", 100)
            inner.fails = False
            return (await memory.read("", 100)).texts

        assert run(reads()) == ("1: Ann left.",)

    def test_they_wait_for_each_other(self) -> None:
        under_way = list[int]()

        class Slow(LearnedMemory):
            async def write(self, entries: Sequence[Entry]) -> Work:
                under_way.append(1)
                await asyncio.sleep(0)
                assert len(under_way) == 1
                return Work(under_way.pop())

        store = MemoryStore(Slow(NoteList(100), count_words, 10_000), 100)

        async def both() -> list[Work]:
            return await asyncio.gather(*(store.write([Entry("a")]) for _ in range(3)))

        assert [work.tokens for work in run(both())] == [1, 1, 1]

    def test_who_writes_more_than_there_are_bytes_for_is_told(self) -> None:
        memory = LearnedMemory(NoteList(10_000), count_words, 2000)
        assert run(memory.write([Entry("short")])).message == ""
        assert run(memory.write([Entry("long " * 1000)])).message == FULL_MESSAGE
        assert memory.size_bytes <= 2000

    def test_half_of_a_keys_words_find_it_where_half_is_asked_for(self) -> None:
        store = opened("key_value", min_overlap=0.5)
        run(store.write([Entry("Rome", "ann city")]))
        assert [run(store.read(query, 10)).texts for query in ("ann", "bea")] == [("Rome",), ()]


class TestTheirOwnFunctions:
    @pytest.mark.parametrize("name", ["twice", "later"])
    def test_vectors_may_be_somebody_elses(self, name: str) -> None:
        async def read() -> tuple[str, ...]:
            store = opened("index", embed=f"tests.marft_envs.test_memory_parts:{name}", dimensions=8, top_k=1)
            await store.write([Entry("aeaeae"), Entry("tntn"), Entry("")])
            return (await store.read("tnnt", 10)).texts

        assert run(read()) == ("tntn",)

    def test_vectors_of_another_length_change_nothing_and_are_refused_in_words(self) -> None:
        store = opened("index", embed="tests.marft_envs.test_memory_parts:too_short", dimensions=8)
        with pytest.raises(ValueError, match="must give a vector of 8 finite numbers for each of 1 texts; it gave 1x1"):
            run(store.write([Entry("a")]))
        assert store.size_bytes == 0

    @pytest.mark.parametrize("given", [[[1, float("nan")]], [["x", "y"]], [[1, 2], [3]], None])
    def test_what_are_no_vectors_is_refused(self, given: object) -> None:
        with pytest.raises(ValueError, match="set dimensions"):
            validate_embeddings(given, 1, 2, "mine")

    def test_vectors_of_any_length_are_compared_by_their_direction(self) -> None:
        assert validate_embeddings([[3.0, 4.0], [0.0, 0.0]], 2, 2, "mine").tolist() == [
            pytest.approx([0.6, 0.8]),
            [0.0, 0.0],
        ]

    def test_a_summary_of_somebody_elses_goes_when_a_part_of_it_is_forgotten(self) -> None:
        async def read() -> list[str]:
            store = opened("summary", summarizer="tests.marft_envs.test_memory_parts:shorter")
            await store.write(facts([1]))
            await store.write(facts([2]))
            whole = (await store.read("", 100)).text
            await store.forget("person1x")
            return [whole, (await store.read("", 100)).text]

        assert run(read()) == ["Person1x lives at place1y and Person2x lives at place2y.", ""]

    def test_a_summary_keeps_its_size_whoever_makes_it(self) -> None:
        store = opened("summary", summarizer="tests.marft_envs.test_memory_parts:talkative", max_tokens=20)
        run(store.write(facts([1])))
        assert run(store.read("", 1000)).texts == ()
        store = opened("summary", summarizer="tests.marft_envs.test_memory_parts:no_list")
        with pytest.raises(ValueError, match="must give a list of texts; it gave a str"):
            run(store.write(facts([1])))

    def test_a_line_that_stays_keeps_its_keys(self) -> None:
        before = [SummaryLine("a", frozenset(["x"]), "working"), SummaryLine("b", frozenset(["y"]), "factual")]
        assert assign_keys(before, ["a", "", "c"]) == [before[0], SummaryLine("c", frozenset(["x", "y"]), "factual")]

    @pytest.mark.parametrize(
        ("name", "keys", "told"),
        [
            ("index", {"embed": "tests.marft_envs.test_memory_parts:PLAIN"}, "is no function"),
            ("index", {"embed": "nowhere:thing"}, "cannot import"),
            ("summary", {"summarizer": "tests.marft_envs.test_memory_parts:TEAM"}, "is no function"),
            ("index", {"dimensions": 1024, "max_bytes": 16_384}, "take max_bytes of at least 65536"),
        ],
    )
    def test_what_cannot_be_is_refused_at_once(self, name: str, keys: dict[str, Any], told: str) -> None:
        with pytest.raises(ValueError, match=told):
            part(name, **keys)


class TestAsTools:
    def test_agents_remember_recall_and_forget(self) -> None:
        source = MemoryToolSettings(store=part("index", top_k=3), budget=20).connect()
        assert [tool.name for tool in source.tools] == ["remember", "recall", "forget"]
        session, other = (source.open(Task("t", ""), 0) for _ in range(2))

        async def calls() -> list[str]:
            return [
                await session.call("recall", {}),
                await session.call("remember", {"text": "Ann lives in Rome.", "key": "ann city"}),
                await session.call("remember", {"text": "Ann lives in Oslo.", "key": "Ann city"}),
                await session.call("recall", {"question": "Where does Ann live?"}),
                await other.call("recall", {}),
                await session.call("forget", {"key": "ann city"}),
                await session.call("forget", {"key": "ann city"}),
                await session.call("recall", {"question": "Ann"}),
            ]

        assert run(calls()) == [
            "(nothing)", "Remembered.", "Remembered.", "Ann lives in Oslo.", "(nothing)", "Forgotten: 1.",
            "Nothing was remembered under 'ann city'.", "(nothing)",
        ]  # fmt: skip

    def test_a_call_that_does_not_fit_is_said_to_the_agent(self) -> None:
        session = MemoryToolSettings().connect().open(Task("t", ""), 0)
        for arguments, told in (({}, "text"), ({"text": "a", "kind": "odd"}, "factual"), ({"text": 3}, "string")):
            with pytest.raises(ValueError, match=told):
                run(session.call("remember", arguments))

    @pytest.mark.parametrize("name", SYSTEMS)
    def test_every_system_stands_in_a_recipe_and_is_read_again(self, name: str) -> None:
        table = {"name": "memory", "store": {"name": name, "construction": "lazy", "max_working_entries": 2}}
        made = parse_recipe(noted(table))
        assert f'name = "{name}"' in to_toml(made)
        assert parse_recipe(tomllib.loads(to_toml(made))) == made
        assert made.tools["notes"].store.construction == "lazy"  # type: ignore[attr-defined]

    def test_a_system_that_nothing_goes_by_gets_a_suggestion(self) -> None:
        with pytest.raises(ValueError, match=r"no memory is called 'indx'; did you mean 'index'\?"):
            parse_recipe(noted({"name": "memory", "store": {"name": "indx"}}))


class TestInTheWorld:
    @pytest.mark.parametrize("style", ["plain", "full"])
    @pytest.mark.parametrize("ways", [{"writer": "", "retriever": ""}, {"retriever": ""}, {"retrieval": "words"}])
    def test_with_room_enough_a_flawless_team_answers_as_well_as_it_reads(
        self, style: Any, ways: dict[str, str]
    ) -> None:
        world = Memory(**{**PLAIN, "style": style}, store=part("index", top_k=100), budget=10_000, **ways)
        plays = [by_script(world, task, TEAM) for task in world.tasks("train")[:5]]
        assert [play.reward for play in plays] == [pytest.approx(1.0)] * 5
        assert len(plays[0].steps) == world.tasks("train")[0].data["fewest_steps"]
        measures = plays[0].last.info["measures"]
        assert measures["retrieval_recall"] == 1.0
        assert min(measures["write_tokens"], measures["read_tokens"], measures["memory_bytes"]) > 0

    @pytest.mark.parametrize("name", SYSTEMS)
    def test_every_system_plays_and_answerers_see_no_more_than_the_budget(self, name: str) -> None:
        world = Memory(**PLAIN, store=part(name), budget=12, retrieval="words")
        play = by_script(world, world.tasks("train")[0], TEAM)
        for shown in play.observations:
            notes, found, _ = shown.views.get("answerer", "").rpartition("\n\nQuestion: ")
            assert not found or notes == "(nothing)" or tokens(notes) <= 12

    def test_who_reads_and_writes_earns_what_was_found(self) -> None:
        world = Memory(**PLAIN, store=part("index"), budget=1000, retrieval="words", local_weight=1.0)
        task = world.tasks("train")[0]
        play = by_script(world, task, TEAM)
        asked = sum(bool(one["needs"]) for one in task.data["questions"]) / 4
        recall = play.last.info["measures"]["retrieval_recall"]
        assert play.earned("retriever") == play.earned("writer") == pytest.approx(recall * asked)

    @pytest.mark.parametrize(
        ("keys", "told"),
        [
            ({"writer": ""}, "nobody keeps notes; name a role, or give a store"),
            ({"store": {"name": "log"}}, "a store is asked in words; set it to 'words'"),
            ({"store": {"name": "lag"}, "retriever": ""}, "did you mean 'log'"),
            ({"store": {}, "retriever": ""}, "needs 'name': one of hierarchical"),
        ],
    )
    def test_what_does_not_go_together_is_refused(self, keys: dict[str, Any], told: str) -> None:
        with pytest.raises(ValueError, match=told):
            Memory(**keys)

    def test_the_recipe_of_the_world_goes_on_as_it_was(self) -> None:
        world: Any = load_recipe("memory").environment
        assert world.store is None
        assert "store" not in world.model_dump(exclude_none=True)
