"""Texts that a model has written without end: what reads them takes time in proportion, and finds what it found."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marft.agents.answers import statement_in
from marft.agents.memories.notebook import Notebook
from marft.inference.tool_format import MOST_UNREADABLE, Syntax
from marft.rewards.comparing import number_stated
from marft.rewards.quantities import quantities_in
from marft_envs.apart.inside.calls import called
from marft_envs.code import proposing
from marft_envs.code.proposing import program_in
from marft_envs.gyms.acts import chosen
from marft_envs.instructions.counting import sentences_of
from marft_envs.instructions.registry import KINDS

MANY = 20_000
SECONDS = 0.5  # which any of these took several times over, or minutes, while its pattern tried every way
F = "detectable_format:"
CALLS = Syntax("<tool_call>", "name", "arguments")


def follows(name: str, **parameters: int) -> Callable[[str], object]:
    return lambda text: KINDS[name].follows(text, parameters)


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("." * MANY + '"' * MANY + "x", sentences_of),
        ("." * MANY + "x", sentences_of),
        ("\n" * MANY, follows(f"{F}number_bullet_lists", num_bullets=1)),
        ("<<" * MANY, follows(f"{F}title")),
        ("[" * MANY, follows("detectable_content:number_placeholders", num_placeholders=1)),
        ("`" * MANY, program_in),
        ("```" + "a" * MANY, program_in),
        ("Input:\nOutput:" + "\n" * MANY, lambda text: proposing.tests_in(text, "", ())),
        ("1" * MANY, lambda text: chosen(text, [str(number) for number in range(256)])),
        ("\n*" * MANY, Notebook(10**9).write),
        ("<tool_call></tool_call>" * MANY, called),
        ("<tool_call>{" * MANY, CALLS.read),
        ("<think><tool_call>[</think>" * MANY, CALLS.read),
        ("The answer is 5" + " " * MANY + "x", statement_in),
        ("The answer is 1" + "a" * MANY + "\u00b7 2 \u00b7", number_stated),
        ("The answer is 1 " + "a" * MANY + " 2", number_stated),
        ("1" + " " * MANY + "2", number_stated),
        ("1" + " " * MANY + "2", quantities_in),
        ("1 km" + "\n" * MANY + "2", quantities_in),
    ],
)
def test_an_endless_text_is_read_in_time(text: str, read: Callable[[str], object]) -> None:
    began = time.process_time()
    read(text)
    assert time.process_time() - began < SECONDS


def test_what_is_found_stays_the_same() -> None:
    assert sentences_of('He said "Go." Then… "Why?!" And 。。x') == [
        'He said "Go."',
        "Then…",
        '"Why?!"',
        "And 。。",
        "x",
    ]
    assert [KINDS[f"{F}title"].follows(text, {}) for text in ("<<a>>", "x <<<a>>> y", "<<>>", "<< >>", ">>a<<")] == [
        True, True, False, False, False,
    ]  # fmt: skip
    assert KINDS[f"{F}number_bullet_lists"].follows("\n\n* a\n - b\n\t* c\n** d", {"num_bullets": 3})
    assert KINDS["detectable_content:number_placeholders"].follows("[[a] b] [\n] [c]", {"num_placeholders": 2})
    assert not KINDS["detectable_content:number_placeholders"].follows("[[a] b] [\n] [c]", {"num_placeholders": 3})
    assert program_in("````python\nprint(1)\n```\nx\n````\n") == "print(1)\n```\nx\n"
    cases = proposing.tests_in("Input:\n1\nOutput:\n2\n\n\n Input: 3\nOutput: 4", "", ())
    assert [case.right for case in cases] == [("2\n\n",), ("4",)]


def test_calls_that_cannot_be_read_hold_no_more_than_was_written() -> None:
    text = "<tool_call>{" * MANY
    calls = CALLS.read(text)
    assert len(calls) == MOST_UNREADABLE + 1
    assert all(call.error for call in calls)
    assert sum(len(call.arguments) for call in calls) <= len(text)
    readable = '<tool_call>{"name": "add", "arguments": {"text": "a <tool_call> in it"}}'
    assert [call.name for call in CALLS.read("<tool_call>{" + readable)] == ["", "add"]


@given(st.lists(st.sampled_from(["Ann has a cat", "1: Bea", "2: a longer note", "drop 1", "drop 9", "- x", "nothing"])))
def test_a_notebook_knows_its_size(lines: list[str]) -> None:
    notebook = Notebook(40)
    for line in lines:
        notebook.write(line)
        assert notebook.size == len("\n".join(notebook.notes)) <= 40
