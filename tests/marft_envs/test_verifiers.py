"""Environments of ``verifiers`` in a process of their own: asked, scored, and never taken for a reward of 0 when lost."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import stat
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from marft.common.types import JointAction, Observation, Step, Task
from marft.config import parse_recipe
from marft.envs.scripted_policy import PolicyInput
from marft_envs.env_process.process import EnvProcessError, clean_metrics, finite_number, format_messages, format_tool
from marft_envs.env_process.worker.server import format_error as error_described
from marft_envs.env_process.worker.server import split_tool_calls
from marft_envs.verifiers.environment import Verifiers, VerifiersSession
from marft_lab.scripted_team import ScriptedTeam
from tests.episodes import make_action
from tests.nights import BY_NIGHT, NIGHT
from tests.sources import TESTS

FAKE = TESTS / "verifiers_fake"


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python that finds the stand-in, and nothing of what is installed here."""
    file = tmp_path_factory.mktemp("apart") / "python"
    file.write_text(f'#!/bin/sh\nPYTHONPATH={FAKE} exec {sys.executable} -S "$@"\n')
    file.chmod(file.stat().st_mode | stat.S_IXUSR)
    return file


@pytest.fixture
def made(python: Path) -> Iterator[Any]:
    opened: list[Verifiers] = []

    def make(**table: Any) -> Verifiers:
        opened.append(Verifiers(**{"id": "sums", "python": str(python), "timeout_seconds": 20.0, **table}))
        return opened[-1]

    yield make
    for environment in opened:
        environment._process.close()


def begun(environment: Verifiers, index: int = 0) -> tuple[VerifiersSession, Observation]:
    rollout = environment.start(environment.tasks("train")[index], 0)
    return rollout, asyncio.run(rollout.reset())


def said(rollout: VerifiersSession, text: str) -> Step:
    return asyncio.run(rollout.step(JointAction(make_action(text=text))))


