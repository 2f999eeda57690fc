"""Ranks that learn on models of their own decide together, however much each has to do and however far its own moved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from marft.common.types import Episode
from marft.config import RunSettings
from marft.models.backbone import Backbone
from marft.trainer.batching import Packing
from marft.trainer.micro_batch import MicroBatch
from marft.trainer.ranks.interface import SINGLE_RANK
from tests.learners import episodes, recipe
from tests.marft.trainer import test_ranks
from tests.marft.trainer.test_ranks import Meeting, Member, learned

TWO_MODELS = ("--models.other.path", "tiny", "--policies.actor.model", "other")
EPOCHS = ("--algorithm.epochs", "2", "--algorithm.optimizer.epsilon", "1e-4")
STILL = ("--policies.actor.learning_rate", "1e-12")


class Placed(Member):
    """A rank that learns on some models alone."""

    def __init__(self, member: Member, on: Mapping[str, Member | None]) -> None:
        super().__init__(member.meeting, member.rank)
        self._on = on

    def on(self, base: str) -> Member | None:  # type: ignore[override]
        return self._on[base]


def placed(members: Mapping[str, Sequence[int]], run: RunSettings, batch: list[Episode]) -> list[Any]:
    """Weights and metrics of ranks, of which those learn on a model that are named for it."""
    meetings = {base: Meeting(len(ranks)) for base, ranks in members.items()}

    def work(member: Member) -> Any:
        on = {
            base: Member(meetings[base], ranks.index(member.rank)) if member.rank in ranks else None
            for base, ranks in members.items()
        }
        return learned(run, [batch], Placed(member, on))

    return test_ranks.together(1 + max(rank for ranks in members.values() for rank in ranks), work)


def ragged(longer: str) -> list[Episode]:
    """One agent's rows are several micro-batches, and the other's one."""

    def cut(episode: Episode) -> Episode:
        shorter = [replace(a, prompt=a.prompt[:4]) if a.agent != longer else a for a in episode.actions]
        return replace(episode, actions=tuple(shorter))

    return [cut(episode) for episode in episodes(4, noise=0.02)]


def of_two(tmp_path: Path, limit: float, *overrides: str) -> RunSettings:
    return recipe(tmp_path, "ppo", *TWO_MODELS, *EPOCHS, "--algorithm.kl_stop", str(limit), *overrides)


def same(found: Mapping[str, float], right: Mapping[str, float]) -> Mapping[str, tuple[float, float]]:
    """What differs by more than rounding."""
    assert found.keys() == right.keys()
    return {
        name: (found[name], value)
        for name, value in right.items()
        if "difference" not in name and not np.isclose(found[name], value, rtol=2e-3, atol=1e-5, equal_nan=True)
    }


@pytest.mark.parametrize(("longer", "stops"), [("reasoner", True), ("actor", False)])
def test_the_kl_of_all_stops_all_of_them_and_that_of_one_nobody(longer: str, stops: bool, tmp_path: Path) -> None:
    """The actor stands still: its rank would never stop by itself, and the other would where the mean does not."""
    batch, many = ragged(longer), ("--training.tokens_per_micro_batch", "150")
    _, (freely,) = learned(of_two(tmp_path, 1e6, *STILL, *many), [batch], SINGLE_RANK)
    between = (
        freely["kl_before_step"] + freely["agents/reasoner/kl_before_step"]
    )  # half of the second epoch's, for the first one's are 0
    run = of_two(tmp_path, 1e-9 if stops else between, *STILL, *many)
    right, (expected,) = learned(run, [batch], SINGLE_RANK)
    assert expected["kl_stops"] == float(stops)
    assert between > 2 * freely["kl_before_step"] > 1e-9
    for rank, (mine, (said,)) in enumerate(placed({"base": [0], "other": [1]}, run, batch)):
        assert not same(said, expected)
        policy = ("reasoner", "actor")[rank]
        held = [key for key in right if key.startswith((policy, "critic"))]
        assert all(torch.allclose(mine[key], right[key], rtol=1e-4, atol=2e-6) for key in held)


def test_nobody_is_idle_on_a_model_that_it_does_not_learn_on() -> None:
    """There it has no weights."""
    one, two = (cast(Backbone, SimpleNamespace()) for _ in range(2))
    packing = Packing(
        {"a": one, "b": two}, dict.fromkeys("ab"), {}, "action-mean", "action", 9, constant_length=1,
        teammate_text=False, bases={"a": "first", "b": "second"},
    )  # fmt: skip

    def work(member: Member) -> Any:
        here = Placed(member, {"first": None if member.rank else member, "second": member})
        mine = [cast(MicroBatch, SimpleNamespace(backbone=two if member.rank else one)) for _ in range(2)]
        return [batch.backbone for batch in packing.pad_to_ranks(mine, ["a", "b"], here)]

    assert test_ranks.together(2, work) == [[one, one, two, two], [two, two]]


def test_what_several_ranks_learn_on_weighs_as_much_as_what_one_does(tmp_path: Path) -> None:
    run, batch = of_two(tmp_path, 0.0), episodes(3, noise=0.02)
    _, (expected,) = learned(run, [batch], SINGLE_RANK)
    for _, (said,) in placed({"base": [0], "other": [1, 2]}, run, batch):
        assert not same(said, expected)
