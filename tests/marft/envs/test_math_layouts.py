"""Problems of published collections as they lie in files, and teams that revise their answer."""

from __future__ import annotations

import asyncio
import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from marft.common.types import JointAction, Step, Task
from marft.config import load_recipe
from marft.config.paths import RECIPE_FOLDER
from marft.envs.graded_sessions import Grade, RevisionSession
from marft.envs.math import Math
from marft.evaluation.cohorts import collect_fields, group_tasks_by_field
from marft.rewards.math_answers import matches_gold
from tests.episodes import make_action

SPLITS = ("train", "validation", "test")
OLYMPIAD: dict[str, Any] = {
    "id": 1, "question": "Find all $x$.", "solution": ["…"], "final_answer": ["$3$"], "context": None, "image_1": None, "modality": "Text-only",
    "difficulty": "Competition", "is_multiple_answer": False, "unit": None, "answer_type": "Numerical", "error": None,
    "question_type": "Open-ended", "subfield": "Algebra", "subject": "Math", "language": "English",
}  # fmt: skip
PUBLISHED: dict[str, tuple[dict[str, Any], str]] = {
    "MATH": ({"problem": "a?", "level": "Level 5", "type": "Algebra", "solution": r"So $x = \boxed{\frac{1}{2}}$."}, r"\frac{1}{2}"),
    "MATH-500": ({"problem": "a?", "solution": r"\boxed{1}, no, \boxed{2}", "answer": "2", "subject": "Algebra", "level": 3, "unique_id": "test/1"}, "2"),
    "GSM8K": ({"question": "a?", "answer": "6 * 7 = <<6*7=42>>42\n#### 42"}, "42"),
    "GSM8K, thousands": ({"question": "a?", "answer": "…\n#### 1,250"}, "1,250"),
    "AIME on Kaggle": ({"ID": "1983-1", "Year": 1983, "Problem Number": 1, "Question": "a?", "Answer": "060", "Part": ""}, "060"),
    "AIME on the hub": ({"ID": "2024-I-1", "Problem": "a?", "Solution": "…", "Answer": 204}, "204"),
    "AIME with solutions": ({"id": 60, "problem": "a?", "solution": r"\boxed{204}", "url": "…"}, "204"),
    "AMC on the hub": ({"id": 0, "problem": "a?", "answer": 142.0, "url": "…"}, "142.0"),
    "OlympiadBench": (OLYMPIAD, "3"),
    "DAPO-Math-17k": ({"data_source": "math_dapo", "prompt": [{"role": "user", "content": "a?"}], "ability": "MATH", "reward_model": {"ground_truth": "34", "style": "rule-lighteval/MATH_v2"}, "extra_info": {"index": "9a9b"}}, "34"),
    "verl's GSM8K": ({"data_source": "openai/gsm8k", "prompt": [{"role": "user", "content": "a? Let's think."}], "reward_model": {"style": "rule", "ground_truth": "72"}, "extra_info": {"question": "a?"}}, "72"),
}  # fmt: skip


