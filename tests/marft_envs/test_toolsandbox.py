"""ToolSandbox's scenarios in a process of their own: played in its own way, the same each time, and never lost."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from marft.common.types import JointAction, Observation, Step, Task
from marft.config import parse_recipe
from marft.config.interfaces.environment import Split
from marft.envs.scripted_policy import PolicyInput
from marft_envs.env_check.runner import run_checks
from marft_envs.env_check.target import find_target
from marft_envs.env_process.process import EnvProcessError
from marft_envs.toolsandbox.environment import ToolSandbox, ToolSandboxSession
from marft_lab.scripted_team import ScriptedTeam
from tests.episodes import make_action
from tests.marft_envs.test_vetting_built_in import AT_NIGHT, BY_DAY
from tests.nights import BY_NIGHT, NIGHT
from tests.sources import TESTS

FAKE = TESTS / "toolsandbox_fake"
SPLITS: tuple[Split, ...] = ("train", "validation", "test")


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python that finds the stand-in, and nothing of what is installed here."""
    file = tmp_path_factory.mktemp("apart") / "python"
    file.write_text(f'#!/bin/sh\nPYTHONPATH={FAKE} TZ=Asia/Tokyo RAPID_API_KEY=a-key exec {sys.executable} -S "$@"\n')
    file.chmod(file.stat().st_mode | stat.S_IXUSR)
    return file


@pytest.fixture
def made(python: Path) -> Iterator[Any]:
    opened: list[ToolSandbox] = []

    def make(**table: Any) -> ToolSandbox:
        opened.append(ToolSandbox(**{"python": str(python), "timeout_seconds": 20.0, **table}))
        return opened[-1]

    yield make
    for environment in opened:
        environment._process.close()


def tasks_of(environment: ToolSandbox) -> dict[str, Task]:
    return {task.id: task for split in SPLITS for task in environment.tasks(split)}


def begun(environment: ToolSandbox, name: str = "lamp_on", seed: int = 0) -> tuple[ToolSandboxSession, Observation]:
    talk = environment.start(tasks_of(environment)[name], seed)
    return talk, asyncio.run(talk.reset())


def said(talk: ToolSandboxSession, text: str, role: str = "agent") -> Step:
    action = make_action(role, text=text)
    return asyncio.run(talk.step(JointAction(action, (action,))))


def call(name: str, /, **arguments: Any) -> str:
    return f'<tool_call>{{"name": "{name}", "arguments": {json.dumps(arguments)}}}</tool_call>'


