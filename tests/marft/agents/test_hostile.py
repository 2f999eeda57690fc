"""Hostile environments: each loses its own episode, and harms no other."""

from __future__ import annotations

import asyncio
import threading
import time
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from marft.agents.game import Attempt
from marft.agents.play import play_all
from marft.common.types import Task
from marft.runs.episode_files import read_episodes, write_episodes
from marft.runs.run_folder import RunFolder
from marft.trainer.train import train
from tests.beside import action_bytes, lost, play_beside, unharmed, world
from tests.helpers import settings
from tests.hostile import (
    ANYTHING,
    ERRORS,
    FINE_STEPS,
    HANGS,
    LOOPS,
    STEPS,
    WorldSession,
    raising,
)
from tests.nights import BY_NIGHT, some

METHODS = ("start", "reset", "step", "close")


@pytest.mark.slow
@pytest.mark.parametrize(("error", "method"), some(product(ERRORS, METHODS)))
def test_whatever_an_environment_raises_loses_its_own_episode_alone(method: str, error: str, tmp_path: Path) -> None:
    g = world({"bad": (method, raising(error))})
    episodes = play_beside(g, ["bad"], tmp_path)
    if method == "close":
        assert episodes["bad"].status == "terminated"
        assert g.threads.failed_closes == 1
    else:
        lost(episodes["bad"], f"environment World: {method}() raised")
    unharmed(episodes, (), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("misdeed", LOOPS)
def test_whatever_it_does_to_its_event_loop_loses_its_own_episode_alone(
    method: str, misdeed: str, tmp_path: Path
) -> None:
    episodes = play_beside(world({"bad": (method, LOOPS[misdeed])}, timeout=1.0), ["bad"], tmp_path)
    assert method == "close" or not episodes["bad"].is_scored
    unharmed(episodes, (), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS[:3])
@pytest.mark.parametrize("value", ANYTHING)
def test_whatever_it_returns_loses_its_own_episode_alone(method: str, value: str, tmp_path: Path) -> None:
    episodes = play_beside(world({"bad": (method, lambda: ANYTHING[value])}), ["bad"], tmp_path)
    lost(episodes["bad"], f"environment World: {method}()")
    unharmed(episodes, (), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS)
def test_a_step_that_cannot_be_read_loses_its_own_episode_alone(step: str, tmp_path: Path) -> None:
    episodes = play_beside(world({"bad": ("step", lambda: STEPS[step])}), ["bad"], tmp_path)
    lost(episodes["bad"], "environment World: step()")
    unharmed(episodes, (), tmp_path)


@pytest.mark.parametrize("step", FINE_STEPS)
def test_odd_types_that_are_plain_are_read(step: str, tmp_path: Path) -> None:
    given, reward, success = FINE_STEPS[step]
    episode = play_beside(world({"odd": ("step", lambda: given)}), ["odd"], tmp_path)["odd"]
    assert (episode.status, episode.total_reward, episode.success) == ("terminated", reward, success)
    assert type(episode.total_reward) is float
    assert type(episode.success) in (bool, type(None))


@pytest.mark.parametrize("data", [{1: object()}, {"task": WorldSession}, None, "x", {"a": b"\xff"}])
def test_what_is_in_the_data_of_a_task_is_the_environments_own(data: Any, tmp_path: Path) -> None:
    g = world({})
    attempts = [Attempt(Task("odd", "?", data), "s"), Attempt(Task("good 0", "?"), "s")]
    episodes = asyncio.run(play_all(g, attempts, 2))
    write_episodes(tmp_path / "e.parquet", episodes)
    assert [episode.status for episode in read_episodes(tmp_path / "e.parquet")] == ["terminated"] * 2


@pytest.mark.slow
def test_whatever_hangs_loses_its_own_episode_alone_and_the_next_ones_get_other_threads(tmp_path: Path) -> None:
    misdeeds = {f"{how} in {method}": (method, HANGS[how]) for method in METHODS for how in HANGS}
    g = world(misdeeds, timeout=1.0)
    began = time.monotonic()
    episodes = play_beside(g, list(misdeeds), tmp_path, live=len(misdeeds))  # the good ones come after them
    assert time.monotonic() - began < 5.0  # before what blocks has come to an end
    for name, (method, _) in misdeeds.items():
        if method == "close":
            assert episodes[name].is_scored
        else:
            lost(episodes[name], f"environment World: {method}() took over 1 s", place=False)
    assert g.threads.failed_closes == len(HANGS)
    unharmed(episodes, (), tmp_path)


@pytest.mark.slow
def test_a_run_goes_on_beside_all_that_and_its_good_episodes_are_the_same_to_the_bit(tmp_path: Path) -> None:
    """With the real engine, whose batches hold good and bad episodes side by side."""
    recorded = []
    for calm in (True, False):
        run = settings(
            "tiny", tmp_path, "--rollout.tasks_per_step", "20", "--rollout.samples_per_task", "1", "--training.steps", "1",
            name=f"calm {calm}".replace(" ", "-"), environment={"name": "tests.hostile:Bad", "calm": calm},
        )  # fmt: skip
        folder = RunFolder.create(run)
        train(run, folder)
        recorded.append(read_episodes(folder.episodes / "step_000001.parquet"))
    good = [[episode for episode in episodes if episode.task.id.startswith("good")] for episodes in recorded]
    assert len(good[0]) == len(good[1]) == 10
    for before, after in zip(*good, strict=True):
        assert after.status == "terminated"
        assert [action_bytes(a) for a in before.actions] == [action_bytes(a) for a in after.actions]
    lost_ones = [episode for episode in recorded[1] if not episode.is_scored]
    assert [episode.task.id.startswith("bad") for episode in lost_ones] == [True] * 10


@BY_NIGHT
@pytest.mark.slow
def test_a_close_that_blocks_costs_no_later_episode(tmp_path: Path) -> None:
    """One thread after the other: the next episode must not be given the one that still hangs."""
    g = world({f"bad {n}": ("close", HANGS["block"]) for n in range(2)}, timeout=0.7)
    episodes = play_beside(g, ["bad 0", "bad 1"], tmp_path, live=1)
    assert [episode.status for episode in episodes.values()] == ["terminated"] * 5
    assert (g.threads.blocked_threads, g.threads.failed_closes) == (2, 2)


@pytest.mark.slow
def test_a_session_whose_thread_still_hangs_is_closed_once_it_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its episode does not wait for that; what the session holds is let go of all the same."""
    free, closed = threading.Event(), threading.Event()

    async def close(session: WorldSession) -> None:
        if session.task.id == "bad":
            assert free.is_set()
            closed.set()

    monkeypatch.setattr(WorldSession, "close", close)
    g = world({"bad": ("step", lambda: free.wait(60))}, timeout=0.3)
    assert play_beside(g, ["bad"], tmp_path)["bad"].status == "timed_out"
    assert g.threads.blocked_threads == 1
    assert not closed.is_set()
    free.set()
    assert closed.wait(30)


def test_what_a_session_leaves_running_ends_with_it(tmp_path: Path) -> None:
    left: list[asyncio.Task[None]] = []

    def leave() -> Any:
        async def spin() -> None:
            while True:
                await asyncio.sleep(0.001)

        left.append(asyncio.create_task(spin()))

    play_beside(world({"bad": ("close", leave)}), ["bad"], tmp_path)
    assert left[0].cancelled()
