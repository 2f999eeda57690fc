"""Grading mathematics needs an extra: without it a recipe is refused before anything is played."""

from __future__ import annotations

import pytest

from marft.config import load_recipe
from marft.rewards import grader


@pytest.fixture(autouse=True)
def without_math_verify(monkeypatch: pytest.MonkeyPatch) -> None:
    find = grader.find_spec
    monkeypatch.setattr(grader, "find_spec", lambda name: None if name == "math_verify" else find(name))


def test_the_environment_says_what_to_install() -> None:
    with pytest.raises(ValueError, match=r"math-verify, which is not installed: pip install .*marft\[math\]"):
        load_recipe("math_dual")


def test_the_grader_says_what_to_install() -> None:
    with pytest.raises(ValueError, match="math-verify, which is not installed"):
        load_recipe("demo", ["--environment", "{name = 'table', path = 'rows.csv', grading = {name = 'math'}}"])


def test_other_recipes_need_nothing() -> None:
    assert load_recipe("demo")
