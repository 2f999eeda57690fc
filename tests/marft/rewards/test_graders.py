"""Right answers are accepted, wrong ones rejected, and what is written to do harm ends in time."""

from __future__ import annotations

import importlib
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marft.agents.answers import extract_answer, find_answer, last_boxed
from marft.common.processes.process_pool import (
    NotStartedError,
    ProcessExitedError,
    RequestFailedError,
    RequestTimeoutError,
)
from marft.rewards import grader as grading
from marft.rewards.grader import Grader, GradingError
from marft.rewards.math_answers import matches_gold
from tests.conftest import SHARED_DATA
from tests.nights import BY_NIGHT, NIGHT, some
from tests.sources import ROOT, TESTS

BENCHMARKS = ROOT / "benchmarks"
SAMPLE = TESTS / "answers.jsonl"  # of our own writing


@pytest.fixture
def graders(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("graders")


@pytest.fixture(scope="module")
def grader() -> Iterator[Grader]:
    made = Grader(timeout=1.0, processes=1)
    made.matches_gold("5", "5")
    yield made
    made.close()


def test_every_gold_answer_of_the_sample_is_accepted(graders: ModuleType) -> None:
    golds = graders.golds(SAMPLE)
    assert len(golds) == 46
    for gold in some(golds):
        for form in graders.FORMS:
            assert matches_gold(gold, form.replace("%s", gold)), (gold, form)


def test_wrong_answers_made_of_the_sample_are_rejected(graders: ModuleType) -> None:
    cases = graders.wrong(graders.golds(SAMPLE))
    kinds = {case.kind for case in cases}
    assert {"off by one", "permuted tuple", "interval's end elsewhere", "one left out", "another unit", "sign"} <= kinds
    assert len(cases) > 250
    for case in some(cases, of=12):
        assert not matches_gold(case.gold, case.said), case


@BY_NIGHT
@pytest.mark.slow
@pytest.mark.parametrize("file", some(["math_train.jsonl", "gsm8k_train.jsonl"]))
def test_answers_to_published_problems_are_graded_right(file: str, graders: ModuleType) -> None:
    """All of them in the night; the whole of it is in benchmarks/results/graders.md."""
    path = SHARED_DATA / file
    if not path.is_file():
        pytest.skip(f"needs the problems at {path}")
    golds = sorted(set(graders.golds(path)))
    for gold in some(golds, of=599):
        assert matches_gold(gold, rf"\boxed{{{gold}}}"), gold
    for case in graders.sampled(graders.wrong(golds), 1000 if NIGHT else 25):
        assert not matches_gold(case.gold, case.said), case


@pytest.mark.slow
def test_what_is_written_to_do_harm_ends_in_time_and_the_next_answer_is_graded_as_ever(
    graders: ModuleType, grader: Grader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    by_day = ("9^9^9^9", "code", r"\input", "braces that open", "a million digits", "half a character")
    for name, said in graders.ATTACKS.items() if NIGHT else [(name, graders.ATTACKS[name]) for name in by_day]:
        began = time.perf_counter()
        with suppress(GradingError):
            assert not grader.matches_gold("5", said), name
        assert time.perf_counter() - began < 5, name
        assert grader.matches_gold("5", r"\boxed{5}"), name
        assert not grader.matches_gold("5", r"\boxed{6}"), name
    assert not list(tmp_path.iterdir()), "code in an answer was run"


class TestProcesses:
    """What a pool of processes is asked, and what becomes of its errors."""

    @pytest.fixture
    def asked(self, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
        asked: list[Any] = []

        class Pool:
            answer: object = 1

            def __init__(self, module: str, processes: int | None) -> None:
                asked.append((module, processes))

            def request(self, payload: object, seconds: float) -> object:
                asked.append((payload, seconds))
                if isinstance(self.answer, Exception):
                    raise self.answer
                return self.answer

            def close(self) -> None:
                asked.append("closed")

        monkeypatch.setattr(grading, "ProcessPool", Pool)
        return asked

    def test_a_pool_is_asked_with_all_that_the_answer_depends_on(self, asked: list[Any]) -> None:
        grader = Grader(2.5, processes=3)
        assert grader.matches_gold("5", "five", (0.1, 0.2), "How many?") is True
        grader.close()
        request = {"gold": "5", "written": "five", "tolerances": [0.1, 0.2], "question": "How many?"}
        assert asked == [("marft.rewards.grader", 3), (request, 2.5), "closed"]

    @pytest.mark.parametrize(("error", "told"), [
        (RequestFailedError("ValueError: x"), "math-verify failed: ValueError: x"), (ProcessExitedError(-9), "the grading process died of this answer"),
        (RequestTimeoutError("took over 1 s"), "grading took over 1 s"), (NotStartedError("it did not start"), "grading it did not start"),
    ])  # fmt: skip
    def test_an_answer_that_cannot_be_graded_is_not_wrong(
        self, error: Exception, told: str, asked: list[Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(grading.ProcessPool, "answer", error, raising=False)
        with pytest.raises(GradingError, match=f"^{re.escape(told)}$"):
            Grader(1.0).matches_gold("5", "5")
        assert asked[0] == ("marft.rewards.grader", None)


@pytest.mark.parametrize("text", ["\\boxed{", "<answer>", "</answer>", "the answer is ", "{", "}", "answer "])
def test_answers_are_found_in_a_million_characters_at_once(text: str) -> None:
    text *= 1_000_000 // len(text)
    began = time.process_time()
    find_answer(text)
    extract_answer(text)
    assert time.process_time() - began < 3.0


@given(st.lists(st.sampled_from(["\\boxed{", "{", "}", "x"]), max_size=12).map("".join))
def test_the_last_box_that_closes_is_the_one_that_a_search_from_each_would_find(text: str) -> None:
    assert last_boxed(text) == _last_boxed_slowly(text)


def _last_boxed_slowly(text: str) -> str | None:
    for start in reversed([place for place in range(len(text)) if text.startswith("\\boxed{", place)]):
        depth = 0
        for place in range(start + 6, len(text)):
            depth += {"{": 1, "}": -1}.get(text[place], 0)
            if depth == 0:
                return text[start + 7 : place].strip()
    return None
