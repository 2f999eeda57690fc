"""Texts that a model has written without end: what reads them takes time in proportion, and finds what it found."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marft.agents.answers import find_statement
from marft.agents.memories.notes import NoteList
from marft.inference.call_syntax import MAX_PARSE_ERRORS, JsonSyntax
from marft.rewards.quantities import parse_quantities
from marft.rewards.text_match import extract_number
from marft_envs.code import problems
from marft_envs.code.problems import extract_program
from marft_envs.env_process.worker.server import split_tool_calls
from marft_envs.gyms.texts import parse_choice
from marft_envs.instructions.kinds import KINDS
from marft_envs.instructions.texts import split_sentences

MANY = 20_000
SECONDS = 0.5  # which any of these took several times over, or minutes, while its pattern tried every way
F = "detectable_format:"
CALLS = JsonSyntax("<tool_call>")


def follows(name: str, **parameters: int) -> Callable[[str], object]:
    return lambda text: KINDS[name].check_text(text, parameters)


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("." * MANY + '"' * MANY + "x", split_sentences),
        ("." * MANY + "x", split_sentences),
        ("\n" * MANY, follows(f"{F}number_bullet_lists", num_bullets=1)),
        ("<<" * MANY, follows(f"{F}title")),
        ("[" * MANY, follows("detectable_content:number_placeholders", num_placeholders=1)),
        ("`" * MANY, extract_program),
        ("```" + "a" * MANY, extract_program),
        ("Input:\nOutput:" + "\n" * MANY, lambda text: problems.extract_tests(text, "", ())),
        ("1" * MANY, lambda text: parse_choice(text, [str(number) for number in range(256)])),
        ("\n*" * MANY, NoteList(10**9).write),
        ("<tool_call></tool_call>" * MANY, split_tool_calls),
        ("<tool_call>{" * MANY, CALLS.parse_calls),
        ("<think><tool_call>[</think>" * MANY, CALLS.parse_calls),
        ("The answer is 5" + " " * MANY + "x", find_statement),
        ("The answer is 1" + "a" * MANY + "\u00b7 2 \u00b7", extract_number),
        ("The answer is 1 " + "a" * MANY + " 2", extract_number),
        ("1" + " " * MANY + "2", extract_number),
        ("1" + " " * MANY + "2", parse_quantities),
        ("1 km" + "\n" * MANY + "2", parse_quantities),
    ],
)
def test_an_endless_text_is_read_in_time(text: str, read: Callable[[str], object]) -> None:
    began = time.process_time()
    read(text)
    assert time.process_time() - began < SECONDS


def test_what_is_found_stays_the_same() -> None:
    assert split_sentences('He said "Go." Then… "Why?!" And 。。x') == [
        'He said "Go."',
        "Then…",
        '"Why?!"',
        "And 。。",
        "x",
    ]
    assert [KINDS[f"{F}title"].check_text(text, {}) for text in ("<<a>>", "x <<<a>>> y", "<<>>", "<< >>", ">>a<<")] == [
        True, True, False, False, False,
    ]  # fmt: skip
    assert KINDS[f"{F}number_bullet_lists"].check_text("\n\n* a\n - b\n\t* c\n** d", {"num_bullets": 3})
    assert KINDS["detectable_content:number_placeholders"].check_text("[[a] b] [\n] [c]", {"num_placeholders": 2})
    assert not KINDS["detectable_content:number_placeholders"].check_text("[[a] b] [\n] [c]", {"num_placeholders": 3})
    assert extract_program("````python\nprint(1)\n```\nx\n````\n") == "print(1)\n```\nx\n"
    cases = problems.extract_tests("Input:\n1\nOutput:\n2\n\n\n Input: 3\nOutput: 4", "", ())
    assert [case.expected for case in cases] == [("2\n\n",), ("4",)]


def test_calls_that_cannot_be_read_hold_no_more_than_was_written() -> None:
    text = "<tool_call>{" * MANY
    calls = CALLS.parse_calls(text)
    assert len(calls) == MAX_PARSE_ERRORS + 1
    assert all(call.error for call in calls)
    assert sum(len(call.arguments) for call in calls) <= len(text)
    readable = '<tool_call>{"name": "add", "arguments": {"text": "a <tool_call> in it"}}'
    assert [call.name for call in CALLS.parse_calls("<tool_call>{" + readable)] == ["", "add"]


@given(st.lists(st.sampled_from(["Ann has a cat", "1: Bea", "2: a longer note", "drop 1", "drop 9", "- x", "nothing"])))
def test_a_notebook_knows_its_size(lines: list[str]) -> None:
    notebook = NoteList(40)
    for line in lines:
        notebook.write(line)
        assert notebook.num_characters == len("\n".join(notebook.notes)) <= 40
