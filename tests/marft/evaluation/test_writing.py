"""How agents write: against slow references, and of texts whose answer anyone can count."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from marft.common.token_data import TokenSource
from marft.common.types import Action, Episode, Observation, Task, Transition
from marft.evaluation.guards.history import CHARACTER_KINDS
from marft.evaluation.writing_metrics import (
    character_shares,
    compute_text_metrics,
    count_scripts,
    format_rates,
    other_script,
    repetition,
)
from tests.episodes import make_action

TOKENS = st.lists(st.integers(3, 6), min_size=1, max_size=24)


def said(text: str, agent: str = "a", tokens: int = 2) -> Action:
    return make_action(agent, text=text, tokens=tuple(range(10, 10 + tokens)))


def episode(*actions: Action, prompt: str = "o", shown: str = "o") -> Episode:
    return Episode(Task("t", prompt), "s", 0, actions, "terminated", (Transition(Observation(shown), 0.0),))


@given(st.lists(TOKENS, min_size=1, max_size=3))
def test_repetition_is_that_of_a_count_by_hand(texts: list[list[int]]) -> None:
    shares = []
    for tokens in texts:
        grams = [tuple(tokens[i : i + 4]) for i in range(len(tokens) - 3)]
        if grams:
            seen = [gram for i, gram in enumerate(grams) if gram in grams[:i]]
            shares.append(len(seen) / len(grams))
    found = repetition([make_action(tokens=tuple(tokens)) for tokens in texts])
    assert found == (pytest.approx(np.mean(shares)) if shares else None)


def test_repetition_is_a_mean_over_actions_that_have_four_tokens() -> None:
    once, often, short = (1, 2, 3, 4, 1, 2, 3, 4), (7, 7, 7, 7, 7, 7), (7, 7, 7)
    assert repetition([make_action(tokens=once)]) == pytest.approx(1 / 5)  # of 5 grams, the last is the first again
    assert repetition([make_action(tokens=often)]) == pytest.approx(2 / 3)
    assert repetition([make_action(tokens=tokens) for tokens in (once, short, often)]) == pytest.approx(13 / 30)
    assert repetition([make_action(tokens=short)]) is None
    assert repetition([make_action(tokens=(7, 7, 7, 7))]) == 0.0


def test_what_tools_said_is_no_repetition_of_the_agents_own() -> None:
    marks = (TokenSource.SAMPLED,) * 4 + (TokenSource.TOOL,) * 8
    assert repetition([make_action(tokens=(1, 2, 3, 4, *[5] * 8), marks=marks)]) == 0.0


@pytest.mark.parametrize(
    ("shown", "text", "share"),
    [
        ("2 + 3", "2 + 3 = 5", None),
        ("Add.", "It is five", 0.0),
        ("Add.", "пять", 1.0),
        ("Сложи, in short", "пять is five", 0.0),
        ("数", "ひらがなとカタカナ", 0.0),
        ("Add.", "ﬁve ｆｉｖｅ", 0.0),
        ("Add.", "five 五五五五", 0.5),
    ],
)
def test_letters_of_scripts_that_the_task_does_not_use(shown: str, text: str, share: float | None) -> None:
    assert other_script([(shown, text)]) == share


@given(st.text(max_size=40))
def test_any_text_has_a_script_for_its_letters_alone(text: str) -> None:
    assert count_scripts(text).total() <= sum(character.isalpha() for character in text)
    assert other_script([(text, text)]) in (None, 0.0)


@given(st.lists(st.text(max_size=20), max_size=4))
def test_kinds_of_characters_add_up_to_all_of_them(texts: list[str]) -> None:
    shares = character_shares(texts)
    assert [*shares] == ([f"characters/{kind}" for kind in CHARACTER_KINDS] if any(texts) else [])
    assert sum(shares.values()) == pytest.approx(1.0 if any(texts) else 0.0)


def test_each_character_is_of_one_kind() -> None:
    shares = character_shares(["Añж数 12٣", "\n\r\t\u3000 ½!?_\x00"])
    counts = {kind: round(18 * shares[f"characters/{kind}"]) for kind in CHARACTER_KINDS}
    assert counts == {"letters": 4, "digits": 3, "spaces": 4, "breaks": 2, "marks": 5}


def test_what_an_environment_shows_later_counts_where_it_was_shown() -> None:
    steps = (Transition(Observation("Add."), 0.0), Transition(Observation("Теперь"), 0.0))
    first, later = said("пять"), replace(said("пять"), key=said("").key._replace(step=1))
    played = Episode(Task("t", "Add."), "s", 0, (first, later), "terminated", steps)
    assert compute_text_metrics([played], ("a",))["agents/a/other_script"] == 0.5


def test_shares_of_the_teams_tokens_and_nothing_of_an_agent_that_was_silent() -> None:
    metrics = compute_text_metrics([episode(said("x", "a", 6), said("y", "b", 2))], ("a", "b", "c"))
    assert [metrics[f"agents/{role}/token_share"] for role in "abc"] == [0.75, 0.25, 0.0]
    assert [metrics.get(f"agents/{role}/characters/letters") for role in "abc"] == [1.0, 1.0, None]
    assert "agents/a/token_share" not in compute_text_metrics([episode(said("x"))], ("a",))


def test_of_two_agents_both_have_a_share_and_where_nobody_wrote_nobody_has() -> None:
    tool = make_action("b", tokens=(1, 2, 3, 4), marks=(TokenSource.SAMPLED, *[TokenSource.TOOL] * 3), text="y")
    metrics = compute_text_metrics([episode(said("x", "a", 2)), episode(said("x", "a", 1), tool)], ("a", "b"))
    assert [metrics[f"agents/{role}/token_share"] for role in "ab"] == [0.75, 0.25]
    assert compute_text_metrics([episode()], ("a", "b")) == compute_text_metrics([], ("a", "b")) == {}


def test_a_declared_format_is_a_share_of_actions_and_one_that_searches_for_ever_does_not_hold(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("marft.config.patterns.SEARCH_SECONDS", 0.01)
    played = [episode(said(r"\boxed{5}")), episode(said("5")), episode(said("a" * 64 + "!"))]
    assert format_rates(played, {"a": r"\\boxed\{\d+\}", "b": "x"}) == {"agents/a/format_rate": pytest.approx(1 / 3)}
    assert format_rates(played, {"a": r"(a|aa)+$"}) == {"agents/a/format_rate": 0.0}
