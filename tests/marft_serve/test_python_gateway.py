"""``marft_serve.Gateway``: sessions whose episodes somebody else drives; and programs given in Python."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import marft
import marft_serve
from marft.runs.episode_files import read_episodes
from marft_serve.gateway.client import Client
from tests.nights import BY_NIGHT

openai = pytest.importorskip("openai", reason="needs openai: pip install 'marft[remote]'")
pytest.importorskip("uvicorn", reason="needs the gateway: pip install 'marft[gateway]'")
pytestmark = pytest.mark.slow

SMALL = {"algorithm": "grpo", "rollout": {"tasks_per_step": 2, "samples_per_task": 2}, "training": {"steps": 1}}


def ask(client: Client, text: str) -> str:
    with openai.OpenAI(**client.keywords, max_retries=0) as asking:
        said = asking.chat.completions.create(model="any", messages=[{"role": "user", "content": text}])
    return str(said.choices[0].message.content)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("recorded")


@pytest.fixture(scope="module")
def gateway(folder: Path) -> Iterator[marft_serve.Gateway]:
    with marft_serve.Gateway("demo", device="cpu", threads=1, record=folder) as opened:
        yield opened


def test_words_are_a_task_that_whoever_drives_it_grades(gateway: marft_serve.Gateway) -> None:
    with gateway.session("What is 2 + 3?") as session:
        assert session.observation == "What is 2 + 3?"
        thought = ask(session.clients["reasoner"], session.observation)
        said = ask(session.clients["actor"], thought)
        episode = session.end(said, reward=0.5, success=True, agent_rewards={"actor": 0.25})
    assert [action.agent for action in episode.actions] == ["reasoner", "actor"]
    assert episode.actions[1].sees == (episode.actions[0].id,)
    assert (episode.status, episode.total_reward, episode.success) == ("terminated", 0.5, True)
    assert episode.transitions[0].agent_rewards == {"actor": 0.25}
    assert session.episode is episode


def test_a_task_of_the_environment_is_graded_by_it(gateway: marft_serve.Gateway) -> None:
    task = gateway.tasks("test")[0]
    right = task.data["entry"]["answer"]
    for answer, reward in ((rf"\boxed{{{right}}}", 1.0), (r"\boxed{-1}", 0.0)):
        session = gateway.session(task)
        with pytest.raises(ValueError, match="graded by the environment"):
            session.end(answer, reward=1.0)
        assert session.step(answer) is None
        assert session.episode is not None
        assert (session.episode.total_reward, session.episode.success) == (reward, bool(reward))


def test_tasks_are_copies_that_change_none_of_the_environments(gateway: marft_serve.Gateway) -> None:
    task, right = gateway.tasks("test")[0], gateway.tasks("test")[0].data["entry"]["answer"]
    task.data["entry"]["answer"] = "anything"
    assert gateway.tasks("test")[0].data["entry"]["answer"] == right


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"reward": float("nan")}, "finite"),
        ({"agent_rewards": {"nobody": 1.0}}, "nobody"),
        ({"answer": 3.5j}, "whole text"),
    ],
)
def test_what_is_no_grade_or_answer_is_refused_and_may_be_given_again(
    gateway: marft_serve.Gateway, said: dict[str, Any], words: str
) -> None:
    session = gateway.session("?")
    with pytest.raises(ValueError, match=words):
        session.step(**said)
    assert session.end("x", reward=1).total_reward == 1.0
    with pytest.raises(ValueError, match="is over"):
        session.step("again")


def test_an_error_calls_its_session_off_and_no_other(gateway: marft_serve.Gateway) -> None:
    other = gateway.session("other")
    with pytest.raises(ZeroDivisionError), gateway.session("?") as session:
        1 / 0  # noqa: B018
    assert session.episode is not None
    assert (session.episode.status, session.episode.error) == ("failed", "it was called off")
    with pytest.raises(openai.APIStatusError) as refused:
        ask(session.clients["actor"], "2 + 2?")
    assert refused.value.status_code == 410
    assert ask(other.clients["actor"], "2 + 2?")
    assert other.end().status == "terminated"


def test_many_sessions_at_once_from_many_threads(gateway: marft_serve.Gateway) -> None:
    found: dict[int, marft.Episode] = {}

    def drive(number: int) -> None:
        with gateway.session(f"What is {number} + 3?") as session:
            ask(session.clients["actor"], session.observation)
            found[number] = session.end(reward=float(number))

    threads = [threading.Thread(target=drive, args=(number,)) for number in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {number: episode.total_reward for number, episode in found.items()} == {n: float(n) for n in range(24)}
    assert all(f"{number} + 3" in episode.task.prompt for number, episode in found.items())


def test_one_that_takes_too_long_is_over(folder: Path) -> None:
    with marft_serve.Gateway("demo", device="cpu", threads=1, timeout=0.2) as gateway:
        session = gateway.session("?")
        threading.Event().wait(1.0)
        episode = session.end("late", reward=1.0)
        left = gateway.session("left open")
    assert (episode.status, episode.total_reward) == ("timed_out", 0.0)
    left.cancel()
    assert left.episode is not None
    assert left.episode.status in ("failed", "timed_out")
    with pytest.raises(ValueError, match="is closed"):
        gateway.session("?")
    gateway.close()


def test_what_was_recorded_has_ids_and_no_reward_that_nobody_gave(tmp_path: Path) -> None:
    with marft_serve.Gateway("demo", device="cpu", threads=1, record=tmp_path / "sessions") as gateway:
        for reward in (None, 1.0):
            with gateway.session("What is 2 + 3?") as session:
                ask(session.clients["actor"], session.observation)
                session.end(reward=reward)
    (file,) = (tmp_path / "sessions").iterdir()
    ungraded, graded = read_episodes(file)
    assert (len(ungraded.transitions), len(graded.transitions)) == (0, 1)
    assert len(ungraded.actions[0].tokens) == len(ungraded.actions[0].log_probs) > 0


@pytest.mark.parametrize(
    ("recipe", "options", "words"),
    [
        ("demo", {"checkpoint": "last"}, "a recipe has none"),
        ("demmo", {}, "demo"),
        ("demo", {"record": 3}, "folder"),
        ("demo", {"agents": {"actor": {"memory": "own"}}}, "memory"),
    ],
)
def test_what_cannot_be_opened_is_refused_in_words(recipe: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        marft_serve.Gateway(recipe, **options)


@BY_NIGHT
def test_a_run_is_asked_with_the_weights_it_has_learned(tmp_path: Path) -> None:
    changes = {
        "algorithm.optimizer.learning_rate": 0.05,
        "algorithm.entropy_coefficient": 1.0,
    }  # nothing is earned in one step
    run = marft.train("demo", changes, output=tmp_path, device="cpu", threads=1, **SMALL)
    log_probs = {}
    for checkpoint in ("base", "last"):
        with marft_serve.Gateway(run, checkpoint=checkpoint) as gateway, gateway.session("What is 2 + 3?") as session:
            ask(session.clients["actor"], session.observation)
            log_probs[checkpoint] = session.end().actions[0].log_probs
    assert not np.array_equal(log_probs["base"], log_probs["last"])


@BY_NIGHT
def test_a_function_is_a_team(tmp_path: Path) -> None:
    asked: list[str] = []

    def solve(task: Any, clients: dict[str, Client]) -> str:
        asked.append(task.id)
        return ask(clients["actor"], ask(clients["reasoner"], task.prompt))

    run = marft.train("demo", program=solve, output=tmp_path, device="cpu", threads=1, **SMALL)
    assert len(asked) == 4
    assert [action.agent for action in run.episodes(step=1)[0].actions] == ["reasoner", "actor"]
    marft.evaluate(run, tasks=2, modes="greedy", checkpoints="last", program=solve)
    with pytest.raises(ValueError, match="program is a function"):
        marft.train("demo", program="solve")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="give one of them"):
        marft.train("demo", program=solve, team={"organization": "chain"})


def test_a_program_that_asks_nobody_ends_the_run_in_words(tmp_path: Path) -> None:
    """Every critic has something to judge but then; a client that asks another server is the usual mistake."""
    with pytest.raises(marft.RunError, match=r"no agent was asked in any of 8 episodes.*base_url"):
        marft.train(
            "demo", {"rollout.tasks_per_step": 2, "training.steps": 3}, output=str(tmp_path), device="cpu",
            program=lambda task, clients: "56",
        )  # fmt: skip


def test_a_role_that_is_none_is_answered_with_those_that_are(tmp_path: Path) -> None:
    with marft_serve.Gateway("demo", device="cpu", threads=1) as gateway, gateway.session("?") as session:
        with pytest.raises(KeyError, match="no agent is called 'actr'; did you mean 'actor'"):
            session.clients["actr"]
        session.cancel()
