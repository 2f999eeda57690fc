"""Files of tasks that are damaged, or say what they cannot mean: refused by place and remedy before anything is played."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from marft.envs.math import Math
from marft.envs.splits import assign_split_by_share
from marft.envs.table import Table
from marft.envs.table_files import read_saved_dataset
from marft.envs.tasks import read_tasks
from marft_envs.code.environment import Code
from marft_envs.code.execution import Limits
from marft_envs.code.grading import ProblemJudge
from marft_envs.code.problems import Problem
from marft_envs.instructions.environment import Instructions
from marft_envs.memory.files import read_conversations
from marft_envs.tool_use.benchmarks import read_json_lines
from marft_envs.tool_use.environment import ToolUse
from marft_envs.tool_use.toolbox import Error

TASK = {"instruction": "Cancel it.", "actions": [{"name": "cancel_pending_order", "kwargs": {}}], "outputs": ["5"]}
TASK2: dict[str, Any] = {"id": "1", "user_scenario": {"instructions": "Go."}, "evaluation_criteria": {}}
DEEP = "-" * 50_000 + "1"


def written(folder: Path, name: str, data: object) -> str:
    path = folder / name
    path.write_bytes(
        data if isinstance(data, bytes) else (data if isinstance(data, str) else json.dumps(data)).encode()
    )
    return str(path)


def tau(folder: Path, tasks: object, name: str = "tasks.json", **tables: object) -> ToolUse:
    for table in ("users", "orders", "products"):
        written(folder, f"{table}.json", tables.get(table, {}))
    data = {"format": "tau", "tasks": written(folder, name, tasks), "database": str(folder)}
    return ToolUse(world="retail", user="agent", data=data)  # type: ignore[arg-type]


def tau2(folder: Path, **changed: object) -> ToolUse:
    database = written(folder, "db.json", {"users": {}, "orders": {}, "products": {}})
    data = {"format": "tau2", "tasks": written(folder, "t.json", [{**TASK2, **changed}]), "database": database}
    return ToolUse(world="retail", user="agent", data=data)  # type: ignore[arg-type]


class TestToolUse:
    @pytest.mark.parametrize(
        ("tasks", "name", "says"),
        [
            (5, "t.json", "must be a list of tasks"),
            ({"a": 1}, "t.json", "must be a list of tasks"),
            ([{**TASK, "outputs": "12"}], "t.json", "task 0: 'outputs' is '12', and must be of type list"),
            ([{**TASK, "outputs": [["a"]]}], "t.json", r"'outputs' holds \['a'\], and must hold texts"),
            ([{**TASK, "instruction": " "}], "t.json", "task 0: 'instruction' is empty"),
            (f"Task(instruction={DEEP})", "t.py", "is no Python: it is nested too deep"),
            ("Task(instruction={[1]})", "t.py", "line 1: TypeError: unhashable"),
        ],
    )
    def test_tasks_that_cannot_be_meant_are_refused_by_place(
        self, tmp_path: Path, tasks: object, name: str, says: str
    ) -> None:
        with pytest.raises(ValueError, match=says):
            read_tasks(tau(tmp_path, tasks, name), "train")

    @pytest.mark.parametrize(
        ("changed", "says"),
        [
            ({"evaluation_criteria": {"actions": 5}}, "'actions' is 5, and must be of type list"),
            ({"evaluation_criteria": {"communicate_info": "abc"}}, "'communicate_info' is 'abc'"),
            ({"user_scenario": {"instructions": ""}}, "task 0 tells the user nothing"),
        ],
    )
    def test_so_are_those_of_the_second_benchmark(self, tmp_path: Path, changed: dict[str, object], says: str) -> None:
        with pytest.raises(ValueError, match=says):
            read_tasks(tau2(tmp_path, **changed), "train")

    def test_a_call_of_a_tool_that_is_not_there_is_no_call_of_nothing(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match=r"task 't/0' calls 'fly', which is no tool of the world 'retail'"):
            read_tasks(tau(tmp_path, [{**TASK, "actions": [{"name": "fly", "kwargs": {}}]}], "t.json"), "train")

    def test_a_call_of_a_class_that_is_not_named_is_refused_too(self, tmp_path: Path) -> None:
        row = {"id": "a", "question": [[{"content": "Add."}]], "initial_config": {}, "involved_classes": ["Counter"]}
        data = {
            "format": "bfcl", "tasks": written(tmp_path, "t.json", row), "classes": {"Counter": "tests.simulated_classes:Counter"},
            "answers": written(tmp_path, "a.json", {"id": "a", "ground_truth": [["write(name='a')"]]}),
        }  # fmt: skip
        with pytest.raises(ValueError, match=r"calls 'write', which is no tool of the classes.*name the class"):
            ToolUse(data=data).tasks("train")  # type: ignore[arg-type]
        written(tmp_path, "a.json", {"id": "a", "ground_truth": ["write(name='a')"]})
        with pytest.raises(ValueError, match="each turn of 'ground_truth' must be a list of texts"):
            ToolUse(data=data).tasks("train")  # type: ignore[arg-type]

    def test_what_a_class_raises_is_a_refusal_that_is_counted_and_told(self, tmp_path: Path) -> None:
        row = {
            "id": "a",
            "question": [[{"content": "Add."}]],
            "initial_config": {"Counter": {"number": "one"}},
            "involved_classes": ["Counter"],
        }
        data = {
            "format": "bfcl", "tasks": written(tmp_path, "t.json", row), "classes": {"Counter": "tests.simulated_classes:Counter"},
            "answers": written(tmp_path, "a.json", {"id": "a", "ground_truth": [["add(amount=1)"]]}),
        }  # fmt: skip
        made = ToolUse(data=data)  # type: ignore[arg-type]
        (task,) = [task for split in ("train", "validation", "test") for task in made.tasks(split)]  # type: ignore[arg-type]
        session = made.start(task, 0)
        asyncio.run(session.reset())
        with pytest.raises(Error, match="TypeError: can only concatenate"):
            session.toolbox.add(amount=1)
        assert [call.error[:9] for call in session.toolbox.calls] == ["TypeError"]

    def test_records_that_are_none_are_refused_before_a_tool_reads_them(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="users, 'ann' is 5, and must be a JSON object"):
            read_tasks(tau(tmp_path, [TASK], users={"ann": 5}), "train")

    def test_half_a_character_is_refused_as_such(self, tmp_path: Path) -> None:
        made = tau(tmp_path, [{**TASK, "instruction": "\ud800"}])
        with pytest.raises(ValueError, match="its prompt is no whole text"):
            read_tasks(made, assign_split_by_share("\ud800", 0.1, 0.1))

    def test_a_mark_of_the_bytes_order_and_other_lines_ends_do_no_harm(self, tmp_path: Path) -> None:
        path = written(tmp_path, "t.jsonl", b"\xef\xbb\xbf" + '{"a": "b\u2028c"}\r\n\n{"a": "\x85"}'.encode())
        assert [row for _, row in read_json_lines(path)] == [{"a": "b\u2028c"}, {"a": "\x85"}]


HUMANEVAL = {
    "task_id": "h", "prompt": "def f(x):\n", "entry_point": "f", "canonical_solution": "    return x\n",
    "test": "def check(c):\n    assert c(1) == 1 and c(2)",
}  # fmt: skip
APPS = {"question": "Print.", "input_output": json.dumps({"inputs": ["1", "2"], "outputs": ["1"]})}
LIVE = {"question_content": "f?", "public_test_cases": "[]", "metadata": '{"func_name": "f"}'}
FORCES: dict[str, Any] = {"description": "Add.", "official_tests": [{"input": "1", "output": "1"}]}


class TestPrograms:
    @pytest.mark.parametrize(
        ("row", "says"),
        [
            ({**HUMANEVAL, "test": f"def check(c):\n    assert c(1) == {DEEP}"}, "humaneval: is nested too deep"),
            ({**HUMANEVAL, "canonical_solution": "    return ("}, "has a solution that is no Python"),
            ({**HUMANEVAL, "entry_point": ""}, "does not define ''"),
            (APPS, "has 2 inputs and 1 outputs; each has one"),
            ({**LIVE, "private_test_cases": json.dumps([{"input": "[" * 90_000, "output": "1"}])}, "nested too deep"),
            ({**FORCES, "time_limit": 1e5}, "holds 100000.0, which is no limit from 0 to 600"),
            ({**FORCES, "memory_limit": 1e6}, "which is no limit from 0 to 65,536"),
        ],
    )
    def test_a_row_that_cannot_be_judged_is_refused_or_left_out(
        self, tmp_path: Path, row: dict[str, object], says: str
    ) -> None:
        path = written(tmp_path, "problems.jsonl", row)
        with pytest.raises(ValueError, match=rf"line 1, read as .*{says}.*ungradable"):
            Code(path=path).tasks("train")
        assert Code(path=path, ungradable="skip").tasks("train") == []

    def test_a_right_program_of_another_python_makes_no_wrong_ones(self) -> None:
        bench = ProblemJudge(Problem("Print.", reference="print 1"), Limits(), 0.0)
        assert bench.score_tests([]) is None


class TestOthers:
    @pytest.mark.parametrize(
        ("name", "given", "says"),
        [
            ("keywords:existence", {"keywords": "sea"}, "no list of texts"),
            ("keywords:existence", {"keywords": []}, "no list of texts"),
            ("keywords:frequency", {"keyword": 5, "frequency": 1, "relation": "at least"}, "keyword is 5, and no text"),
            ("startend:end_checker", {"end_phrase": " "}, "end_phrase is ' ', and no text"),
            ("language:response_language", {"language": "tlh"}, "is in 'tlh', which nobody tells"),
            ("detectable_format:json_schema", {"schema": {"type": "thing"}}, "no JSON schema"),
        ],
    )
    def test_an_instruction_that_no_text_could_be_held_to_is_refused(
        self, tmp_path: Path, name: str, given: dict[str, object], says: str
    ) -> None:
        row = {"key": 1, "prompt": "Write.", "instruction_id_list": [name], "kwargs": [given]}
        path = written(tmp_path, "rows.jsonl", row)
        with pytest.raises(ValueError, match=rf"line 1: {name} .*{says}.*unknown"):
            Instructions(path=path).tasks("train")
        assert Instructions(path=path, unknown="skip").tasks("train") == []

    @pytest.mark.parametrize("error", ["inf", "nan", "-1", "1e-1,x"])
    def test_a_tolerance_that_lets_everything_pass_is_refused(self, tmp_path: Path, error: str) -> None:
        row = {"question": "1 + 1?", "final_answer": ["2"], "error": error}
        with pytest.raises(ValueError, match=r"line 1: column 'error' holds .* which is no number from 0 on"):
            Math(path=written(tmp_path, "rows.jsonl", row)).tasks("train")

    @pytest.mark.parametrize("answer", ["?", ", ,", "the"])
    def test_an_answer_without_a_word_would_be_met_by_silence(self, tmp_path: Path, answer: str) -> None:
        path = written(tmp_path, "rows.jsonl", {"question": "Which?", "answer": answer})
        with pytest.raises(ValueError, match="of which no word is left to compare"):
            Table(path=path, grading="f1").tasks("train")  # type: ignore[arg-type]
        asked = [{"question": "Which?", "answer": answer, "category": 1}]
        talk = {"session_1": [{"speaker": "a", "text": "b"}], "session_1_date_time": "1 May"}
        path = written(tmp_path, "talks.json", [{"sample_id": "s", "conversation": talk, "qa": asked}])
        with pytest.raises(ValueError, match=r"conversation 1 .* has no answer that can be compared"):
            read_conversations(path, "locomo", 20)

    def test_a_saved_data_set_whose_state_is_no_text_is_damaged(self, tmp_path: Path) -> None:
        for state in (b"\xff\xfe", b"[" * 100_000):
            (tmp_path / "state.json").write_bytes(state)
            with pytest.raises(ValueError, match="is damaged, or save_to_disk has not written it"):
                list(read_saved_dataset(tmp_path, "train"))
