"""Multi-turn tasks of the function-calling leaderboard, checked turn by turn."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from marft.agents.tools.functions import SessionSource
from marft_envs.tool_use.benchmarks import load_benchmark, parse_call
from marft_envs.tool_use.class_toolbox import build_toolbox_class
from tests.conversations import Played, environment
from tests.marft_envs.test_tool_use_files import COUNTER, DRAWER, leaderboard, tasks_of

SPLITS = ("train", "validation", "test")


@pytest.fixture
def bfcl(tmp_path: Path) -> dict[str, Any]:
    return leaderboard(tmp_path)


class TestTheLeaderboard:
    def test_each_turn_of_the_user_is_a_step_and_state_counts(self, bfcl: Any) -> None:
        made, (task,) = tasks_of(bfcl)
        for words, solved in (("hello", True), ("bye", False)):
            played = Played(made, task)
            assert played.first.text == "User: Write hello into a."
            assert played.call("read", name="b") == {"words": "old"}
            assert played.call("write", name="a", words=words) == {"written": "a"}
            assert played.say("Done.").observation.text == "User: Go on."
            assert played.say("Well.").observation.text == "User: Count two more."
            played.call("add", amount=2)
            step = played.say("Done.")
            assert (step.terminated, step.success, step.info["measures"]["tool_calls"]) == (True, solved, 3.0)

    def test_every_turn_counts_and_not_the_end_alone(self, bfcl: Any) -> None:
        """What the reference reads must be read, what it writes in a turn must be written in that turn, and a turn in
        which it calls something must not be empty."""
        made, (task,) = tasks_of(bfcl)
        read, write, add = ("read", {"name": "b"}), ("write", {"name": "a", "words": "hello"}), ("add", {"amount": 2.0})
        other = ("read", {"name": "c"})
        for turns, right in (
            ([[write, read], [], [add]], 2),
            ([[other, read, write], [other], [add, other]], 2),  # more may be read
            ([[read, write], [add], []], 1),  # too early, and then nothing
            ([[write], [read], [add]], 1),  # not read in time
            ([[], [], [read, write, add]], 1),
            ([[], [], []], 0),
        ):
            played = Played(made, task)
            for calls in turns:
                for name, given in calls:
                    played.call(name, **given)
                step = played.say("Done.")
            assert (step.success, step.reward, step.info["progress"]) == (right == 2, float(right == 2), right / 2)

    def test_a_task_has_the_tools_of_its_classes_but_those_held_out(self, bfcl: Any, tmp_path: Path) -> None:
        row = json.loads((tmp_path / "tasks.json").read_text())
        answer = {"id": row["id"], "ground_truth": [["write('a', 'hello')"], [], ["write('c')"]]}
        (tmp_path / "tasks.json").write_text(
            json.dumps({**row, "involved_classes": ["Drawer"], "excluded_function": ["read"]})
        )
        (tmp_path / "answers.json").write_text(json.dumps(answer))
        made, (task,) = tasks_of(bfcl)
        played = Played(made, task)
        assert played.first.views["agent"] == "Your tools here, and no others: write."
        for name, given in (("read", {"name": "b"}), ("add", {"amount": 2})):
            with pytest.raises(ValueError, match=f"this task has no tool '{name}'"):
                played.call(name, **given)
        played.call("write", name="a", words="hello")
        assert played.say("Done.").info["allowed_tools"] == {"agent": ["write"]}

    def test_tools_that_are_held_back_come_in_their_turn(self, bfcl: Any, tmp_path: Path) -> None:
        row = json.loads((tmp_path / "tasks.json").read_text())
        (tmp_path / "tasks.json").write_text(json.dumps({**row, "missed_function": {"1": ["read"], "2": ["add"]}}))
        made, (task,) = tasks_of(bfcl)
        for _ in range(2):  # and each conversation begins without them
            played = Played(made, task)
            assert played.first.views["agent"] == "Your tools here, and no others: write."
            with pytest.raises(ValueError, match="this task has no tool 'read'"):
                played.call("read", name="b")
            assert played.say("Done.").observation.text == "User: There are more tools now: read."
            assert played.call("read", name="b") == {"words": "old"}
            with pytest.raises(ValueError, match="this task has no tool 'add'"):
                played.call("add", amount=2)
            assert played.say("?").observation.text == "User: Count two more. There are more tools now: add."
            played.call("add", amount=2)
            assert played.say("Done.").info["allowed_tools"] == {"agent": ["add", "read", "write"]}

    def test_classes_that_a_task_has_must_be_named(self, bfcl: Any) -> None:
        with pytest.raises(ValueError, match="involves the class 'Counter'; known: Drawer; name where"):
            environment(data={**bfcl, "classes": {"Drawer": DRAWER}}).tasks("train")

    def test_states_are_long_where_the_id_says_so(self, bfcl: Any, tmp_path: Path) -> None:
        for name in ("tasks.json", "answers.json"):
            (tmp_path / name).write_text((tmp_path / name).read_text().replace("turn_base_0", "turn_long_context_0"))
        made, (task,) = tasks_of(bfcl)
        assert Played(made, task).call("read", name="long") == {"words": "long " * 100}

    def test_whole_numbers_are_equal_whatever_their_type(self, bfcl: Any) -> None:
        box = build_toolbox_class(bfcl["classes"])
        one, other = (box({"Counter": {"number": 1}}) for _ in range(2))
        one.objects["Counter"].number, other.objects["Counter"].number = 700, 700.0
        assert one.changes() == other.changes() == {"Counter/number": "700"}

    def test_what_the_test_asks_in_any_turn_is_not_trained_on(self, bfcl: Any, tmp_path: Path) -> None:
        row, answer = (json.loads((tmp_path / name).read_text()) for name in ("tasks.json", "answers.json"))
        rows = [{**row, "id": f"t_{n}", "question": [[{"content": f"Write {n}."}], [], [{"content": f"Count {n}."}]]}
                for n in range(4)]  # fmt: skip
        varied = {**row, "id": "v_1", "question": [[{"content": "Write."}], [], [{"content": "count  1."}]]}
        (tmp_path / "tasks.json").write_text("\n".join(map(json.dumps, rows)))
        (tmp_path / "test.json").write_text(json.dumps(varied))
        (tmp_path / "answers.json").write_text(
            "\n".join(json.dumps({**answer, "id": one["id"]}) for one in [*rows, varied])
        )
        _, found = tasks_of({**bfcl, "test_tasks": str(tmp_path / "test.json")})
        assert sorted(task.id for task in found) == ["t_0", "t_2", "t_3", "test/v_1"]
        again = environment(data={**bfcl, "test_tasks": bfcl["tasks"]})
        with pytest.raises(ValueError, match="nothing is left to train on"):
            again.tasks("train")

    def test_no_split_of_one_file_asks_in_any_turn_what_another_asks(self, bfcl: Any, tmp_path: Path) -> None:
        row, answer = (json.loads((tmp_path / name).read_text()) for name in ("tasks.json", "answers.json"))
        rows = [{**row, "id": f"t_{n}", "question": [[{"content": f"Write {n}."}], [], [{"content": f"Count {n // 2}."}]],
                 "missed_function": {"1": ["add"]}} for n in range(60)]  # fmt: skip
        (tmp_path / "tasks.json").write_text("\n".join(map(json.dumps, rows)))
        (tmp_path / "answers.json").write_text("\n".join(json.dumps({**answer, "id": one["id"]}) for one in rows))
        made = environment(data=bfcl)
        asked = [{words for task in made.tasks(split) for words in task.data["asks"]} for split in SPLITS]
        assert all(one.isdisjoint(other) for one, other in combinations(asked, 2))
        assert len(made.tasks("train")) > 30  # that there are more tools now is nothing that is asked

    def test_two_tasks_or_answers_of_one_id_are_refused(self, bfcl: Any, tmp_path: Path) -> None:
        for name, says in (("tasks.json", "two tasks of the id 'multi_turn_base_0'"), ("answers.json", "line 1 too")):
            text = (tmp_path / name).read_text()
            (tmp_path / name).write_text(text + text)
            with pytest.raises(ValueError, match=says):
                environment(data=bfcl).tasks("train")
            (tmp_path / name).write_text(text)

    def test_agents_are_told_of_all_methods(self) -> None:
        tools = {
            tool.name: tool for tool in SessionSource(build_toolbox_class({"Drawer": DRAWER, "Counter": COUNTER})).tools
        }
        assert sorted(tools) == ["add", "read", "write"]
        assert tools["write"].description == "Write a note."
        assert list(tools["write"].parameters["properties"]) == ["name", "words"]

    def test_what_is_equal_has_not_changed(self) -> None:
        """Whatever the kinds of keys, their order, what lies inside what, and what objects keep for themselves."""
        box = build_toolbox_class({"Drawer": DRAWER, "Counter": COUNTER})
        one, other = (box({"Drawer": {"notes": {"a": "x"}}}) for _ in range(2))
        for made, keys in ((one, (1, "1b", None)), (other, (None, "1b", 1))):
            made.objects["Drawer"].notes.update({key: {2, 1} for key in keys})
            made.objects["Drawer"].notes["a"]._written_at = made
        assert one.changes() == other.changes() != {}
        one.objects["Drawer"].notes["a"].words = "y"
        assert one.changes() != other.changes()

    def test_two_methods_of_one_name_are_refused(self) -> None:
        with pytest.raises(ValueError, match="two of them have a method 'read'"):
            build_toolbox_class({"Drawer": DRAWER, "Shelf": "tests.simulated_classes:Shelf"})

    def test_calls_are_read_and_never_run(self) -> None:
        assert parse_call("box.add(amount=-2)", "") == ["add", {"amount": -2}]
        assert parse_call("f([1, {'a': (2,)}], b=None)", "") == ["f", {"*0": [1, {"a": (2,)}], "b": None}]
        for wrong in ("f(g())", "f", "import os", "f(a for a in b)", "", "f(**{'a': 1})" * 0 + "1 + f()"):
            with pytest.raises(ValueError, match="is no call of a tool"):
                parse_call(wrong, "a.json, line 1")

    @pytest.mark.parametrize(
        ("row", "says"),
        [
            ({"id": "other", "question": [], "initial_config": {}}, "has no 'other'"),
            ({"id": "multi_turn_base_0", "question": [], "initial_config": {}}, "'question' has no turns"),
            ({"id": "multi_turn_base_0", "question": ["a"], "initial_config": {}}, "must be a list of messages"),
            ({"id": "multi_turn_base_0", "question": [[], [], []]}, "'involved_classes' is missing"),
            (
                {"id": "multi_turn_base_0", "question": [[], [], []], "missed_function": {"one": []}},
                "has 'one' for a turn",
            ),
            (
                {"id": "multi_turn_base_0", "question": [[], [], []], "involved_classes": []},
                "'initial_config' is missing",
            ),
            ({"id": "multi_turn_base_0", "question": [[{"content": "a"}]]}, "1; give the file that belongs to it"),
        ],
    )
    def test_another_layout_is_refused_by_its_line(self, bfcl: Any, tmp_path: Path, row: Any, says: str) -> None:
        (tmp_path / "tasks.json").write_text(json.dumps(row))
        with pytest.raises(ValueError, match=r"tasks\.json, line 1") as caught:
            load_benchmark("bfcl", bfcl["tasks"], "", bfcl["answers"], "")
        assert says in str(caught.value)
