"""Who remembers a conversation: what a retriever may pick, what a writer is told, what counts as progress."""

from __future__ import annotations

import asyncio
from datetime import date, timedelta
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from marft.common.types import Observation, Step
from marft_envs.memory.conversations import Chunk, Question
from marft_envs.memory.environment import Memory
from marft_envs.memory.generator import MONTHS, day_before, draw_dates
from marft_envs.memory.session import MAX_OPTIONS, MemorySession
from tests.visits import joint

KEYS: dict[str, Any] = {
    "writer": "writer", "retriever": "retriever", "answerer": "answerer", "budget": 4000, "top_k": 2, "retrieval": "text",
    "grading": "exact", "local_weight": 1.0, "threshold": 1.0,
}  # fmt: skip
NOTES = ("Ann lives in Rome.", "Bea is a cook.", "Cal likes rice.")
ASKED = (
    Question("single", "Where does Ann live?", "Rome", (("Ann", "Rome"),)),
    Question("single", "What food does Cal like?", "rice", (("Cal", "rice"),)),
)


def shown_after(notes: str, *texts: str, **rules: Any) -> tuple[Observation, list[Step]]:
    """What the retriever is shown first once these notes are taken, and the steps of what is said then by turns."""
    session = MemorySession([Chunk("Day 1", ("Hello.",))], ASKED, Memory(**{**KEYS, **rules}))
    asyncio.run(session.reset())
    steps = [asyncio.run(session.step(joint({"writer": notes})))]
    first = steps[0].observation
    for text in texts:
        (role,) = steps[-1].observation.turn
        steps.append(asyncio.run(session.step(joint({role: text}))))
    return first, steps[1:]


def test_a_retriever_picks_as_many_notes_as_it_may_each_once() -> None:
    for picks, said, read in (
        (2, "1 2 3", NOTES[:2]), (2, "3 3 1", (NOTES[2], NOTES[0])), (1, "2, 1", NOTES[1:2]), (9, "0 4 2", NOTES[1:2])
    ):  # fmt: skip
        _, (picked,) = shown_after("\n".join(NOTES), said, top_k=picks)
        assert picked.observation.views["answerer"].splitlines()[:-2] == list(read)


def test_who_picks_more_than_it_may_earns_what_it_may_pick_alone() -> None:
    _, (picked,) = shown_after("\n".join(reversed(NOTES)), "1 2 3", top_k=2)  # Ann's is the third
    assert picked.agent_rewards == {"retriever": 0.0}


def test_progress_is_what_was_answered_right() -> None:
    _, steps = shown_after("\n".join(NOTES), "1", "Oslo", "3", "rice")
    assert [step.info["progress"] for step in steps] == [0.0, 0.0, 0.0, 0.5]  # type: ignore[index]
    assert (steps[-1].terminated, steps[-1].success) == (True, False)


def test_a_writer_is_told_what_could_not_be_done() -> None:
    chunks = [Chunk("Day 1", ("Hello.",)), Chunk("Day 2", ("Bye.",))]
    session = MemorySession(chunks, ASKED, Memory(**{**KEYS, "budget": 10}))
    assert asyncio.run(session.reset()).views["writer"].startswith("Day 1.\nHello.\n\nNotes (0 of 10):\n(nothing)")
    step = asyncio.run(session.step(joint({"writer": "Ann lives in Rome.\n7: No."})))
    told, rest = step.observation.views["writer"].split("\n\n", 1)
    assert told == "The notes are full: the rest was cut. There is no note 7."
    assert rest == "Day 2.\nBye.\n\nNotes (9 of 10):\n1: Ann lives"


@pytest.mark.parametrize(("notes", "picks", "count"), [(3, 2, 1 + 3 + 3), (20, 3, MAX_OPTIONS), (150, 1, 151)])
def test_a_retriever_that_chooses_can_pick_every_note_alone(notes: int, picks: int, count: int) -> None:
    first, _ = shown_after("\n".join(f"Note {n}." for n in range(notes)), top_k=picks, retrieval="choices")
    options = first.options["retriever"]
    assert len(set(options)) == len(options) == count
    assert {"none", *map(str, range(1, notes + 1))} <= set(options)


@pytest.mark.parametrize("seed", range(20))
def test_the_day_before_one_is_no_others(seed: int) -> None:
    days = draw_dates("full", 40, Random(seed))
    assert not {day_before(day) for day in days} & set(days)
    read = [date(int(year), MONTHS.index(month) + 1, int(day)) for day, month, year in map(str.split, days)]
    assert all(one + timedelta(days=1) < other for one, other in pairwise(read))