@pytest.mark.slow
class TestConversations:
    def test_a_user_who_leaves_is_shown_once_with_the_tools(self, made: Any) -> None:
        talk, shown = begun(made())
        assert shown.text.startswith("Assume nothing.\nUser: Light, please\n\nTools, called as <tool_call>")
        assert 'set_lamp: Turn the lamp on or off. Arguments: {"type":"object","properties":{"on":{}}}' in shown.text
        assert "end_conversation" not in shown.text
        assert shown.turn == ()
        step = said(talk, f"So. {call('set_lamp', on=True)}")
        assert (step.observation.text, step.reward, step.terminated) == ("Tool: None", 0.0, False)
        last = said(talk, "Done: the last words.")
        assert (last.reward, last.terminated, last.truncated, last.success) == (1.0, True, False, True)
        assert last.info["measures"] == {"milestones": 1.0, "minefields": 0.0, "turns": 2.0}

    def test_who_says_nothing_of_it_earns_the_half_of_it_and_is_not_done(self, made: Any) -> None:
        talk, _ = begun(made())
        said(talk, call("set_lamp", on=True))
        last = said(talk, "")
        assert (last.reward, last.terminated, last.success) == (0.5, True, False)
        talk, _ = begun(made(success_threshold=0.5))
        said(talk, call("set_lamp", on=True))
        assert said(talk, "").success

    def test_a_conversation_that_nobody_plays_on_is_let_go(self, made: Any) -> None:
        talk, _ = begun(made())
        asyncio.run(talk.close())
        with pytest.raises(EnvProcessError, match="KeyError"):
            said(talk, "the last words")

    @pytest.mark.parametrize(
        ("text", "heard"),
        [
            (call("nothing"), "NameError: there is no tool 'nothing'"),
            (call("tool'); raise SystemExit(0)#"), "NameError: there is no tool"),
            (call("end_conversation"), "NameError: there is no tool 'end_conversation'"),
            (call("set_lamp", on="yes"), "TypeError: on is no bool"),
            (call("set_lamp", of=True), "TypeError: set_lamp() got an unexpected keyword argument 'of'"),
            ('<tool_call>{"name": "set_lamp", "arguments": [1]}</tool_call>', "TypeError: the arguments of set_lamp"),
            (call("set_lamp", on=float("nan")), "NameError: name 'nan' is not defined"),
            (f'<tool_call>{{"name": "set_lamp", "arguments": {{"on": {"[" * 300}{"]" * 300}}}}}</tool_call>', "cannot be"),
            (call("\ud800"), "NameError: there is no tool '?'"),
            (call("set_lamp", **{"on": True, "\ud800": 1}), "got an unexpected keyword argument '?'"),
            (call("misbehave", how="tell"), "ValueError: no <Expr at 0x…>"),
            (call("search_web"), "no key"),
        ],
    )  # fmt: skip
    def test_calls_that_cannot_be_made_say_why_and_nothing_else_happens(self, made: Any, text: str, heard: str) -> None:
        talk, _ = begun(made(), "lamp_on_more_tools")
        step = said(talk, text)
        assert heard in step.observation.text
        assert not step.terminated
        said(talk, call("set_lamp", on=True))
        assert said(talk, "the last words").reward == 1.0

    def test_several_calls_are_made_at_once_and_those_beyond_four_are_not(self, made: Any) -> None:
        talk, _ = begun(made())
        step = said(talk, "".join([call("set_lamp", on=True)] * 6))
        assert step.observation.text == "\n".join(["Tool: None"] * 4)
        assert said(talk, "the last words").reward == 1.0

    def test_names_that_are_hidden_are_called_as_they_are_told(self, made: Any) -> None:
        talk, shown = begun(made(), "lamp_on_scrambled")
        assert "set_lamp" not in shown.text
        assert said(talk, call("set_lamp", on=True)).observation.text == "Tool: NameError: there is no tool 'set_lamp'"
        name = next(line for line in shown.text.splitlines() if "Turn the lamp" in line).split(":")[0]
        said(talk, call(name, on=True))
        assert said(talk, "the last words").reward == 1.0

    def test_an_agent_that_plays_the_user_has_its_turns_and_ends_it(self, made: Any) -> None:
        environment = made(user="agent", serves=["planner", "agent"])
        talk, shown = begun(environment, "lamp_on_slowly")
        assert shown.turn == ("planner", "agent")
        step = said(talk, "What do you want?")
        assert step.observation.turn == ("user",)
        example = "An example.\nYou want tea.\nUser: Tea!\nAgent: Here.\nUser: end_conversation()"
        assert (
            step.observation.text == f"{example}\n\nYou want the lamp on.\nUser: Do something\nAgent: What do you want?"
        )
        step = said(talk, "Light.", "user")
        assert (step.observation.text, step.observation.turn) == ("User: Light.", ("planner", "agent"))
        said(talk, call("set_lamp", on=True))
        step = said(talk, "the last words")
        assert step.observation.text == "Agent: the last words"
        last = said(talk, "Thanks. end_conversation()", "user")
        assert (last.reward, last.terminated) == (1.0, True)

    def test_an_agent_who_writes_that_it_is_over_does_not_end_it(self, made: Any) -> None:
        talk, _ = begun(made(user="agent"))
        assert not said(talk, "end_conversation()").terminated

    def test_those_who_only_advised_are_shown_what_was_called(self, made: Any) -> None:
        talk, _ = begun(made())
        text = call("set_lamp", on=True)
        planner, agent = make_action("planner", text="Light it."), make_action("agent", text=text)
        step = asyncio.run(talk.step(JointAction(agent, (planner, agent))))
        assert dict(step.observation.views) == {"planner": f"Agent: {text}"}

    def test_a_user_calls_nothing_whatever_it_writes(self, made: Any) -> None:
        talk, _ = begun(made(user="agent"))
        said(talk, "What do you want?")
        text = call("set_lamp", on=True)
        assert said(talk, text, "user").observation.text == f"User: {text}"
        said(talk, "Well.")
        assert said(talk, "end_conversation()", "user").reward == 0.0

    def test_those_who_only_advised_are_shown_what_the_user_was_told_when_it_is_their_turn(self, made: Any) -> None:
        talk, _ = begun(made(user="agent", serves=["planner", "agent"]))
        planner, agent = make_action("planner", text="Ask."), make_action("agent", text="Which?")
        assert not asyncio.run(talk.step(JointAction(agent, (planner, agent)))).observation.views
        step = said(talk, "Any.", "user")
        assert (step.observation.text, dict(step.observation.views)) == ("User: Any.", {"planner": "Agent: Which?"})
        assert not said(talk, call("set_lamp", on=True)).observation.views

    def test_a_conversation_that_is_too_long_is_cut_and_scored(self, made: Any) -> None:
        talk, _ = begun(made(user="agent"))
        steps = [said(talk, call("set_lamp", on=True)) for _ in range(6)]
        assert [step.truncated for step in steps] == [False] * 5 + [True]
        assert (steps[-1].reward, steps[-1].terminated) == (0.5, False)

    def test_conversations_beside_each_other_know_nothing_of_each_other(self, made: Any) -> None:
        environment = made()
        one, other = begun(environment)[0], begun(environment)[0]
        said(one, call("set_lamp", on=True))
        assert said(other, "the last words").reward == 0.5
        assert said(one, "the last words").reward == 1.0

    def test_texts_that_are_no_text_harm_nothing(self, made: Any) -> None:
        for text in ("\ud800", "\x00", "x" * 1_000_000, call("set_lamp", on="\ud800"), "<tool_call>" * 1000):
            talk, _ = begun(made())
            said(talk, text)

    @BY_NIGHT
    def test_the_same_seed_comes_to_the_same_at_any_time_in_any_process(self, made: Any) -> None:
        heard = []
        for seed in (1, 1, 2):
            talk, shown = begun(made(), "add_Bo", seed)
            heard.append((shown.text, said(talk, call("add_person", name="Bo")).observation.text))
        assert heard[0] == heard[1] != heard[2]
        assert len({begun(made(), "lamp_on_more_tools")[1].text for _ in range(3)}) == 1
        talk, _ = begun(made())
        assert said(talk, call("what_time")).observation.text == "Tool: ('2024-05-15T10:30:00', 1715769000.0)"

    def test_seeds_of_one_conversation_are_not_those_of_another(self, made: Any) -> None:
        environment = made()
        alone, _ = begun(environment, "add_Bo", 1)
        first = said(alone, call("add_person", name="a")).observation.text
        second = said(alone, call("add_person", name="b")).observation.text
        one, other = begun(environment, "add_Bo", 1)[0], begun(environment, "add_Bo", 5)[0]
        assert said(one, call("add_person", name="a")).observation.text == first
        said(other, call("add_person", name="a"))
        assert said(one, call("add_person", name="b")).observation.text == second


