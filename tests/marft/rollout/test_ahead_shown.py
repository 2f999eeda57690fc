"""What a run shows of what is played ahead of it: who waits, what waits, and what sampling has taken."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from marft.agents.game import Attempt
from marft.common.types import Choice, Episode
from marft.common.usage import Usage
from marft.rollout.async_rollout.sources import ReplayBuffer, SyncRolloutSource, compute_usage
from marft.rollout.runner import RolloutRunner
from marft.runs.state import State
from tests.episodes import make_action
from tests.playing_ahead import TASKS, ahead, ahead_of, fake, next_step


class TestMetrics:
    def test_what_waits_and_what_is_in_play_is_shown_and_everybody_hears_of_every_episode(self) -> None:
        rollouts = fake(ahead_of(1))
        rollouts.at_once = False
        gathering, heard = ahead(rollouts), list[str]()
        threading.Timer(0.05, lambda: [rollouts.finish(number) for number in (2, 0, 1)]).start()
        collection = gathering.collect(State(), lambda episode: heard.append(episode.name))
        assert (collection.metrics["async/groups_ready"], collection.metrics["async/groups_in_flight"]) == (1.0, 1.0)
        assert heard == [episode.name for episode in collection.episodes]
        assert len(heard) == 4
        gathering.close()

    def test_everybody_hears_of_what_makes_way_too(self) -> None:
        rollouts = fake(
            ahead_of(1, "--algorithm", "{name = 'dapo'}"), pay=lambda a: float(a.sample and a.task.id > "t1")
        )
        gathering, state, heard = ahead(rollouts), State(), list[str]()
        for _ in range(3):
            collection = gathering.collect(state, lambda episode: heard.append(episode.name))
            state = replace(state, step=state.step + 1, tasks_drawn=collection.tasks_drawn)
            gathering.on_publish(state)
        assert len(heard) == len(set(heard)) > 12

    def test_who_waits_for_whom_is_counted_since_the_last_groups_were_there(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        now, idle = [0.0], [0.0]
        monkeypatch.setattr("marft.rollout.async_rollout.sources.time", SimpleNamespace(perf_counter=lambda: now[0]))
        rollouts = fake(ahead_of(1))
        gathering, state = ahead(rollouts), State()
        monkeypatch.setattr(gathering._producer.clock, "total_idle_seconds", lambda: idle[0])
        for waited, idled, overlap in (
            (10.0, 4.0, 0.6),
            (5.0, 0.0, 1.0),
            (8.0, 8.0, 0.0),
            (0.5, 0.25, 0.5),
            (2.0, 2.5, 0.0),
        ):
            now[0], idle[0] = now[0] + waited, idle[0] + idled
            collection = gathering.collect(state, lambda _: None)
            assert collection.metrics["async/sampler_idle_seconds"] == idled
            assert collection.metrics["async/overlap"] == pytest.approx(overlap)
            assert collection.metrics["async/learner_idle_seconds"] == 0.0
            assert gathering.usage_seconds(0.5) == waited
            state = replace(state, step=state.step + 1, tasks_drawn=collection.tasks_drawn)
            gathering.on_publish(state)
        assert "async/overlap" not in gathering.collect(state, lambda _: None).metrics  # no time has passed since


class TestUsage:
    def test_what_a_validation_takes_is_not_the_steps(self) -> None:
        """Five groups' worth of tokens are sampled beside three of its own."""
        rollouts = fake(ahead_of(1))
        counted = {"sampled_tokens": 0.0, "remote_cost": 0.0}
        rollouts.usage = lambda: dict(counted)  # type: ignore[method-assign]
        gathering = ahead(rollouts)
        gathering.collect(State(), lambda _: None)
        gathering.latest_batch_usage()
        sampled = make_action("actor")
        remote = replace(make_action("judge"), usage=Usage(cost=0.25))
        validation = Episode(TASKS[0], "validation/sampled", 0, (sampled, remote), "terminated")
        counted |= {"sampled_tokens": 40.0 + len(sampled.tokens), "remote_cost": 1.25}
        gathering.exclude_validation([validation])
        used = gathering.latest_batch_usage()
        assert (used["sampled_tokens"], used["remote_cost"]) == (40.0, 1.0)
        assert gathering.latest_batch_usage()["sampled_tokens"] == 0.0

    def test_without_a_lag_it_is_what_was_taken_since_a_step_began(self) -> None:
        rollouts = fake(ahead_of(0))
        counted = {"sampled_tokens": 7.0}

        def play(attempts: Sequence[Attempt], *_: object, **__: object) -> list[Episode]:
            counted["sampled_tokens"] += len(attempts)
            return [rollouts.episode(attempt, 0) for attempt in attempts]

        rollouts.play = play  # type: ignore[attr-defined]
        rollouts.usage = lambda: dict(counted)  # type: ignore[method-assign]
        gathering, state = SyncRolloutSource(cast("RolloutRunner", rollouts), TASKS), State()
        for _ in range(2):
            state, _ = next_step(gathering, rollouts, state)
            assert gathering.latest_batch_usage() == {"sampled_tokens": 4.0}
            assert gathering.usage_seconds(0.5) == 0.5
            counted["sampled_tokens"] += 100.0  # of a validation

    def test_what_is_counted_for_the_first_time_is_counted_from_zero(self) -> None:
        rollouts = fake(ahead_of(1))
        gathering = ahead(rollouts)
        rollouts.usage = lambda: {"remote_cost": 0.25}  # type: ignore[method-assign]
        assert gathering.latest_batch_usage() == {"remote_cost": 0.25}

    def test_what_is_learned_from_again_passes_a_validation_on(self) -> None:
        rollouts = fake(ahead_of(1))
        gathering = ReplayBuffer(ahead(rollouts), cast("RolloutRunner", rollouts), TASKS)
        before = gathering.latest_batch_usage()["sampled_tokens"]
        gathering.exclude_validation([Episode(TASKS[0], "validation/sampled", 0, (make_action("a"),), "terminated")])
        assert gathering.latest_batch_usage()["sampled_tokens"] < before


def test_what_episodes_took_is_told_as_engines_and_endpoints_count_it() -> None:
    own = make_action("actor")
    remote = replace(make_action("judge"), usage=Usage(prompt_tokens=7, completion_tokens=3, cost=0.5, retries=1))
    chosen = replace(own, choice=Choice((), 0, np.zeros(2, np.float32)))  # is read, and not sampled
    found = compute_usage([Episode(TASKS[0], "validation/sampled", 0, (own, remote, chosen), "terminated")])
    assert found == {
        "sampled_tokens": float(len(own.tokens)), "prefill/prompt_tokens": 2.0 * len(own.prompt), "remote_prompt_tokens": 7.0,
        "remote_completion_tokens": 3.0, "remote_cost": 0.5, "remote_retries": 1.0,
    }  # fmt: skip
