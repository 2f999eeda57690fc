"""Multiple choice with options in an order of each task's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from marft.common.types import Task
from marft.envs.choices import parse_choices, permute_choices
from marft.envs.table import Table
from marft.envs.tasks import digest_tasks
from tests.marft.envs.test_environments import answer
from tests.marft.envs.test_table import FORMATS, complaint

WORDS = ["red", "green", "blue", "yellow"]
SHUFFLED = {"name": "choice", "choices": "choices", "shuffle": True}
SPLITS = ("train", "validation", "test")


def table(tmp_path: Path, rows: list[dict[str, Any]], **changes: Any) -> Table:
    path = FORMATS["JSON lines"](tmp_path / "rows", rows)
    return Table.model_validate({"path": str(path), "grading": SHUFFLED, "prompt": "{question}\n{choices}", **changes})


def rows(count: int) -> list[dict[str, Any]]:
    return [{"question": f"{n}?", "choices": WORDS, "answer": n % 4} for n in range(count)]


def tasks(environment: Table) -> list[Task]:
    return [task for split in SPLITS for task in environment.tasks(split)]


def test_letters_stay_and_words_move_and_the_right_one_goes_with_its_words(tmp_path: Path) -> None:
    environment = table(tmp_path, rows(60))
    places = set()
    for task in tasks(environment):
        number = int(task.prompt.split("?")[0])
        shown = dict(line.split(". ") for line in task.prompt.splitlines()[1:])
        assert list(shown) == ["A", "B", "C", "D"]
        assert sorted(shown.values()) == sorted(WORDS)
        letter = next(letter for letter, word in shown.items() if word == WORDS[number % 4])
        assert task.data["answer"] == letter
        assert [WORDS[place] for place in task.data["shuffled"]] == list(shown.values()), "the record says how"
        assert answer(environment, task, letter).success
        assert answer(environment, task, WORDS[number % 4]).success
        assert not answer(environment, task, "A" if letter != "A" else "B").success
        places.add(letter)
    assert places == set("ABCD")


def test_orders_follow_from_the_seed_and_the_question_alone_and_splits_from_neither(tmp_path: Path) -> None:
    one, again = table(tmp_path, rows(60)), table(tmp_path, rows(60)[::-1])
    assert {t.prompt for t in tasks(one)} == {t.prompt for t in tasks(again)}
    other = table(tmp_path, rows(60), grading={**SHUFFLED, "seed": 1})
    assert sum(t.prompt in {u.prompt for u in tasks(one)} for t in tasks(other)) < 20
    for split in SPLITS:
        assert {t.prompt.split("?")[0] for t in one.tasks(split)} == {
            t.prompt.split("?")[0] for t in other.tasks(split)
        }
    assert digest_tasks(one.tasks("train")) != digest_tasks(other.tasks("train"))


def test_choices_in_columns_of_their_own_are_shuffled_too(tmp_path: Path) -> None:
    columns = {"name": "choice", "choices": ["A", "B", "C"], "shuffle": True}
    made = [{"question": f"{n}?", "A": "red", "B": "green", "C": "blue", "answer": "green"} for n in range(30)]
    environment = table(tmp_path, made, grading=columns, prompt="{question} A: {A} B: {B} C: {C}")
    letters = {task.data["answer"] for task in tasks(environment)}
    assert letters == set("ABC")
    for task in tasks(environment):
        assert f"{task.data['answer']}: green" in task.prompt
        assert answer(environment, task, f"({task.data['answer']})").success


@pytest.mark.parametrize("shuffle", [False, True])
def test_choices_of_several_columns_are_shown_like_a_list(tmp_path: Path, shuffle: bool) -> None:
    row = dict(zip(["question", "a", "b", "c", "d", "answer"], ["Sky?", *WORDS, "C"], strict=True))
    grading = {"name": "choice", "choices": ["a", "b", "c", "d"], "shuffle": shuffle}
    one, other = (
        tasks(table(tmp_path, [row], grading=grading, prompt=prompt))[0]
        for prompt in ("{question}\n{choices}", "{question}\nA. {a}\nB. {b}\nC. {c}\nD. {d}")
    )
    assert sorted(line[3:] for line in one.prompt.splitlines()[1:]) == sorted(WORDS)
    assert shuffle or (one.prompt, one.data) == (other.prompt, other.data)
    right = dict(line.split(". ") for line in one.prompt.splitlines()[1:])[one.data["answer"]]
    assert right == "blue"


def test_what_speaks_of_other_choices_keeps_its_place() -> None:
    for last in ("All of the above", "None of these", "none of the above.", "Neither of the above"):
        orders = [permute_choices(parse_choices([*WORDS, last]), str(key)) for key in range(20)]
        assert {order[4] for order in orders} == {4}
        assert len({tuple(order) for order in orders}) > 5
    for last in ("Both A and B", "A, B", "(A) or (C)"):
        assert permute_choices(parse_choices([*WORDS, last]), "key") == [0, 1, 2, 3, 4]
    assert {tuple(permute_choices(parse_choices(["a man and a dog", "a cat"]), str(key))) for key in range(20)} == {
        (0, 1),
        (1, 0),
    }


def test_every_order_is_as_likely(tmp_path: Path) -> None:
    first = [permute_choices(parse_choices(WORDS), str(key))[0] for key in range(800)]
    assert all(abs(first.count(place) / 800 - 0.25) < 0.05 for place in range(4))


@pytest.mark.parametrize(("changes", "told"), [
    ({"prompt": ""}, "choices are shuffled that the prompt does not show: put {choices} into it"),
    ({"grading": {"name": "choice", "shuffle": True}}, "only choices of columns can be shuffled; name them (choices)"),
    ({"grading": {**SHUFFLED, "choices": ["A", "B"]}, "prompt": "{question} {A}"}, "put {B} into it"),
])  # fmt: skip
def test_choices_that_cannot_be_shuffled_are_refused(changes: dict[str, Any], told: str) -> None:
    settings = {"path": "x.csv", "grading": SHUFFLED, "prompt": "{question}{choices}", **changes}
    assert told in complaint(**settings)