@pytest.mark.slow
class TestTasks:
    def test_scenarios_that_vary_one_another_are_in_one_split(self, made: Any) -> None:
        environment = made(user="agent", include_web=True)
        where = {task.id: split for split in SPLITS for task in environment.tasks(split)}
        assert len(where) == 29
        assert set(where.values()) == set(SPLITS)
        kin = ("lamp_on", "lamp_on_more_tools", "lamp_on_scrambled", "lamp_on_slowly", "lamp_on_slowly_scrambled")
        assert len({where[name] for name in kin}) == 1
        assert all(where[name] == where[f"{name}_scrambled"] for name in where if f"{name}_scrambled" in where)
        assert {task.data["group"] for task in environment.tasks("train")}.isdisjoint(
            task.data["group"] for task in environment.tasks("test")
        )

    @pytest.mark.parametrize("other", ["lamp_on_at_night", "bulb", "shine"])
    def test_a_name_or_a_wish_or_first_words_in_common_are_enough_for_one_group(self, made: Any, other: str) -> None:
        tasks = tasks_of(made())
        assert tasks["lamp_on"].prompt == "Light, please"
        assert tasks[other].data["group"] == tasks["lamp_on"].data["group"] != tasks["add_Bo"].data["group"]

    def test_whom_nobody_could_serve_and_what_asks_the_web_is_left_out(self, made: Any) -> None:
        names = set(tasks_of(made()))
        assert {"lamp_on", "add_Bo"} <= names
        assert not {name for name in names if name.startswith("web") or "slowly" in name}
        assert "lamp_on_slowly" in tasks_of(made(user="agent"))
        environment = made(include_web=True)
        talk, _ = begun(environment, "web")
        assert said(talk, call("search_web")).observation.text == "Tool: 'a-key'"

    @BY_NIGHT
    def test_categories_pick_and_leave_out(self, made: Any) -> None:
        scrambled = set(tasks_of(made(categories=["tool_name_scrambled"])))
        assert scrambled == {name for name in tasks_of(made()) if name.endswith("_scrambled")}
        left = set(tasks_of(made(exclude_categories=["tool_name_scrambled"])))
        assert left == {name for name in tasks_of(made()) if not name.endswith("_scrambled")}
        assert all(len(made(limit=1).tasks(split)) == 1 for split in SPLITS)
        for picked in ("categories", "exclude_categories"):
            with pytest.raises(ValueError, match="no scenario is in category 'tool_name_scramble'; did you mean"):
                made(**{picked: ["tool_name_scramble"]}).tasks("train")

    def test_several_categories_pick_what_is_in_all_and_leave_out_what_is_in_any(self, made: Any) -> None:
        picked = made(user="agent", categories=["tool_name_scrambled", "multiple_user_turn"])
        assert set(tasks_of(picked)) == {"lamp_on_slowly_scrambled"}
        left = made(user="agent", exclude_categories=["tool_name_scrambled", "single_user_turn"])
        assert set(tasks_of(left)) == {"lamp_on_slowly"}

    def test_a_python_at_home_is_found(self, made: Any, python: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HOME", str(python.parent))
        assert made(python="~/python").tasks("train")

    @BY_NIGHT
    def test_which_split_a_scenario_is_in_does_not_depend_on_what_else_is_wanted(self, made: Any) -> None:
        where = {task.id: split for split in SPLITS for task in made(user="agent", include_web=True).tasks(split)}
        few = made(user="agent", categories=["multiple_user_turn"])
        for wanted in (made(), made(categories=["tool_name_scrambled"]), few):
            assert all(where[task.id] == split for split in SPLITS for task in wanted.tasks(split))

    def test_what_cannot_be_loaded_is_refused_with_its_reason(self, tmp_path: Path) -> None:
        bare = tmp_path / "python"
        bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
        bare.chmod(0o755)
        with pytest.raises(ValueError, match="No module named 'tool_sandbox'"):
            ToolSandbox(python=str(bare)).tasks("train")


@pytest.mark.slow
class TestLost:
    @BY_NIGHT
    def test_a_tool_that_hangs_or_kills_loses_its_conversations_in_words(self, made: Any) -> None:
        for how, words in (
            ("hang", "has not answered in 1 seconds, and was ended"),
            ("die", "exit status 3.*going down"),
        ):
            environment = made(timeout_seconds=1.0 if how == "hang" else 20.0)
            talk, _ = begun(environment)
            with pytest.raises(EnvProcessError, match=words):
                said(talk, call("misbehave", how=how))
            assert said(begun(environment)[0], "the last words").reward == 0.5

    def test_a_panic_is_told_at_once_and_loses_no_other_conversation(self, made: Any) -> None:
        other, _ = begun(environment := made())
        with pytest.raises(EnvProcessError, match=r"PanicException: .*surrogates not allowed"):
            said(begun(environment)[0], call("misbehave", how="panic"))
        assert said(other, "the last words").reward == 0.5

    def test_a_call_that_takes_too_long_says_so_and_loses_nothing(self, made: Any) -> None:
        environment = made(timeout_seconds=8.0)  # one for a call
        other, _ = begun(environment)
        talk, _ = begun(environment)
        step = said(talk, call("misbehave", how="think") + call("misbehave", how="think"))
        assert step.observation.text == "\n".join(["Tool: TimeoutError: this takes more than 1 seconds"] * 2)
        said(talk, call("set_lamp", on=True))
        assert said(talk, "the last words").reward == 1.0
        assert said(other, "the last words").reward == 0.5

    @pytest.mark.parametrize(
        ("text", "words"), [("break", "RuntimeError: the evaluation is broken"), ("no number", "is no finite number")]
    )
    def test_a_score_that_is_none_is_no_reward(self, made: Any, text: str, words: str) -> None:
        with pytest.raises(EnvProcessError, match=words):
            said(begun(made())[0], text)


@pytest.mark.slow
def test_it_passes_every_check_of_environments(python: Path) -> None:
    subject = find_target("toolsandbox", {"python": str(python)})
    report = run_checks(subject, AT_NIGHT if NIGHT else BY_DAY)
    assert not report.checks_with_grade("failure"), [verdict.findings for verdict in report.results if verdict.findings]


@pytest.mark.slow
def test_a_team_and_a_user_play_by_recipe(python: Path) -> None:
    run = parse_recipe({
        "name": "lamp", "models": {"base": {"path": "tiny"}}, "policies": {"a": {"model": "base"}},
        "agents": [
            {"role": "planner", "policy": "a", "memory": "own"},
            {"role": "agent", "policy": "a", "memory": "own", "answers": True},
            {"role": "user", "policy": "a", "memory": "own"},
        ],
        "team": {"organization": "turns", "order": "sequential"},
        "environment": {
            "name": "toolsandbox", "python": str(python), "user": "agent", "serves": ["planner", "agent"],
        },
    })  # fmt: skip

    def script(cue: PolicyInput) -> str:
        if cue.role == "user":
            return "end_conversation()"
        if cue.role == "planner":
            return "Light it."
        return "the last words" if "Tool: None" in cue.last_message else call("set_lamp", on=True)

    environment: Any = run.environment
    tasks = [task for split in SPLITS for task in environment.tasks(split) if task.id == "lamp_on"]
    with ScriptedTeam(run, script) as team:
        (episode,) = team.play(tasks)
    environment._process.close()
    assert (episode.status, episode.total_reward, episode.success) == ("terminated", 1.0, True)
    assert [action.agent for action in episode.actions] == [
        "planner", "agent", "planner", "agent", "user",
    ]  # fmt: skip


REAL = os.environ.get("MARFT_TOOLSANDBOX_PYTHON", "")


@pytest.mark.slow
@pytest.mark.skipif(
    not (NIGHT and REAL and shutil.which(REAL)), reason="needs a Python with tool_sandbox: MARFT_TOOLSANDBOX_PYTHON"
)
def test_the_real_package_scores_as_when_it_plays_itself() -> None:
    environment = ToolSandbox(python=REAL, user="agent")
    talk, shown = begun(environment, "wifi_off")
    assert "User: Turn off wifi" in shown.text
    assert said(talk, call("set_wifi_status", on=False)).observation.text == "Tool: None"
    said(talk, "Wifi is turned off")
    assert said(talk, "end_conversation()", "user").reward == 1.0
    assert said(begun(ToolSandbox(python=REAL), "wifi_off")[0], "No.").reward == 0.0
    environment._process.close()
    run = [REAL, str(TESTS / "toolsandbox_real/parity.py"), "60"]
    told = json.loads(subprocess.run(run, capture_output=True, check=True, text=True).stdout.splitlines()[-1])
    assert (told["played"], told["different"]) == (60, 0)
    assert len(told["rewards"]) > 5