def jsonl(path: Path, rows: Sequence[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def only(environment: Math) -> Task:
    (task,) = (task for split in SPLITS for task in environment.tasks(split))
    return task


def all_tasks(environment: Math) -> list[Task]:
    return [task for split in SPLITS for task in environment.tasks(split)]


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_columns_are_known(name: str, tmp_path: Path) -> None:
    row, gold = PUBLISHED[name]
    task = only(Math(path=jsonl(tmp_path / "problems.jsonl", [row])))
    assert task.data["answer"] == gold
    assert task.prompt == ("Find all $x$." if name == "OlympiadBench" else "a?")


@pytest.mark.parametrize("kind", ["csv", "json", "parquet", "saved"])
def test_any_table_is_read_as_json_lines_are(kind: str, tmp_path: Path) -> None:
    rows = [{"problem": f"{n} + 1?", "answer": str(n + 1), "level": f"Level {n % 3}"} for n in range(30)]
    path = tmp_path / f"problems.{kind}"
    if kind == "csv":
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, ["problem", "answer", "level"])
            writer.writeheader()
            writer.writerows(rows)
    elif kind == "json":
        path.write_text(json.dumps(rows))
    elif kind == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        path.mkdir()
        table = pa.Table.from_pylist(rows)
        with pa.OSFile(str(path / "data.arrow"), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        (path / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data.arrow"}]}))
    expected = Math(path=jsonl(tmp_path / "problems.jsonl", rows))
    environment = Math(path=str(path))
    for split in SPLITS:
        assert [(t.prompt, t.data) for t in environment.tasks(split)] == [
            (t.prompt, t.data) for t in expected.tasks(split)
        ]
    assert set(group_tasks_by_field(collect_fields(all_tasks(environment)), "level")) == {
        "Level 0",
        "Level 1",
        "Level 2",
    }


def test_a_path_is_relative_to_the_recipe(tmp_path: Path) -> None:
    jsonl(tmp_path / "problems.jsonl", [{"problem": "1?", "answer": "1"}])
    environment = Math.model_validate({"path": "problems.jsonl"}, context={RECIPE_FOLDER: str(tmp_path)})
    assert only(environment).prompt == "1?"


def test_answers_of_aime_are_whole_numbers(tmp_path: Path) -> None:
    rows = [{"problem": f"{answer}?", "answer": answer} for answer in ("073", 142.0, "1,234", -5, 0)]
    environment = Math(path=jsonl(tmp_path / "a.jsonl", rows), layout="aime")
    assert {t.data["answer"] for t in all_tasks(environment)} == {"73", "142", "1234", "-5", "0"}
    jsonl(tmp_path / "a.jsonl", [{"problem": "a?", "answer": "1/2"}])
    with pytest.raises(ValueError, match=r"a\.jsonl, line 1 holds the answer '1/2', which is no whole number"):
        Math(path=str(tmp_path / "a.jsonl"), layout="aime").tasks("train")


def test_columns_that_are_no_layout_are_to_be_named(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "a.jsonl", [{"text": "a?", "gold": "5"}])
    with pytest.raises(ValueError, match=r"line 1 has columns gold, text, which are no layout .* \(question, answer\)"):
        Math(path=path).tasks("train")
    assert only(Math(path=path, question="text", answer="gold")).data == {"answer": "5"}
    with pytest.raises(ValueError, match="question and answer are the same column"):
        Math(path=path, question="text", answer="text")


class TestVerl:
    ROW: ClassVar[dict[str, Any]] = {"data_source": "d", "prompt": [{"role": "system", "content": "s"}, {"role": "user", "content": "a?"}], "reward_model": {"ground_truth": 5}}  # fmt: skip

    def found(self, tmp_path: Path, **cells: Any) -> list[Task]:
        pq.write_table(pa.Table.from_pylist([{**self.ROW, **cells}]), tmp_path / "train.parquet")
        return all_tasks(Math(path=str(tmp_path / "train.parquet")))

    def test_messages_of_a_parquet_are_one_question_and_its_source_is_kept(self, tmp_path: Path) -> None:
        (task,) = self.found(tmp_path)
        assert (task.prompt, task.data) == ("s\n\na?", {"source": "d", "answer": "5"})
        assert self.found(tmp_path, images=["…"]) == []
        assert self.found(tmp_path, reward_model={"ground_truth": ""}) == []
        assert self.found(tmp_path, reward_model={"style": "rule"}) == []

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ({"prompt": "a?"}, "column 'prompt' is not JSON"), ({"prompt": "3"}, "no list of messages"),
            ({"reward_model": {"ground_truth": ["5"]}}, "no ground_truth that"), ({"prompt": [{"role": "user", "content": " "}]}, "is empty"),
            ({"prompt": [{"role": "assistant", "content": "a"}]}, "an assistant has said"),
        ],
    )  # fmt: skip
    def test_what_is_no_problem_is_refused_with_its_place(
        self, change: dict[str, Any], words: str, tmp_path: Path
    ) -> None:
        with pytest.raises(ValueError, match=rf"train\.parquet, row 1.*{words}"):
            self.found(tmp_path, **change)


class TestOlympiadBench:
    def task(self, tmp_path: Path, **cells: Any) -> Task | None:
        environment = Math(path=jsonl(tmp_path / "a.jsonl", [{**OLYMPIAD, **cells}]))
        return next(iter(all_tasks(environment)), None)

    def grade(self, tmp_path: Path, said: str, **cells: Any) -> bool:
        task = self.task(tmp_path, **cells)
        assert task is not None
        return matches_gold(task.data["answer"], rf"\boxed{{{said}}}", task.data.get("tolerances", []))

    def test_several_answers_are_all_to_be_given_in_any_order(self, tmp_path: Path) -> None:
        several = {"final_answer": ["$2,-5$"], "is_multiple_answer": True}
        assert self.grade(tmp_path, "-5, 2", **several)
        assert not self.grade(tmp_path, "2", **several)
        assert not self.grade(tmp_path, "2, -5, 7", **several)
        assert self.grade(tmp_path, "3, 4", final_answer=["4", "3"], is_multiple_answer=True)

    def test_an_error_is_allowed_for_where_the_problem_has_one(self, tmp_path: Path) -> None:
        near = {"final_answer": [r"$\frac{\sqrt{3}}{2}$"], "error": "1e-2"}
        assert self.grade(tmp_path, "0.87", **near)
        assert not self.grade(tmp_path, "0.88", **near)
        assert not self.grade(tmp_path, "0.87", final_answer=near["final_answer"])
        both = {"final_answer": ["$10, 0.5$"], "error": "1,1e-2", "is_multiple_answer": True}
        assert self.grade(tmp_path, "0.501, 10.9", **both)
        assert not self.grade(tmp_path, "0.6, 10.9", **both), "each has its own error"
        assert self.grade(tmp_path, "-1.41, 1.41", final_answer=[r"$\pm\sqrt{2}$"], error="0.01")

    def test_units_may_be_left_out_but_not_be_others(self, tmp_path: Path) -> None:
        speed = {"final_answer": ["$5$"], "unit": r"$\mathrm{m/s}$", "subject": "Physics"}
        assert self.grade(tmp_path, r"5\text{ m/s}", unit="m/s", final_answer=["$5$"])
        assert self.grade(tmp_path, r"18\text{ km/h}", unit="m/s", final_answer=["$5$"])
        assert not self.grade(tmp_path, r"5\text{ km/h}", unit="m/s", final_answer=["$5$"])
        assert self.grade(tmp_path, "5", **speed)
        assert self.grade(tmp_path, "5", unit=r"\mathrm{kg \cdot ?}", final_answer=["$5$"]), "a unit that is not known"

    def test_proofs_and_pictures_are_left_out_and_a_context_is_shown(self, tmp_path: Path) -> None:
        assert self.task(tmp_path, final_answer=None) is None
        assert self.task(tmp_path, image_1={"bytes": "…"}) is None
        task = self.task(tmp_path, context="Let $x > 0$.")
        assert task is not None
        assert task.prompt == "Let $x > 0$.\n\nFind all $x$."
        assert (task.data["subfield"], task.data["answer_type"]) == ("Algebra", "Numerical")

    def test_an_error_that_is_no_number_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match=r"line 1: column 'error' holds 'some', which is no number"):
            self.task(tmp_path, error="some")


