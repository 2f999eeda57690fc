"""Answers as models write them, each held to a right one: ``graded_answers.jsonl``, of our own writing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from marft.agents.answers import extract_answer, graded_text
from marft.agents.channels import Record
from marft.agents.game import Attempt
from marft.agents.organizations import majority_vote
from marft.agents.play import play
from marft.common.reasoning import measure_reasoning
from marft.common.types import JointAction, Observation, Task
from marft.config.interfaces.channel import Message
from marft.config.interfaces.organization import Agents
from marft.envs.table import Table
from marft.rewards.math_answers import matches_gold
from marft_envs.env_check import episode_checks
from marft_envs.env_check.collection import CheckData
from marft_envs.env_check.loading import load_tasks
from marft_envs.env_check.target import CheckTarget, Limits
from tests.episodes import make_action
from tests.fakes import FakeEngine
from tests.marft.agents.test_memory import Plain, acting
from tests.marft.envs.test_environments import answer
from tests.sources import TESTS

PAIRS = TESTS / "graded_answers.jsonl"
KINDS = ("exact", "choice", "numeric", "contains", "f1", pytest.param("math", marks=pytest.mark.slow))
SLOW_TO_COMPARE = ("(1,2)", r"x<-1\text{ or }x>1")  # of mathematics; other pairs are like these


def pairs(kind: str) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in PAIRS.read_text(encoding="utf-8").splitlines()]
    return [row for row in rows if row["kind"] == kind]


def misjudged(kind: str, folder: Path) -> Iterator[str]:
    """Pairs that a table with this grading judges otherwise than they say."""
    for with_choices in (False, True):
        mine = [pair for pair in pairs(kind) if ("choices" in pair) is with_choices]
        if not mine:
            continue
        path = folder / f"{kind}{with_choices}.jsonl"
        rows = [
            {"question": f"{pair.get('question', '?')} ({number})", "answer": pair["right"]}
            | ({"choices": pair["choices"]} if with_choices else {})
            for number, pair in enumerate(mine)
        ]
        path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
        grading = {"name": kind} | ({"choices": "choices"} if with_choices else {})
        shares = {"validation": 0.0, "test": 0.0}
        table = Table.model_validate({"path": str(path), "grading": grading, "split_fractions": shares})
        for pair, task in zip(mine, table.tasks("train"), strict=True):
            try:
                said = bool(answer(table, task, pair["text"]).success)
            except Exception as error:  # noqa: BLE001  told with the pair
                said = error
            if said is not pair["ok"]:
                yield f"{'right' if pair['ok'] else 'wrong'}, judged {said}: {pair['right']!r} <- {pair['text']!r}"


@pytest.mark.parametrize("kind", KINDS)
def test_answers_as_models_write_them_are_judged_right(kind: str, tmp_path: Path) -> None:
    found = list(misjudged(kind, tmp_path))
    assert not found, "\n".join(found)


@pytest.mark.parametrize("right", [
    pytest.param(right, marks=pytest.mark.slow if right in SLOW_TO_COMPARE else ())
    for right in dict.fromkeys(pair["right"] for pair in pairs("math"))
])  # fmt: skip
def test_the_judge_of_mathematics_agrees_with_the_pairs_also_in_this_process(right: str) -> None:
    for pair in pairs("math"):
        if pair["right"] == right:
            assert matches_gold(right, pair["text"], question=pair.get("question", "")) is pair["ok"], pair


@pytest.mark.parametrize("nothing", ["", "  ", "$ $", r"\boxed{}", r"\boxed{.}", "<think>None.</think>", r"$\approx$"])
def test_a_text_that_states_nothing_does_not_say_that_there_is_no_solution(nothing: str) -> None:
    assert not matches_gold(r"\text{no solution}", nothing)
    assert not matches_gold(r"\emptyset", nothing)


def test_the_pairs_hold_right_and_wrong_answers_of_every_kind() -> None:
    for kind in ("exact", "choice", "numeric", "contains", "f1", "math"):
        assert {pair["ok"] for pair in pairs(kind)} == {True, False}


@pytest.mark.parametrize("grading", ["exact", "contains", "numeric", "f1", "fuzzy", "quantity"])
@pytest.mark.parametrize("empty", ["", None, "  ", float("nan")])
def test_an_empty_place_in_a_list_of_right_answers_is_no_right_answer(
    grading: str, empty: object, tmp_path: Path
) -> None:
    assert not judged(tmp_path, grading, [empty, "7", empty], "")
    assert judged(tmp_path, grading, [empty, "7", empty], "7")


@pytest.mark.parametrize(
    "nothing", [[], [""], [None, " "], {"text": []}, '{"ground_truth": ""}', {"answer": None, "x": 1}]
)
def test_a_row_whose_right_answers_are_all_empty_is_refused_with_its_line(nothing: object, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"rows\.jsonl, line 1: column 'answer' is empty"):
        judged(tmp_path, "exact", nothing, "7")


@pytest.mark.parametrize(
    ("right", "said"),
    [
        (7.0, "7"), (7.0, "7.00"), (0.1, "0.1"), (1e-7, "0.0000001"), (Decimal("7.00"), "7"), (Decimal("2.50"), "2.5"),
        (True, "yes"), (False, "False"), (datetime(2024, 5, 1), "2024-05-01"), (datetime(2024, 5, 1, 9, 30), "2024-05-01T09:30:00"),
        (1e-7, "1e-7"), (-0.0, "0"), (time(13, 30), "13:30"), ({"reward_model": {"ground_truth": {"target": ["4", "5"]}}}, "5"),
        (datetime(2024, 5, 1, 13, 30, tzinfo=UTC), "2024-05-01T15:30:00+02:00"),
        (date(2024, 5, 1), "2024-05-01"), ([3.0, 4.0], "4"), ('{"ground_truth": "4"}', "4"), ({"ground_truth": 4, "style": "rule"}, "4"),
    ],
)  # fmt: skip
def test_right_answers_of_typed_columns_are_compared_by_value(right: object, said: str, tmp_path: Path) -> None:
    assert judged(tmp_path, "exact", right, said)
    assert judged(tmp_path, "exact", right, rf"\boxed{{{said}}}")
    assert not judged(tmp_path, "exact", right, f"{said}1")


def test_the_place_of_a_choice_may_be_a_float(tmp_path: Path) -> None:
    grading = {"name": "choice", "choices": ["a", "b"]}
    for place in (1.0, "1.0", [1], {"label": 1}):
        assert judged(tmp_path, grading, place, "B", a="red", b="blue")


def test_choices_with_a_type_are_compared_by_value(tmp_path: Path) -> None:
    grading = {"name": "choice", "choices": "choices"}
    for right, choices in ((2.0, [1.0, 2.0]), (Decimal("2.00"), [Decimal("1.00"), Decimal("2.00")])):
        for said in ("B", "2", r"\boxed{2}"):
            assert judged(tmp_path, grading, right, said, choices=choices)
        assert not judged(tmp_path, grading, right, "1", choices=choices)


@pytest.mark.parametrize("grading", ["exact", "contains", "numeric", "f1"])
@pytest.mark.parametrize("short", [pa.float16(), pa.float32()])
def test_numbers_of_few_bits_are_the_shortest_decimals_that_mean_them(
    grading: str, short: pa.DataType, tmp_path: Path
) -> None:
    number = np.float16(2.2)
    cells = {
        "alone": pa.array([number]).cast(short), "list": pa.array([[number]]).cast(pa.list_(short)),
        "struct": pa.array([{"answer": number}]).cast(pa.struct([("answer", short)])),
    }  # fmt: skip
    for name, cell in cells.items():
        path = tmp_path / f"{name}.parquet"
        pq.write_table(pa.table({"question": ["?"], "answer": cell}), path)
        shares = {"validation": 0.0, "test": 0.0}
        table = Table.model_validate({"path": str(path), "grading": grading, "split_fractions": shares})
        said = "2.2" if short == pa.float16() else str(np.float32(number))
        assert answer(table, table.tasks("train")[0], said).success, name


def test_another_moment_is_no_right_answer_and_a_map_is_a_table(tmp_path: Path) -> None:
    moment = datetime(2024, 5, 1, 13, 30, tzinfo=UTC)
    assert not judged(tmp_path, "exact", moment, "2024-05-01T13:30:00+02:00")
    path = tmp_path / "map.parquet"
    cell = pa.array([[("ground_truth", "7")]], type=pa.map_(pa.string(), pa.string()))
    pq.write_table(pa.table({"question": ["?"], "answer": cell}), path)
    table = Table.model_validate({"path": str(path), "split_fractions": {"validation": 0.0, "test": 0.0}})
    assert answer(table, table.tasks("train")[0], "7").success


def judged(folder: Path, grading: object, right: object, text: str, **cells: object) -> bool:
    """What a table of one row says of a text; Parquet where the right answer has a type that JSON has not."""
    row = {"question": "?", "answer": right, **cells}
    try:
        path = folder / "rows.jsonl"
        path.write_text(json.dumps(row), encoding="utf-8")
    except TypeError:
        path = folder / "rows.parquet"
        pq.write_table(pa.Table.from_pylist([row]), path)
    shares = {"validation": 0.0, "test": 0.0}
    table = Table.model_validate({"path": str(path), "grading": grading, "split_fractions": shares})
    return bool(answer(table, table.tasks("train")[0], text).success)


THOUGHTS = [
    ("<think>", "</think>"), ("<Think>", "</THINK>"), ("<thinking>", "</thinking>"), ("[THINK]", "[/THINK]"), ("◁think▷", "◁/think▷"),
    ("<|channel|>analysis<|message|>", "<|channel|>final<|message|>"), ("<seed:think>", "</seed:think>"),
]  # fmt: skip


@pytest.mark.parametrize(("begins", "ends"), THOUGHTS)
@pytest.mark.parametrize("grading", ["exact", "contains", "numeric", "f1", "fuzzy", "quantity", "choice"])
def test_an_answer_in_a_thought_is_none(begins: str, ends: str, grading: str, tmp_path: Path) -> None:
    right = "B" if grading == "choice" else "7"
    said = (rf"So \boxed{{{right}}}", f"The answer is {right}", right)
    for words in (*(begins + one for one in said), f"Hm. {begins}{right}"):
        assert not judged(tmp_path, grading, right, words), words
        assert not judged(tmp_path, grading, right, words + ends), words
    assert judged(tmp_path, grading, right, rf"{begins}So \boxed{{5}}{ends} \boxed{{{right}}}")


@pytest.mark.parametrize("thinking", ["keep", "drop"])
def test_an_unfinished_thought_that_the_prompt_began_is_no_answer(thinking: str) -> None:
    class Begun(Plain):
        def reasoning_length(self, policy: str, text: str, prefix: str = "") -> int:
            return measure_reasoning(text, in_reasoning=True)

    def said(text: str) -> str:
        g = acting(alone, "solver", engine=FakeEngine(lambda key, _: text), steps=1)
        agents = tuple(replace(agent, thinking=thinking) for agent in g.team.agents)
        g = replace(g, team=replace(g.team, agents=agents), renderer=Begun())
        (action,) = asyncio.run(play(g, Attempt(Task("t0", "begin"), "train/0"))).actions
        return graded_text(action)

    assert said(r"So it is \boxed{7}") == ""
    assert said(r"So it is 5? </think> \boxed{7}") == r"\boxed{7}"


async def alone(observation: Observation, agents: Agents) -> JointAction:
    return JointAction(await agents.solver(observation))


def test_an_answer_that_was_cut_by_its_length_is_none() -> None:
    for text in ("So 5 + 3 = 8. <answer>4", "<answer>3</answer> No: <answer>4", "5? The answer is 4", "Hm.\n#### 4"):
        cut = graded_text(replace(make_action(text=text), finish="length"))
        assert extract_answer(cut) == "", text
        assert extract_answer(graded_text(replace(make_action(text=text), finish="stop"))) == "4", text
    for text in ("4", "The answer is 4. Let me", "The answer is 4\nas 2 + 2", r"\boxed{4} as"):
        assert graded_text(replace(make_action(text=text), finish="length")) == text
    assert (
        graded_text(replace(make_action(text="Hm. <answer>4"), finish="stop")) == "Hm. <answer>4"
    )  # "</answer>" ended it
    assert extract_answer(r"\boxed{3}? No: \boxed{4") == ""


def test_an_answer_in_a_thought_has_no_vote_and_is_not_recorded() -> None:
    said = [r"<think>\boxed{4}", r"<think>\boxed{4}", r"\boxed{5}"]
    actions = [make_action(text=text, index=number) for number, text in enumerate(said)]
    assert majority_vote(actions).text == r"\boxed{5}"
    record = Record(fields={"answer": r"\\boxed\{(.+?)\}"}, fallback="none")
    assert record.transform([Message("a", said[0]), Message("a", said[2])]) == [None, Message("a", "answer: 5")]


@pytest.mark.parametrize("right", ['["Paris", "paris"]', '{"city": "Paris"}', "['Paris', 'paris']"])
def test_check_env_warns_of_right_answers_that_nobody_says(right: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    rows = [{"question": f"Which city? ({number})", "answer": right} for number in range(60)]
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    environment = Table.model_validate({"path": str(path)})
    evidence = CheckData(CheckTarget(environment), Limits(), load_tasks(environment))
    assert any("no plain answer is right" in found.cause for found in episode_checks.check_success(evidence))
