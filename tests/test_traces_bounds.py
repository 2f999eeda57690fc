"""Traces that are damaged on purpose, or larger than anybody needs, are read in bounded memory and end."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from marft.traces import assembling
from marft.traces.conversations import MOST_MESSAGES
from marft.traces.reading import read_traces
from marft.traces.record import MOST_TURNS, Tally
from marft.traces.spans import spans_of
from tests.tracing import agent_attributes, current, otlp, read, readable, span, write

USER = {"role": "user", "content": "1 + 1 ="}
SAID = {"role": "assistant", "content": "2"}
CALL, _ = current([USER], SAID)


class TestSpans:
    def test_a_span_that_lies_in_what_it_is_the_parent_of_is_read_once(self, tmp_path: Path) -> None:
        told = [span(1, "outer", agent_attributes("planner"), parent=2), span(2, "chat", CALL, parent=1, links=[1, 2])]
        (episode,), tally = read(write(tmp_path / "t.jsonl", readable(told)))
        assert [(turn.agent, turn.parents) for turn in episode.turns] == [("planner", ())]
        assert not tally.count()

    def test_a_turn_depends_on_the_last_one_that_had_ended(self, tmp_path: Path) -> None:
        told = [
            span(1, "helper", agent_attributes("helper"), start=0.0), span(2, "chat", CALL, 1, start=1.0),
            span(3, "chat", CALL, 1, start=2.0), span(4, "chat", CALL, start=2.2, links=[1]),
        ]  # fmt: skip
        (episode,), _ = read(write(tmp_path / "t.jsonl", otlp(told)))
        assert [int(name, 16) for name in episode.turns[2].parents] == [2]

    def test_a_turn_depends_on_all_that_it_is_linked_to(self, tmp_path: Path) -> None:
        told = [span(1, "chat", CALL), span(2, "chat", CALL), span(3, "chat", CALL, links=[1, 2])]
        (episode,), _ = read(write(tmp_path / "t.jsonl", otlp(told)))
        assert [int(name, 16) for name in episode.turns[2].parents] == [1, 2]

    def test_what_a_tool_answered_is_what_was_first_told_of_it(self, tmp_path: Path) -> None:
        function = {"name": "add", "arguments": "{}"}
        calls = [{"id": name, "type": "function", "function": function} for name in "cd"]
        calling = {"role": "assistant", "content": "", "tool_calls": calls}
        later = [[("c", "1")], [("c", "trimmed"), ("d", "2")]]
        told = [span(1, "chat", current([USER], calling)[0])]
        for number, answers in enumerate(later, 2):
            tools = [{"role": "tool", "tool_call_id": name, "content": text} for name, text in answers]
            told.append(span(number, "chat", current([USER, calling, *tools], SAID)[0]))
        (episode,), _ = read(write(tmp_path / "t.jsonl", otlp(told)))
        assert [call.output for call in episode.turns[0].calls] == ["1", "2"]

    def test_of_several_choices_the_first_is_what_was_said(self, tmp_path: Path) -> None:
        said = [{"role": "assistant", "parts": [{"type": "text", "content": text}]} for text in ("2", "3")]
        two = {**CALL, "gen_ai.output.messages": json.dumps(said)}
        (episode,), _ = read(write(tmp_path / "t.jsonl", otlp([span(1, "chat", two)])))
        assert [turn.text for turn in episode.turns] == ["2"]

    def test_what_lies_very_deep_is_read_too(self, tmp_path: Path) -> None:
        deep = [span(number, "step", {}, parent=number - 1, start=0.0) for number in range(1, 1000)]
        told = [*deep, span(1000, "chat", CALL, parent=999, start=1.0)]
        (episode,), _ = read(write(tmp_path / "t.jsonl", otlp(told)))
        assert len(episode.turns) == 1

    @pytest.mark.parametrize(("name", "most_open"), [("MOST_TEXT", 25_000), ("MOST_SPANS", 3)])
    def test_what_is_open_has_so_many_spans_and_characters_at_most(
        self, name: str, most_open: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(assembling, name, most_open)
        long, _ = current([{**USER, "content": "x" * 6000}], SAID)
        tally = Tally()
        assembly, closed, most = assembling.Assembly(tally), [], 0
        for trace in (1, 2, 3, 4, 5, 1):
            (one,) = readable([{**span(len(closed) + 1, "chat", long), "trace": trace}])
            for found in spans_of(one, "here", tally):
                assert found.size > 6000
                closed += [episode.id for episode in assembly.add(found)]
            most = max(most, len(assembly._traces))
        assert (most, [int(name, 16) for name in closed]) == (3, [1, 2])
        assert [int(episode.id, 16) for episode in assembly.close()] == [3, 4, 5]
        assert tally.count("span") == 1


class TestConversations:
    def test_turns_beyond_those_of_an_episode_are_counted_also_where_it_has_many_lines(self, tmp_path: Path) -> None:
        row = {"episode": "e", "messages": [USER, SAID] * 100}
        found, tally = read(write(tmp_path / "t.jsonl", [row] * 4 + [{"episode": "f", "messages": [USER, SAID]}]))
        assert [len(episode.turns) for episode in found] == [MOST_TURNS, 1]
        assert len({turn.id for turn in found[0].turns}) == MOST_TURNS
        assert tally.skipped == {
            f"turn: its episode has more than {MOST_TURNS} turns": (
                400 - MOST_TURNS, ["t.jsonl:3"] * 5,
            )
        }  # fmt: skip

    def test_what_later_lines_say_of_an_episode_counts(self, tmp_path: Path) -> None:
        rows = [
            {"episode": "e", "messages": [USER, SAID], "reward": 0.5},
            {"episode": "e", "messages": [USER, {**SAID, "content": "3"}], "task": "sum/1", "reward": 1.0},
            {"episode": "e", "messages": [USER, {**SAID, "content": "4"}], "task": "sum/2"},
        ]
        ((episode,), _) = read(write(tmp_path / "t.jsonl", rows))
        assert (episode.id, episode.task, episode.answer, episode.reward) == ("e", "sum/1", "4", 1.0)
        assert [turn.id for turn in episode.turns] == ["1", "1/1", "2/1"]

    def test_ids_of_calls_may_come_again(self, tmp_path: Path) -> None:
        call = {"id": "c", "type": "function", "function": {"name": "add", "arguments": "{}"}}
        calling = {"role": "assistant", "content": None, "tool_calls": [call]}
        told = [USER, calling, {"role": "tool", "tool_call_id": "c", "content": "1"}]
        told += [calling, {"role": "tool", "tool_call_id": "c", "content": "2"}, SAID]
        (episode,), _ = read(write(tmp_path / "t.jsonl", [{"messages": told}]))
        assert [call.output for turn in episode.turns for call in turn.calls] == ["1", "2"]

    def test_a_turn_that_very_many_messages_stand_before_is_counted(self, tmp_path: Path) -> None:
        rows = [{"messages": [USER] * count + [SAID]} for count in (MOST_MESSAGES, MOST_MESSAGES + 1)]
        (episode,), tally = read(write(tmp_path / "t.jsonl", rows))
        assert len(episode.turns[0].messages) == MOST_MESSAGES
        assert tally.count("turn") == 1


def long_episode(lines: int) -> Iterator[dict[str, Any]]:
    for number in range(lines):
        yield {"episode": "one", "messages": [USER, {**SAID, "content": f"{number} " + "x" * 1000}]}


@pytest.mark.slow
def test_memory_does_not_grow_with_the_lines_of_an_episode(tmp_path: Path) -> None:
    peaks = []
    for count in (500, 4000):
        path = tmp_path / f"{count}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in long_episode(count)))
        tracemalloc.start()
        assert sum(1 for _ in read_traces([path], Tally())) == 1
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0]
