"""What of an episode goes into rows, and which of several episodes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from marft.common.types import Episode, Observation, Prompt, Task, ToolCall, Transition
from marft_lab.synthesis import session
from marft_lab.synthesis.candidates import Candidate
from marft_lab.synthesis.rows import build_rows, episode_name, to_trace
from marft_lab.synthesis.teachers import Teacher
from marft_serve.traces.replayer import ReplayedTrace, ReplayedTurn, TraceReplayer
from marft_serve.traces.types import TracedEpisode
from tests.cold_worlds import cold
from tests.episodes import make_action


def episode(*actions: Any, task: str = "t", sample: int = 0, reward: float = 1.0) -> Episode:
    steps = (Transition(Observation("o"), reward),)
    return Episode(Task(task, "o"), "traces", sample, actions or (make_action(),), "terminated", steps, True)


class Teller:
    """Says every trace again, as an episode that solved its task, and leaves some out."""

    def __init__(self, lost: Sequence[str] = (), success: bool | None = True) -> None:
        self.lost, self.success = lost, success

    def replay(self, traces: Iterable[TracedEpisode], grade: bool) -> Iterator[ReplayedTrace]:
        assert not grade
        for trace in traces:
            if trace.id not in self.lost:
                yield ReplayedTrace(trace, replace(episode(), success=self.success), ())


def test_a_turn_that_was_cut_off_is_not_told_as_a_whole_one() -> None:
    for finish in ("stop", "length"):
        (turn,) = to_trace(episode(replace(make_action(), finish=finish)), 0).turns
        assert turn.complete is (finish == "stop")
    called_first = replace(
        make_action(), finish="length", intermediate_texts=("I add.",), calls=(ToolCall("add", "{}", round=0),)
    )
    assert [turn.complete for turn in to_trace(episode(called_first), 0).turns] == [True, False], (
        "it went on after a tool"
    )


def test_what_an_agent_earned_itself_is_the_sum_over_all_steps() -> None:
    steps = tuple(Transition(Observation("o"), 1.0, {"a": earned}) for earned in (0.25, 0.5))
    action = make_action("a")
    said = [ReplayedTurn(action.key, turn, 1, Prompt(action.prompt)) for turn in to_trace(episode(action), 0).turns]
    played = replace(episode(action), transitions=steps)
    (row,) = build_rows(ReplayedTrace(to_trace(played, 0), played, said), played, 0, {})
    assert (row["from"]["own_reward"], row["from"]["reward"]) == (0.75, 2.0)


def test_what_comes_to_another_end_when_it_is_told_again_is_left_out() -> None:
    some = [episode(), episode(sample=1)]
    kept, passage = session._replay_kept(cast("TraceReplayer", Teller()), 0, some)
    assert [one.episode for one in kept] == some
    assert passage.dropped == {}
    kept, passage = session._replay_kept(cast("TraceReplayer", Teller([episode_name(some[0])], success=False)), 0, some)
    assert not kept
    assert passage.dropped == {
        "comes to another end when the recipe's team says it": 1, "the recipe's team cannot say it": 1
    }  # fmt: skip


def test_of_equally_good_episodes_those_with_the_fewest_turns_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Staged(Teller):
        def __init__(self, *_: object) -> None:
            super().__init__()

        def __enter__(self) -> Staged:
            return self

        def __exit__(self, *_: object) -> None:
            return None

        def render_fixed_prompts(self) -> dict[str, str]:
            return {}

    monkeypatch.setattr(session, "TraceReplayer", Staged)
    monkeypatch.setattr(session, "load_tokenizer_formats", lambda _: {})
    monkeypatch.setattr(session, "_held_out_tasks", lambda *_: [])
    monkeypatch.setattr(session, "_build_candidates", lambda _, episodes: [Candidate(one) for one in episodes])
    turns = [make_action(call=call, index=call, sample=call) for call in range(3)]
    some = [
        episode(*turns, sample=0), episode(*turns[:1], sample=1, reward=0.5), episode(*turns[:2], sample=2),
        episode(*turns, sample=3),
    ]  # fmt: skip
    run = cold(tmp_path, **{"synthesis.max_per_task": 1, "synthesis.filters": [{"name": "success"}]})
    kept, passages = session._filter_episodes(run, Teacher(run, {}), some)
    assert [one.episode.sample for one in kept] == [2]
    assert [one.kept_count for one in passages] == [4, 4, 1]