@pytest.mark.slow
class TestRollouts:
    def test_one_answer_is_scored_by_the_rubric(self, made: Any) -> None:
        environment = made()
        for text, reward in (("the sum is {}", 1.0), ("no idea", 0.0)):
            rollout, shown = begun(environment)
            task = environment.tasks("train")[0]
            assert shown.text == task.prompt
            step = said(rollout, text.format(task.data["answer"]))
            assert (step.reward, step.terminated, step.success) == (reward, True, reward == 1.0)
            assert step.info["measures"] == {"turns": 1.0, "is_long_": 0.0}

    def test_several_turns_show_what_is_new_or_all(self, made: Any) -> None:
        for shows, first in (("new", "Turn 1"), ("all", "user: ")):
            rollout, _ = begun(made(args={"turns": 3}, visible=shows))
            step = said(rollout, "one")
            assert step.observation.text.startswith(first)
            assert not step.terminated
            assert ("assistant: one" in step.observation.text) == (shows == "all")
            said(rollout, "two")
            assert said(rollout, "three").terminated

    def test_tools_are_told_and_calls_are_read(self, made: Any) -> None:
        rollout, shown = begun(made(args={"turns": 2, "tools": True}))
        assert 'add: Adds. Arguments: {"type":"object","properties":{"a":{"type":"number"}}}' in shown.text
        step = said(rollout, 'So <tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>')
        assert """Turn 1: So  ['add({"a": 1})']""" in step.observation.text

    def test_splits_share_no_prompt_and_its_own_held_out_rows_are_the_test(self, made: Any) -> None:
        for held_out in (False, True):
            environment = made(args={"held_out": held_out})
            parts = {
                split: [task.prompt for task in environment.tasks(split)] for split in ("train", "validation", "test")
            }
            prompts = [prompt for part in parts.values() for prompt in part]
            assert len(prompts) == len(set(prompts)) == (45 if held_out else 41)
            assert (parts["test"] == [f"{n} + 1 =" for n in range(100, 105)]) == held_out
        assert len(made(limit=3).tasks("train")) == 3

    def test_rows_that_all_begin_alike_are_told_apart_by_what_is_not_shown(self, made: Any) -> None:
        for held_out in (False, True):
            environment = made(args={"held_out": held_out, "secret": True})
            parts = {
                split: {task.data["answer"] for task in environment.tasks(split)}
                for split in ("train", "validation", "test")
            }
            answers = [answer for part in parts.values() for answer in part]
            assert len(answers) == len(set(answers)) == (45 if held_out else 41)
            assert all(parts.values())

    def test_many_rollouts_at_once_are_kept_apart(self, made: Any) -> None:
        environment, results = made(args={"turns": 2}), dict[int, float]()
        tasks = environment.tasks("train")

        def play(index: int) -> None:
            rollout, _ = begun(environment, index)
            said(rollout, "first")
            results[index] = said(rollout, tasks[index].data["answer"] if index % 2 else "?").reward

        threads = [threading.Thread(target=play, args=(index,)) for index in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert results == {index: float(index % 2) for index in range(12)}

    def test_one_that_takes_its_time_keeps_no_other_waiting(self, made: Any) -> None:
        environment, heard = made(), list[str]()
        (slow, _), (quick, _) = begun(environment), begun(environment, 1)

        async def tell(rollout: VerifiersSession, text: str) -> None:
            await rollout.step(JointAction(make_action(text=text)))
            heard.append(text)

        async def both() -> None:
            await asyncio.gather(tell(slow, "nap"), tell(quick, "?"))

        asyncio.run(both())
        assert heard == ["?", "nap"]

    def test_a_team_plays_it_by_recipe(self, made: Any, python: Path) -> None:
        run = parse_recipe({
            "name": "sums", "models": {"base": {"path": "tiny"}}, "policies": {"a": {"model": "base"}},
            "agents": [{"role": "solver", "policy": "a"}],
            "environment": {"name": "verifiers", "id": "sums", "python": str(python)},
        })  # fmt: skip

        def script(cue: PolicyInput) -> str:
            return "raise" if cue.task.id.endswith("/3") else str(cue.task.data["answer"])

        environment: Any = run.environment
        with ScriptedTeam(run, script) as team:
            episodes = list(team.play(environment.tasks("train")[:6]))
        environment._process.close()
        lost = [episode for episode in episodes if episode.task.id.endswith("/3")]
        assert all(episode.success and episode.total_reward == 1.0 for episode in episodes if episode not in lost)
        assert all(episode.status == "failed" and "the environment is broken" in episode.error for episode in lost)


@pytest.mark.slow
class TestLost:
    def test_what_the_environment_raises_is_told_and_it_goes_on(self, made: Any) -> None:
        environment = made()
        rollout, _ = begun(environment)
        with pytest.raises(EnvProcessError, match="RuntimeError: the environment is broken"):
            said(rollout, "raise")
        assert said(begun(environment)[0], "?").terminated

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("die", "ended itself .exit status 3.*going down"),
            ("lie", "said what is no answer"),
            ("lie {}", "said what is no answer"),
            ("lie []", "said what is no answer"),
            ("hang", "has not answered in 1 seconds, and was ended"),
        ],
    )
    def test_a_process_that_is_lost_loses_its_rollouts_in_words_and_a_new_one_is_started(
        self, made: Any, text: str, words: str
    ) -> None:
        environment = made(timeout_seconds=1.0 if text == "hang" else 20.0)
        rollout, _ = begun(environment)
        other, _ = begun(environment, 1)
        with pytest.raises(EnvProcessError, match=words):
            said(rollout, text)
        with pytest.raises(EnvProcessError, match=words):
            said(other, "?")
        again, _ = begun(environment)
        assert said(again, "?").terminated
        with pytest.raises(EnvProcessError, match=words):  # still
            said(other, "?")

    def test_a_reward_function_that_raised_and_was_counted_as_0_is_no_reward(self, made: Any) -> None:
        with pytest.raises(EnvProcessError, match="Error calling reward function right: KeyError"):
            said(begun(made())[0], "swallow")

    @pytest.mark.parametrize("text", ["nan", "none"])
    def test_a_reward_that_is_no_number_is_no_reward(self, made: Any, text: str) -> None:
        with pytest.raises(EnvProcessError, match="which is no finite number"):
            said(begun(made())[0], text)

    def test_who_waits_when_it_is_ended_is_told_at_once(self, made: Any) -> None:
        environment, heard = made(), list[str]()
        rollout, _ = begun(environment)

        def wait() -> None:
            try:
                said(rollout, "hang")
            except EnvProcessError as error:
                heard.append(str(error))

        waiting, began = threading.Thread(target=wait), time.monotonic()
        waiting.start()
        time.sleep(0.2)
        environment._process.close()
        waiting.join(10)
        assert heard[0].startswith("it was closed")
        assert time.monotonic() - began < 10

    def test_an_answer_that_nobody_waits_for_any_more_costs_nobody_theirs(self, made: Any) -> None:
        environment = made()
        (left, _), (other, _) = begun(environment), begun(environment, 1)
        with pytest.raises(TimeoutError):
            asyncio.run(asyncio.wait_for(left.step(JointAction(make_action(text="nap"))), 0.1))
        assert said(other, "nap").terminated  # which is answered later

    def test_what_cannot_be_told_is_said_at_once(self, made: Any) -> None:
        began = time.monotonic()
        with pytest.raises(EnvProcessError, match="ValueError: Circular reference"):
            said(begun(made())[0], "round")
        assert time.monotonic() - began < 10

    @BY_NIGHT
    def test_a_process_that_stands_still_and_reads_no_more_is_ended(self, made: Any) -> None:
        environment = made(timeout_seconds=1.0)
        rollout, _ = begun(environment)
        os.killpg(environment._process.get_running()._child._process.pid, signal.SIGSTOP)
        with pytest.raises(EnvProcessError, match="has not answered in 1 seconds, and was ended"):
            said(rollout, "x" * 5_000_000)
        assert said(begun(environment)[0], "?").terminated

    def test_who_asks_for_rows_waits_no_longer_than_for_the_rest(self, made: Any) -> None:
        environment = made()
        running = environment._process.get_running()
        os.killpg(running._child._process.pid, signal.SIGSTOP)
        with pytest.raises(EnvProcessError, match=r"has not answered in 0\.5 seconds, and was ended"):
            running.request({"do": "rows", "held_out": False}, 0.5)
        assert environment._process.get_running() is not running

    def test_one_that_cannot_be_told_anything_is_gone_in_words(self, made: Any) -> None:
        for forgets in (False, True):
            environment = made()
            rollout, _ = begun(environment)
            running = environment._process.get_running()
            os.killpg(running._child._process.pid, signal.SIGSTOP)  # so that it does not notice, and end
            running._child.socket.shutdown(socket.SHUT_WR)
            if forgets:
                running.send_only({"do": "drop", "episode": "x"})
            else:
                with pytest.raises(EnvProcessError, match="is gone"):
                    said(rollout, "?")
            assert running.end_reason
            assert said(begun(environment)[0], "?").terminated

    def test_to_start_may_take_longer_than_an_answer(self, made: Any, python: Path, tmp_path: Path) -> None:
        slow = tmp_path / "python"
        slow.write_text(f'#!/bin/sh\nsleep 1.2\nexec {python} "$@"\n')
        slow.chmod(0o755)
        assert made(python=str(slow), timeout_seconds=1.0).tasks("train")

    def test_one_that_is_killed_before_it_has_read_all_is_said_to_be_killed(self, made: Any) -> None:
        environment = made()
        begun(environment)
        running = environment._process.get_running()
        os.killpg(running._child._process.pid, signal.SIGSTOP)
        running.send_only({"do": "drop", "episode": "x"})
        os.killpg(running._child._process.pid, signal.SIGKILL)
        deadline = time.monotonic() + 10
        while not running.end_reason and time.monotonic() < deadline:
            time.sleep(0.02)
        assert "was killed (SIGKILL)" in running.end_reason
        assert said(begun(environment)[0], "?").terminated

    def test_long_texts_at_once_do_not_come_through_each_other(self, made: Any) -> None:
        environment = made()
        rollouts = [begun(environment, index)[0] for index in range(8)]
        heard = list[float]()

        def tell(rollout: VerifiersSession) -> None:
            heard.append(said(rollout, "x" * 500_000 + f" {rollout.task.data['answer']}").reward)

        threads = [threading.Thread(target=tell, args=(rollout,)) for rollout in rollouts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert heard == [1.0] * 8

    def test_it_ends_with_us(self, made: Any) -> None:
        environment = made()
        begun(environment)
        running = environment._process.get_running()
        process = running._child._process
        environment._process.close()
        deadline = time.monotonic() + 5
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        assert process.poll() is not None

    def test_what_cannot_be_loaded_is_refused_with_its_reason_and_its_process_ended(self, made: Any) -> None:
        before = set(threading.enumerate())
        with pytest.raises(
            ValueError, match=r"'primes' on .*python: verifiers: ModuleNotFoundError: No module named 'primes'"
        ):
            made(id="primes").tasks("train")
        for reads in set(threading.enumerate()) - before:
            reads.join(10)
            assert not reads.is_alive()


def test_a_python_that_is_not_there_is_refused_with_what_to_do() -> None:
    with pytest.raises(ValidationError, match="pip install verifiers"):
        Verifiers(id="sums", python="/no/such/python")
    with pytest.raises(ValidationError, match="Field required"):
        Verifiers(id="sums")  # type: ignore[call-arg]


@pytest.mark.slow
def test_a_python_at_home_is_found(made: Any, python: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(python.parent))
    assert made(python="~/python").tasks("train")


def test_calls_are_read_out_of_a_text_and_what_is_none_stays() -> None:
    text = 'a<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>b<tool_call>no</tool_call>c'
    assert split_tool_calls(text) == ("ab<tool_call>no</tool_call>c", [{"name": "f", "arguments": {"x": 1}}])
    assert split_tool_calls("plain") == ("plain", [])
    assert split_tool_calls(f"</tool_call>{text}") == (
        "</tool_call>ab<tool_call>no</tool_call>c",
        split_tool_calls(text)[1],
    )
    for inside in ("[1]", '"f"', "5", "null", "{}"):
        assert split_tool_calls(f"<tool_call>{inside}</tool_call>") == (f"<tool_call>{inside}</tool_call>", [])


def test_a_call_that_never_ends_or_is_too_deep_stays_as_it_was_written() -> None:
    for text in ("a<tool_call>no", f"<tool_call>{'[' * 100_000}</tool_call>b"):
        assert split_tool_calls(text) == (text, [])
    for text in ('{"name": "f"}', '{"name": "f", "arguments": null}'):
        assert split_tool_calls(f"<tool_call>{text}")[1] == [{"name": "f", "arguments": {}}]


def test_numbers_and_metrics_are_numbers() -> None:
    assert finite_number({"reward": True}, "reward") == 1.0
    for value in ("1", None, float("inf"), float("nan")):
        with pytest.raises(EnvProcessError):
            finite_number({"reward": value}, "reward")
    metrics = {"a b": 1, "c": None, "d": float("nan"), "e": float("inf"), "f": 10**400}
    assert clean_metrics(metrics) == {"a_b": 1.0}
    assert clean_metrics(None) == {}
    assert clean_metrics({"x" * 100: 1}) == {"x" * 64: 1.0}  # no metric has a longer name


def test_tools_and_errors_that_say_little_are_told() -> None:
    assert format_tool({"name": "f", "description": None, "parameters": None}) == "f:"
    error = ValueError("no")
    error.__cause__ = KeyError("x")
    assert error_described(error) == "ValueError: no (KeyError: 'x')"


def test_messages_of_several_speakers_say_who_speaks() -> None:
    assert (
        format_messages([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}])
        == "Be brief.\n\nHi"
    )
    assert (
        format_messages([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes?"}])
        == "user: Hi\n\nassistant: Yes?"
    )


REAL = os.environ.get("MARFT_VERIFIERS_PYTHON", "")


@pytest.mark.slow
@pytest.mark.skipif(
    not (NIGHT and REAL and shutil.which(REAL)), reason="needs a Python with verifiers: MARFT_VERIFIERS_PYTHON"
)
def test_the_real_package_scores_what_a_team_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(TESTS / "verifiers_real"))
    environment = Verifiers(id="marft-sums", python=REAL)
    task: Task = environment.tasks("train")[0]
    for text, reward in ((task.data["answer"], 1.0), ("no idea", 0.0)):
        rollout, shown = begun(environment)
        assert task.prompt in shown.text
        assert said(rollout, text).reward == reward
    with pytest.raises(EnvProcessError, match=r"AssertionError|Error calling reward function right"):
        said(begun(environment)[0], "raise")
    environment._process.close()