class TestRevising:
    def play(self, texts: Sequence[str], steps: int = 3) -> list[Step]:
        def grade(text: str) -> Grade:
            right = "boxed{5}" in text or text.strip() == "5"
            return Grade(float(right), right)

        async def attempt() -> list[Step]:
            session = RevisionSession(Task("a", "2 + 3?"), grade, steps, "DONE")
            assert (await session.reset()).text == "2 + 3?"
            return [await session.step(JointAction(answer=make_action(text=text))) for text in texts]

        return asyncio.run(attempt())

    def test_the_last_answer_counts_and_rewards_sum_to_its_grade(self) -> None:
        steps = self.play([r"\boxed{4}", r"\boxed{5}", r"\boxed{5}"])
        assert [step.reward for step in steps] == [0.0, 1.0, 0.0]
        assert [step.success for step in steps] == [False, True, True]
        assert [step.terminated for step in steps] == [False, False, True]
        assert [step.info["progress"] for step in steps] == [0.0, 1.0, 1.0]
        spoiled = self.play([r"\boxed{5}", r"\boxed{6}", r"\boxed{6}"])
        assert [step.reward for step in spoiled] == [1.0, -1.0, 0.0]

    def test_what_is_shown_in_between_is_the_answer_and_never_whether_it_is_right(self) -> None:
        right, wrong = (self.play([rf"\boxed{{{said}}}"])[0].observation.text for said in (5, 4))
        assert right.replace("5", "4") == wrong
        assert "2 + 3?" in right
        assert "so far: 5" in right
        assert "DONE" in right

    @pytest.mark.parametrize(
        "text", ["\\boxed{5}\nDONE", "\\boxed{5}\n**done**", "DONE\n\\boxed{5}", "\\boxed{5}\n  DONE."]
    )
    def test_a_team_that_is_done_has_no_further_step(self, text: str) -> None:
        (step,) = self.play([text])
        assert (step.terminated, step.reward, step.success, step.observation.text) == (True, 1.0, True, "")

    def test_the_word_in_a_sentence_hands_nothing_in(self) -> None:
        (step,) = self.play(["We are done: \\boxed{5}"])
        assert not step.terminated

    def test_an_answer_stands_until_another_one_is_stated(self) -> None:
        steps = self.play([r"\boxed{5}", "I agree.", "DONE"], steps=9)
        assert [step.success for step in steps] == [True, True, True]
        assert steps[-1].terminated
        assert sum(step.reward for step in steps) == 1.0

    def test_whoever_hands_in_nothing_has_not_solved_it(self) -> None:
        (step,) = self.play(["DONE"])
        assert (step.terminated, step.reward, step.success) == (True, 0.0, False)

    def test_an_answer_without_a_mark_counts_where_there_is_no_other(self) -> None:
        assert self.play(["5"])[0].success
        assert "so far: none" in self.play(["5"])[0].observation.text


def test_an_environment_says_how_many_steps_it_has(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "a.jsonl", [{"problem": "1?", "answer": "1"}])
    assert Math(path=path).max_episode_steps == 1
    environment = Math(path=path, max_steps=3)
    assert environment.max_episode_steps == 3
    assert isinstance(environment.start(only(environment), 0), RevisionSession)
    assert load_recipe("math_revised").environment.max_episode_steps == 2
