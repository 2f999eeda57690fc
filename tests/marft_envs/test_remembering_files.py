"""Conversations of public benchmarks, in the layout of their own files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from marft_envs.memory.conversations import NOT_MENTIONED, Question, grade_answer
from marft_envs.memory.environment import Memory
from tests.visits import visit


def memory(**keys: Any) -> Memory:
    found = Memory(**keys)
    found._name = "memory"
    return found


def locomo(number: int) -> dict[str, Any]:
    turns = [{"speaker": "Ann", "dia_id": f"D1:{n}", "text": f"Line {n} of {number}"} for n in range(5)]
    turns[1]["blip_caption"] = "a red  boat"
    return {
        "sample_id": f"conv-{number}",
        "conversation": {
            "speaker_a": "Ann", "speaker_b": "Bea", "session_1_date_time": "1:56 pm on 8 May, 2023", "session_1": turns,
            "session_10_date_time": "9 am on 1 June, 2023", "session_10": turns[:1], "session_2_date_time": "10 May", "session_2": turns[:2],
        },
        "qa": [
            {"question": "When?", "answer": 2022, "evidence": ["D1:1"], "category": 2},
            {"question": "What?", "answer": "tea, wine", "evidence": ["D1:1"], "category": 1},
            {"question": "Why?", "answer": "for fun; she says so", "evidence": [], "category": 3},
            {"question": "Who?", "adversarial_answer": "Bea", "evidence": [], "category": 5},
        ],
    }  # fmt: skip


def longmemeval(number: int) -> dict[str, Any]:
    return {
        "question_id": f"q{number}" + ("_abs" if number == 2 else ""), "question_type": "knowledge-update", "question": f"Where {number}?",
        "answer": "Oslo", "question_date": "2023/06/01 (Thu) 10:00", "answer_session_ids": ["s1"],
        "haystack_session_ids": ["s2", "s1"], "haystack_dates": ["2023/05/21 (Sun) 02:00", "2023/05/20 (Sat) 02:21"],
        "haystack_sessions": [
            [{"role": "user", "content": f"I moved to Oslo. {number}", "has_answer": True}, {"role": "assistant", "content": "Nice!"}],
            [{"role": "user", "content": "I live in Rome."}],
        ],
    }  # fmt: skip


class TestFiles:
    def world(self, path: Path, rows: object, **keys: Any) -> Memory:
        file = path / "talk.json"
        file.write_text(rows if isinstance(rows, str) else json.dumps(rows), encoding="utf-8")
        return memory(path=str(file), **keys)

    def test_locomo_is_read(self, tmp_path: Path) -> None:
        world = self.world(tmp_path, [locomo(n) for n in range(12)], lines=3, questions=3, grading="f1")
        tasks = {split: world.tasks(split) for split in ("train", "validation", "test")}  # type: ignore[arg-type]
        named = {split: {task.data["conversation"] for task in found} for split, found in tasks.items()}
        assert [len(named[split]) for split in ("train", "validation", "test")] == [8, 2, 2]
        assert len(set.union(*named.values())) == 12
        first, second = (
            task for task in tasks["test"] if task.data["conversation"] == tasks["test"][0].data["conversation"]
        )
        kinds = [(q["kind"], q["answer"]) for task in (first, second) for q in task.data["questions"]]
        assert kinds == [
            ("temporal", "2022"),
            ("multi", "tea, wine"),
            ("single", "for fun"),
            ("abstention", NOT_MENTIONED),
        ]
        done = visit(world, first, lambda role, *_: "2022" if role == "answerer" else "Ann said 2022.", [])
        pieces = [shown.views["writer"].split("\n\n")[0].splitlines() for shown in done.observations[:4]]
        assert [piece[0] for piece in pieces] == ["1:56 pm on 8 May, 2023."] * 2 + ["10 May.", "9 am on 1 June, 2023."]
        assert pieces[0][2].endswith("[shows a picture: a red boat]")
        assert [len(piece) - 1 for piece in pieces] == [3, 2, 2, 1]
        assert done.reward == pytest.approx(1 / 3)
        assert done.last.info["measures"]["coverage"] == pytest.approx(1 / 4)  # of 2022, tea, wine, for fun
        assert len(done.steps) == first.data["fewest_steps"] == 4 + 2 * 3

    def test_longmemeval_is_read(self, tmp_path: Path) -> None:
        world = self.world(tmp_path, [longmemeval(n) for n in range(3)], layout="longmemeval")
        tasks = [task for split in ("train", "validation", "test") for task in world.tasks(split)]  # type: ignore[arg-type]
        assert len(tasks) == 3
        assert sorted(task.data["questions"][0]["kind"] for task in tasks) == ["abstention", "update", "update"]
        done = visit(world, tasks[0], lambda *_: "", [])
        assert done.observations[0].views["writer"].startswith("2023/05/20 (Sat) 02:21.\nuser: I live in Rome.")
        assert "(asked on 2023/06/01 (Thu) 10:00)" in done.observations[2].views["retriever"]

    def test_longmemevals_rubrics_are_left_out_and_its_answers_are_no_lists(self, tmp_path: Path) -> None:
        rows = [{**longmemeval(n), "question_type": "multi-session", "answer": "$1,200"} for n in range(3)]
        rubrics = [{**longmemeval(n), "question_type": "single-session-preference"} for n in (7, 8)]
        world = self.world(tmp_path, [*rows, *rubrics], layout="longmemeval")
        asked = [task.data["questions"][0] for split in ("train", "validation", "test") for task in world.tasks(split)]  # type: ignore[arg-type]
        assert sorted(question["kind"] for question in asked) == ["abstention", "multi", "multi"]
        amount = Question.from_dict(next(question for question in asked if question["kind"] == "multi"))
        assert amount.needs == (("$1,200",),)
        assert [grade_answer(amount, said, "f1") for said in ("$1,200", "1", "200")] == [1.0, 0.0, 0.0]

    def test_parts_and_words_are_counted_as_locomo_does(self) -> None:
        listed = Question("multi", "What?", "tea, red wine", (), listed=True)
        assert Question.from_dict(listed.to_dict()) == listed
        assert grade_answer(listed, "wine, tea", "f1") == pytest.approx((1 + 2 / 3) / 2)
        assert grade_answer(Question("single", "Who?", "Ann and Bea", ()), "Ann, Bea", "f1") == 1.0

    def test_the_order_of_a_file_does_not_move_a_conversation(self, tmp_path: Path) -> None:
        rows = [locomo(n) for n in range(12)]
        one, other = (
            {task.id for task in self.world(tmp_path, some, questions=4).tasks("test")} for some in (rows, rows[::-1])
        )
        assert one == other

    @pytest.mark.parametrize(("rows", "layout", "words"), [
        ("{", "locomo", "is no JSON"), ("{}", "locomo", "holds no list"), ([locomo(1), locomo(1), locomo(2)], "locomo", "two conversations"),
        ([locomo(1), locomo(2)], "locomo", "a split each takes three"), ([longmemeval(1)], "locomo", "conversation 1 is not laid out as locomo"),
        ([locomo(1)], "longmemeval", "is layout right"), ([{**locomo(1), "qa": []}], "locomo", "no questions"),
        ([{**locomo(1), "qa": [{"question": ["?"], "answer": "x", "category": 4}]}], "locomo", "is no text"), (["x"], "locomo", "not laid out"),
    ])  # fmt: skip
    def test_a_file_that_cannot_be_used_is_refused(self, tmp_path: Path, rows: Any, layout: str, words: str) -> None:
        with pytest.raises(ValueError, match=words):
            self.world(tmp_path, rows, layout=layout).tasks("train")

    def test_a_file_that_is_not_there_is_named(self) -> None:
        with pytest.raises(ValueError, match=r"cannot read .*nowhere\.json: No such file"):
            memory(path="nowhere.json").tasks("train")

    def test_of_a_file_as_many_tasks_are_there_as_are_asked_for(self, tmp_path: Path) -> None:
        world = self.world(tmp_path, [locomo(n) for n in range(12)], questions=2, train_tasks=5, held_out_tasks=3)
        whole = self.world(tmp_path, [locomo(n) for n in range(12)], questions=2)
        for split, most in (("train", 5), ("validation", 3), ("test", 3)):
            assert list(world.tasks(split)) == list(whole.tasks(split))[:most]  # type: ignore[arg-type]

    def test_what_is_asked_of_a_file_is_of_the_kinds_that_are_named(self, tmp_path: Path) -> None:
        world = self.world(tmp_path, [locomo(n) for n in range(3)], kinds=("temporal", "abstention"))
        kinds = [[q["kind"] for q in task.data["questions"]] for task in world.tasks("train")]
        assert kinds == [["temporal", "abstention"]]

    def test_whoever_reads_all_notes_takes_a_step_less_for_each_question(self, tmp_path: Path) -> None:
        for retriever, steps in (("retriever", 2), ("", 1)):
            world = self.world(tmp_path, [locomo(n) for n in range(3)], questions=3, retriever=retriever)
            task = world.tasks("train")[0]
            done = visit(world, task, lambda *_: "", [])
            assert len(done.steps) == task.data["fewest_steps"] == 3 + 3 * steps

    def test_files_have_no_demonstrations(self, tmp_path: Path) -> None:
        assert not list(self.world(tmp_path, [locomo(n) for n in range(3)]).demonstrations())
