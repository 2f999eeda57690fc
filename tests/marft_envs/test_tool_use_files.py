"""Tasks in the layouts of public benchmarks, from files: read as they are meant, or refused with what to do."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from marft.config.load import parse_recipe, to_toml
from marft_envs.tool_use.benchmarks import load_benchmark
from marft_envs.tool_use.retail_goals import generate_retail_tables
from marft_envs.tool_use.users import OUT_OF_SCOPE, STOP, TRANSFER
from tests.conversations import Played, environment
from tests.helpers import recipe

DRAWER, COUNTER = "tests.simulated_classes:Drawer", "tests.simulated_classes:Counter"
TABLES = generate_retail_tables(11)
ORDER = next(order for order in TABLES["orders"].values() if order["status"] == "pending")
TOTAL = str(ORDER["payment_history"][0]["amount"])
TAU = f'''
from tau_bench.types import Task, Action

raise SystemExit("nobody runs this")

TASKS = [
    Task(
        annotator="0",
        user_id="{ORDER["user_id"]}",
        instruction="You want to cancel {ORDER["order_id"]}. " "It was ordered by mistake.",
        actions=[
            Action(name="get_order_details", kwargs={{"order_id": "{ORDER["order_id"]}"}}),
            Action(name="cancel_pending_order", kwargs={{"order_id": "{ORDER["order_id"]}", "reason": "ordered by mistake"}}),
            Action(name="respond", kwargs={{"content": "Done."}}),
        ],
        outputs=["{TOTAL}"],
    ),
    Task(annotator="1", user_id="x", instruction="You want nothing.", actions=[], outputs=[]),
]
'''


@pytest.fixture
def tau(tmp_path: Path) -> dict[str, str]:
    for name, rows in TABLES.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(rows))
    (tmp_path / "tasks_test.py").write_text(TAU)
    (tmp_path / "wiki.md").write_text("Be kind.")
    return {
        "format": "tau",
        "tasks": str(tmp_path / "tasks_test.py"),
        "database": str(tmp_path),
        "rules": str(tmp_path / "wiki.md"),
    }


def tau2_task(**changes: Any) -> dict[str, Any]:
    return {
        "id": "7",
        "user_scenario": {
            "persona": "In a hurry.",
            "instructions": {"domain": "retail", "reason_for_call": "An order is too much.", "known_info": "You are Ann.",
                             "unknown_info": None, "task_instructions": "Be short."},
        },
        "initial_state": None,
        "evaluation_criteria": {
            "actions": [{"action_id": "0", "name": "cancel_pending_order", "info": None,
                         "arguments": {"order_id": ORDER["order_id"], "reason": "ordered by mistake"}}],
            "communicate_info": [TOTAL], "nl_assertions": ["The agent is kind."], "reward_basis": ["DB", "COMMUNICATE", "NL_ASSERTION"],
        },
        **changes,
    }  # fmt: skip


@pytest.fixture
def tau2(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "db.json").write_text(json.dumps(TABLES))
    (tmp_path / "tasks.json").write_text(json.dumps([tau2_task()]))
    return {"format": "tau2", "tasks": str(tmp_path / "tasks.json"), "database": str(tmp_path / "db.json")}


def leaderboard(tmp_path: Path) -> dict[str, Any]:
    row = {
        "id": "multi_turn_base_0",
        "question": [[{"role": "user", "content": "Write hello into a."}], [], [{"role": "user", "content": "Count two more."}]],
        "initial_config": {"Drawer": {"notes": {"b": "old"}}, "Counter": {"number": 3}},
        "path": ["Drawer.write", "Counter.add"], "involved_classes": ["Drawer", "Counter"],
    }  # fmt: skip
    answer = {
        "id": "multi_turn_base_0",
        "ground_truth": [["write('a', words='hello')", "read(name='b')"], [], ["add(amount=2)"]],
    }
    (tmp_path / "tasks.json").write_text(json.dumps(row) + "\n\n")
    (tmp_path / "answers.json").write_text(json.dumps(answer) + "\n")
    return {"format": "bfcl", "tasks": str(tmp_path / "tasks.json"), "answers": str(tmp_path / "answers.json"),
            "classes": {"Drawer": DRAWER, "Counter": COUNTER}}  # fmt: skip


@pytest.fixture
def bfcl(tmp_path: Path) -> dict[str, Any]:
    return leaderboard(tmp_path)


def tasks_of(data: dict[str, Any], **keys: Any) -> Any:
    made = environment(data=data, **keys)
    return made, [task for split in ("train", "validation", "test") for task in made.tasks(split)]


class TestTau:
    def test_its_python_is_read_and_not_run(self, tau: Any) -> None:
        _, found = tasks_of(tau, world="retail", user="agent")
        (task,) = [one for one in found if one.data["calls"]]
        assert task.data["instruction"] == f"You want to cancel {ORDER['order_id']}. It was ordered by mistake."
        assert [name for name, _ in task.data["calls"]] == ["get_order_details", "cancel_pending_order"]
        assert sorted(one.id for one in found) == ["tasks_test/0", "tasks_test/1"]

    @pytest.mark.parametrize(("reason", "told", "solved"), [("ordered by mistake", TOTAL, True), ("no longer needed", TOTAL, False),
                                                            ("ordered by mistake", "all of it", False)])  # fmt: skip
    def test_the_database_and_what_was_told_count(self, tau: Any, reason: str, told: str, solved: bool) -> None:
        made, found = tasks_of(tau, world="retail", user="agent")
        played = Played(made, next(one for one in found if one.data["calls"]))
        assert (played.first.text, played.first.views["agent"]) == ("User: Hello.", "Be kind.")
        assert played.first.views["user"].startswith("You want to cancel")
        played.call("cancel_pending_order", order_id=ORDER["order_id"], reason=reason)
        step = played.say(f"Refunded: {told}.", user="Thanks. ###STOP###")
        assert (step.terminated, step.success) == (True, solved)

    def test_who_plays_the_user_is_told_how_to_behave_and_to_end_it(self, tau: Any, tau2: Any) -> None:
        for data, endings in ((tau, [STOP]), (tau2, [STOP, TRANSFER, OUT_OF_SCOPE])):
            made, found = tasks_of(data, world="retail", user="agent")
            for task in found:
                told = Played(made, task).first.views["user"]
                assert told.startswith(task.prompt)
                assert [one for one in (STOP, TRANSFER, OUT_OF_SCOPE) if one in told] == endings

    @pytest.mark.parametrize("told_before", [True, False])
    def test_to_hand_over_to_a_human_ends_it_at_once(self, tau: Any, told_before: bool) -> None:
        """What is called or said after it no longer counts, as in the original."""
        made, found = tasks_of(tau, world="retail", user="agent")
        played = Played(made, next(one for one in found if one.data["calls"]))
        if told_before:
            played.say(f"You will get {TOTAL}.", user="Do it.")
        played.call("cancel_pending_order", order_id=ORDER["order_id"], reason="ordered by mistake")
        played.call("transfer_to_human_agents", summary="")
        with pytest.raises(ValueError, match="the conversation is over"):
            played.call("modify_user_address", user_id=ORDER["user_id"], address1="", address2="", city="", state="",
                        country="", zip="")  # fmt: skip
        step = played.say(f"You get {TOTAL}.", user="But wait!")
        assert (step.terminated, step.success, step.reward) == (True, told_before, float(told_before))

    def test_json_says_the_same(self, tau: Any, tmp_path: Path) -> None:
        python = load_benchmark("tau", tau["tasks"], tau["database"], "", "").tasks
        rows = [
            {"user_id": "x", "instruction": one.prompt, "outputs": one.data["outputs"],
             "actions": [{"name": name, "kwargs": given} for name, given in one.data["calls"]]}
            for one in python
        ]  # fmt: skip
        (tmp_path / "t.json").write_text(json.dumps(rows))
        (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
        for name in ("t.json", "t.jsonl"):
            found = load_benchmark("tau", str(tmp_path / name), tau["database"], "", "").tasks
            assert [one.data for one in found] == [one.data for one in python]

    def test_a_test_split_may_have_a_file_of_its_own(self, tau: Any, tmp_path: Path) -> None:
        other = (
            f"Task(instruction='{ORDER['order_id']}?', actions=[])\nTask(instruction='You want  NOTHING.', actions=[])"
        )
        (tmp_path / "tasks_dev.py").write_text(other)
        made = environment(data={**tau, "test_tasks": str(tmp_path / "tasks_dev.py")}, world="retail", user="agent")
        assert [task.id for task in made.tasks("test")] == ["test/tasks_dev/0", "test/tasks_dev/1"]
        left = [task.id for split in ("train", "validation") for task in made.tasks(split)]
        assert left == ["tasks_test/0"]  # the other one is asked in the test too

    @pytest.mark.parametrize(
        ("text", "says"),
        [
            ("TASKS = [", "is no Python"),
            ("TASKS = []", "has no Task"),
            ("Task(instruction=hello(), actions=[])", "line 1"),
            ("Task(instruction=3, actions=[])", "'instruction' is 3, and must be of type str"),
            ("Task(instruction='a')", "'actions' is missing"),
            ("Task(instruction='a', actions=[3])", "action 0 is 3, and must be a JSON object"),
            ("Task(instruction='a', actions=[Action(name='x')])", "'kwargs' is missing"),
        ],
    )
    def test_another_layout_is_refused_by_its_place(self, tau: Any, tmp_path: Path, text: str, says: str) -> None:
        (tmp_path / "wrong.py").write_text(text)
        with pytest.raises(ValueError, match=r"wrong\.py") as caught:
            load_benchmark("tau", str(tmp_path / "wrong.py"), tau["database"], "", "")
        assert says in str(caught.value)

    def test_a_folder_without_tables_is_refused(self, tau: Any, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match=r"has no users\.json; give the folder"):
            load_benchmark("tau", tau["tasks"], str(tmp_path / "nowhere"), "", "")


class TestTau2:
    def test_a_scenario_is_told_to_who_plays_the_user(self, tau2: Any) -> None:
        made, (task,) = tasks_of(tau2, world="retail", user="agent")
        assert task.prompt == (
            "Who you are: In a hurry.\nWhy you call: An order is too much.\nWhat you know: You are Ann.\nHow to act: Be short."
        )
        assert task.data["not_checked"] == ["The agent is kind."]
        played = Played(made, task)
        assert played.say("May I?", user="Yes, please.").observation.text == "User: Yes, please."
        played.call("cancel_pending_order", order_id=ORDER["order_id"], reason="ordered by mistake")
        assert played.say(f"You get {TOTAL}.", user="###STOP###").success

    def test_what_the_reward_does_not_go_by_does_not_count(self, tau2: Any, tmp_path: Path) -> None:
        criteria = tau2_task()["evaluation_criteria"]
        for basis, outputs, judged in ((["DB"], [], []), (["DB", "NL_ASSERTION"], [], ["The agent is kind."]),
                                       (["DB", "COMMUNICATE"], [TOTAL], []), (None, [TOTAL], [])):  # fmt: skip
            row = tau2_task(evaluation_criteria={**criteria, "reward_basis": basis})
            (tmp_path / "tasks.json").write_text(json.dumps([row]))
            _, (task,) = tasks_of(tau2, world="retail", user="agent")
            assert (task.data["outputs"], task.data["not_checked"]) == (outputs, judged)

    def test_tools_are_its_own(self, tau2: Any, tau: Any) -> None:
        """An item can be read, and an order whose items were changed can still be sent elsewhere, unlike in τ-bench."""
        place = {"address1": "a", "address2": "", "city": "b", "state": "c", "country": "d", "zip": "e"}
        item = ORDER["items"][0]
        variants = TABLES["products"][item["product_id"]]["variants"]
        for data in (tau2, tau):
            made, found = tasks_of(data, world="retail", user="agent")
            played = Played(made, found[0])
            played.session.tool_object.tables.edit("orders", ORDER["order_id"])["status"] = "pending (item modified)"
            assert ("get_item_details" in dir(made.tool_class)) == (data is tau2)
            if data is tau2:
                assert played.call("get_item_details", item_id=item["item_id"]) == variants[item["item_id"]]
                with pytest.raises(ValueError, match="item not found"):
                    played.call("get_item_details", item_id="x")
                played.call("modify_pending_order_address", order_id=ORDER["order_id"], **place)
            else:
                with pytest.raises(ValueError, match="cannot be modified"):
                    played.call("modify_pending_order_address", order_id=ORDER["order_id"], **place)

    def test_its_own_splits_are_kept(self, tau2: Any, tmp_path: Path) -> None:
        rows = [tau2_task(id=str(n), user_scenario={"instructions": f"Say {n}."}) for n in range(6)]
        rows[4]["user_scenario"]["instructions"] = "Say 1."  # as a task of the test
        (tmp_path / "tasks.json").write_text(json.dumps(rows))
        splits = {"train": ["0", "3", "4"], "test": ["1", "2"], "base": ["0", "1", "2", "3", "4"]}
        (tmp_path / "split_tasks.json").write_text(json.dumps(splits))
        made = environment(data={**tau2, "splits": str(tmp_path / "split_tasks.json")}, world="retail", user="agent")
        assert [task.id for task in made.tasks("test")] == ["tau2/1", "tau2/2"]
        assert sorted(task.id for split in ("train", "validation") for task in made.tasks(split)) == [
            "tau2/0",
            "tau2/3",
        ]
        with pytest.raises(ValidationError, match="without test_tasks"):
            environment(data={**tau2, "splits": "x", "test_tasks": "y"})

    def test_a_user_may_end_it_in_three_ways_and_a_tool_does_not(self, tau2: Any) -> None:
        made, (task,) = tasks_of(tau2, world="retail", user="agent")
        for ending in (STOP, TRANSFER, OUT_OF_SCOPE):
            played = Played(made, task)
            played.call("transfer_to_human_agents", summary="")
            assert not played.say(f"You get {TOTAL}.", user="Wait.").terminated
            played.call("cancel_pending_order", order_id=ORDER["order_id"], reason="ordered by mistake")
            step = played.say("Done.", user=ending)
            assert (step.terminated, step.success) == (True, True)

    @pytest.mark.parametrize(
        ("change", "says"),
        [
            ({"initial_state": {"initialization_data": {}}}, "begins in a state of its own"),
            ({"user_scenario": {"instructions": 3}}, "'instructions' is 3, and must be of type dict or str"),
            (
                {
                    "evaluation_criteria": {
                        "actions": [{"name": "x", "arguments": {}}],
                        "reward_basis": ["DB", "ACTION"],
                    }
                },
                "is rewarded by ACTION",
            ),
            (
                {"evaluation_criteria": {"env_assertions": [3], "reward_basis": ["DB", "ENV_ASSERTION"]}},
                "by ENV_ASSERTION",
            ),
            ({"evaluation_criteria": {"reward_basis": ["COMMUNICATE"]}}, "is not rewarded by its database"),
            ({"evaluation_criteria": None}, "'evaluation_criteria' is None"),
            (
                {"evaluation_criteria": {"actions": [{"name": "reboot", "arguments": {}, "requestor": "user"}]}},
                "the user's own (reboot)",
            ),
        ],
    )
    def test_what_cannot_be_played_is_refused(self, tau2: Any, tmp_path: Path, change: Any, says: str) -> None:
        (tmp_path / "tasks.json").write_text(json.dumps([tau2_task(), tau2_task(**change)]))
        with pytest.raises(ValueError, match=r"tasks\.json, task 1") as caught:
            load_benchmark("tau2", tau2["tasks"], tau2["database"], "", "")
        assert says in str(caught.value)

    @pytest.mark.parametrize(
        ("text", "says"), [("{", "is no JSON"), ("3", "must be a list of tasks"), ("[3]", "must be a JSON object")]
    )
    def test_no_tasks_are_refused(self, tau2: Any, tmp_path: Path, text: str, says: str) -> None:
        (tmp_path / "tasks.json").write_text(text)
        with pytest.raises(ValueError, match=says):
            load_benchmark("tau2", tau2["tasks"], tau2["database"], "", "")

    def test_two_tasks_of_one_id_are_refused(self, tau2: Any, tmp_path: Path) -> None:
        (tmp_path / "tasks.json").write_text(json.dumps([tau2_task(), tau2_task(id=7)]))
        with pytest.raises(ValueError, match="two tasks of the id 'tau2/7'"):
            load_benchmark("tau2", tau2["tasks"], tau2["database"], "", "")

    def test_tables_must_be_there(self, tau2: Any, tmp_path: Path) -> None:
        (tmp_path / "db.json").write_text('{"orders": {}}')
        with pytest.raises(ValueError, match=r"db\.json has no users"):
            load_benchmark("tau2", tau2["tasks"], tau2["database"], "", "")


def test_what_a_format_needs_must_be_named(tau: Any, bfcl: Any) -> None:
    for data, missing in ((tau, "database"), (bfcl, "answers"), (bfcl, "classes")):
        with pytest.raises(ValidationError, match=f"needs {missing} too"):
            environment(data={key: value for key, value in data.items() if key != missing})
    for path, says in (
        ("nowhere:Nothing", "cannot import 'nowhere:Nothing'"),
        ("tests.helpers:recipe", "is no class"),
        ("tests.simulated_classes:Note", "is made without arguments, but: missing a required argument: 'words'"),
    ):
        with pytest.raises(ValidationError, match=says):
            environment(data={**bfcl, "classes": {"Nothing": path}})


def test_files_are_looked_for_beside_the_recipe(bfcl: Any, tmp_path: Path) -> None:
    data = {**bfcl, "tasks": "tasks.json", "answers": "answers.json"}
    run = parse_recipe(recipe(environment={"name": "tool_use", "data": data}, recipe_folder=str(tmp_path)))
    assert run.environment.data.tasks == bfcl["tasks"]  # type: ignore[attr-defined]
    assert parse_recipe(tomllib.loads(to_toml(run))) == run


def test_a_world_and_its_database_belong_together(tau: Any, bfcl: Any) -> None:
    with pytest.raises(ValueError, match="has no table of flights and reservations, which the world 'airline' needs"):
        environment(data=tau, world="airline", user="agent").tasks("train")
    assert "are of 'retail' or 'airline'" in next(iter(environment(data=tau, user="agent").problems(["agent", "user"])))
    assert "all that a user says" in next(iter(environment(data=bfcl, user="agent").problems(["agent", "user"])))
    assert "name who is shown the rules" in next(iter(environment().problems(["clerk"])))


def test_a_task_in_words_needs_somebody_to_play_the_user(tau: Any) -> None:
    made = environment(data=tau, world="retail")
    assert "tell a user in words" in next(iter(made.problems(["agent"])))
    assert made.script() is None
