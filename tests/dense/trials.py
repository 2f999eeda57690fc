"""Training steps of small teams, each held to the dense twin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from marft.common.types import Episode
from marft.config.algorithm import merge_tables
from marft.config.algorithms import PRESETS
from marft.rollout.fork_plans import CandidateTree, CounterfactualForks, CrossProductForks
from tests.dense.report import Report
from tests.dense.twins import Twins, assert_same, snapshot

Table = dict[str, Any]
FAST: Table = {"optimizer": {"learning_rate": 0.01, "warmup_steps": 0}}  # ratios leave 1 within a step
READY: Table = {"critic": {"learning_rate": 0.01, "warmup_steps": 0, "epochs": 2}}
SMOOTH: Table = {"optimizer": {"epsilon": 1e-4}}  # a gradient of nearly nothing, rounded, is no step of full size
STARTS: Mapping[str, Table] = {  # what options are added to
    "action": {"name": "gspo", "objective": {"name": "ppo", "clip": 0.2}, "epochs": 2},
    "token": {"name": "dapo", "dynamic_sampling": 0, "epochs": 2},
    "critic": {"name": "marft", "kl_stop": 0.0, "normalize_advantages": True},
    "token critic": {"name": "ppo", "kl_stop": 0.0},
    "turns": {"name": "happo", "kl_stop": 0.0},
    "a2po": {"name": "a2po", "kl_stop": 0.0},
}


def algorithm(name: str, **changes: Any) -> Table:
    """A preset that moves at once."""
    critic = READY if PRESETS[name].get("critic", {}).get("kind") != "none" else {}
    return merge_tables(merge_tables({**FAST, **critic}, {"name": name}), changes)


def episodes_for(twins: Twins, drift: float = 0.15, seed: int = 0) -> Sequence[Episode]:
    """What the credit is made for: attempts, or what was played anew from some point on."""
    writer = twins.writer(drift=drift, seed=seed)
    written = {
        CandidateTree: writer.tree,
        CounterfactualForks: writer.counterfactual,
        CrossProductForks: writer.crossed,
    }
    return written.get(type(twins.run.algorithm.credit.fork_plan), writer.batch)()


def numbered(episode: Episode, first: int) -> Episode:
    """The same attempt under another number."""
    actions = (replace(a, key=a.key._replace(sample=a.key.sample + first)) for a in episode.actions)
    return replace(episode, sample=episode.sample + first, actions=tuple(actions))


def steps_of(twins: Twins, count: int = 1, drift: float = 0.15, tolerance: float = 1e-4) -> Report:
    """Take training steps and hold each to the dense twin → all that the twin did."""
    whole = Report()
    for step in range(count):
        start = snapshot(twins)
        mine, right = twins.learn(episodes_for(twins, drift, seed=step), step, environment_steps=12 * step)
        assert_same(twins, start, mine, right, tolerance)
        whole.moved += right.moved
        whole.metrics |= right.metrics
    return whole
