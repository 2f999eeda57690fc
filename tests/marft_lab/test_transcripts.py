"""What a critic reads of an attempt: everything that tells why it went as it did, in order."""

from __future__ import annotations

from dataclasses import replace

from marft.common.types import Episode, Observation, Task, ToolCall, Transition
from marft_lab.prompt_optimization.prompts import MAX_CHARACTERS, AttemptTranscript
from tests.episodes import make_action


def episode(*steps: Transition, **changes: object) -> Episode:
    first = replace(
        make_action("searcher", text="It costs 3."), intermediate_texts=("I look.",),
        calls=(ToolCall("search", '{"q": "tea"}', "tea: 3"), ToolCall("", "{", "no such tool", error=True)),
    )  # fmt: skip
    second = make_action("answerer", text="4", step=1)
    return replace(Episode(Task("t", "Tea?"), "train/0", 0, (first, second), "terminated", steps, False), **changes)  # type: ignore[arg-type]


STEPS = (Transition(Observation("Tea?"), 0.0), Transition(Observation("So far: 3."), 0.25))


def test_it_has_turns_calls_with_their_answers_what_was_shown_and_what_came_of_it() -> None:
    assert AttemptTranscript.from_episode(episode(*STEPS)).messages == (
        ("searcher", "I look."),
        ("search of searcher", '{"q": "tea"} → tea: 3'),
        ("no tool of searcher", "{ → no such tool, which failed"),
        ("searcher", "It costs 3."),
        ("environment", "So far: 3."),
        ("answerer", "4"),
        ("outcome", "reward 0.25, not solved"),
    )


def test_agents_have_the_names_that_are_given() -> None:
    names = [name for name, _ in AttemptTranscript.from_episode(episode(*STEPS), ["look up", "answer"]).messages]
    assert names == [
        "look up",
        "search of look up",
        "no tool of look up",
        "look up",
        "environment",
        "answer",
        "outcome",
    ]


def test_what_is_long_is_cut_and_views_of_single_agents_are_shown() -> None:
    shown = Observation("Tea?", views={"searcher": "x" * 2 * MAX_CHARACTERS})
    (name, text), *_ = AttemptTranscript.from_episode(episode(Transition(shown, 0.0), STEPS[1])).messages
    assert name == "environment"
    assert "To searcher:" in text
    assert len(text) < MAX_CHARACTERS + 50


def test_what_nobody_judged_is_not_called_failed_and_actions_without_a_step_are_there() -> None:
    found = AttemptTranscript.from_episode(episode(STEPS[0], success=None)).messages
    assert found[-1] == ("outcome", "reward 0")
    assert ("answerer", "4") in found


def test_a_proposer_is_told_it() -> None:
    assert AttemptTranscript.from_episode(episode(*STEPS)) == AttemptTranscript(
        "Tea?", AttemptTranscript.from_episode(episode(*STEPS)).messages
    )
