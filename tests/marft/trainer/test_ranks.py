"""Learning in several processes is learning in one: the same gradients, decisions and numbers, whoever has which share."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from marft.common.types import Episode, Sample
from marft.config import RunSettings
from marft.config.algorithm import AlgorithmSettings, CriticSettings
from marft.config.interfaces.schedule import Progress, UpdatePhase
from marft.models.backbone import Backbone
from marft.trainer.batching import IdleBatch, Packing
from marft.trainer.critic import Critic, CriticBody
from marft.trainer.learner import Learner
from marft.trainer.learner_metrics import MetricAccumulator
from marft.trainer.micro_batch import FixedLogProbs, MicroBatch
from marft.trainer.objectives.ppo import PPO
from marft.trainer.ranks.interface import (
    SINGLE_RANK,
    Ranks,
    SingleRank,
    merge_over_ranks,
    split_share,
    split_share_by_base,
    sum_over_ranks,
)
from marft.trainer.scoring import score_actions
from marft.trainer.update import PolicyUpdater, UpdateSetup
from tests.episodes import make_action
from tests.helpers import lengths_read
from tests.learners import begun, episodes, recipe
from tests.marft.trainer.test_critic import episode
from tests.nights import NIGHT

T = TypeVar("T")
LOADING = threading.Lock()  # models are not loaded by several threads at a time


class Meeting:
    """Where threads that stand for processes exchange what they have."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._slots: list[Any] = [None] * count
        self._barrier = threading.Barrier(count, timeout=60)

    def model_call(self, rank: int, mine: T) -> list[T]:
        self._slots[rank] = mine
        self._barrier.wait()
        everything = list(self._slots)
        self._barrier.wait()
        return everything

    def leave(self) -> None:
        """Nobody waits for one that has failed."""
        self._barrier.abort()


class Member:
    """One of the threads."""

    def __init__(self, meeting: Meeting, rank: int) -> None:
        self.meeting, self.rank, self.count = meeting, rank, meeting.count
        self.asked = 0

    def gather(self, mine: T) -> list[T]:
        self.asked += 1
        return self.meeting.model_call(self.rank, mine)

    def on(self, base: str) -> Member:
        return self

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        wanted = list(parameters)
        mine = [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in wanted]
        for parameter, *parts in zip(wanted, *self.gather(mine), strict=True):
            parameter.grad = torch.stack(parts).sum(0)


def together(count: int, work: Callable[[Member], T]) -> list[T]:
    meeting = Meeting(count)

    def attempt(member: Member) -> T:
        try:
            return work(member)
        except BaseException:
            meeting.leave()
            raise

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(attempt, [Member(meeting, rank) for rank in range(count)]))


def weights(learner: Learner) -> dict[str, Tensor]:
    found = {
        f"{name}.{key}": p.detach().clone()
        for name, one in learner.optimizers.items()
        for key, p in one.parameters.items()
    }
    critic = learner.critic.parameters() if learner.critic else {}
    return found | {f"critic.{key}": p.detach().clone() for key, p in critic.items()}


def learned(run: RunSettings, batches: Sequence[Sequence[Episode]], ranks: Ranks) -> Any:
    """Weights and metrics of a learner after some steps."""
    with LOADING:
        learner = begun(run, ranks)
    rows = [learner.learn(batch, Progress(step, 24 * step)) for step, batch in enumerate(batches)]
    return weights(learner), rows


SMOOTH = ("--algorithm.critic.epsilon", "1e-4")  # a gradient of nearly nothing, rounded, is no step of full size
CASES: Mapping[str, tuple[str, ...]] = {
    "marft": SMOOTH,
    "mappo": SMOOTH,
    "grpo": (),
    "dapo": ("--algorithm.dynamic_sampling", "0", "--algorithm.entropy_coefficient", "0.01"),
    "gspo": ("--algorithm.kl", "{ coefficient = 0.1 }"),
    "reinforce++": (),
    "ppo": ("--algorithm.epochs", "3", "--algorithm.kl_stop", "1e-6", *SMOOTH),
    "happo": ("--algorithm.epochs", "2", *SMOOTH),
    "a2po": SMOOTH,
    "hatrpo": SMOOTH,
}


BY_DAY = {"marft": 2, "gspo": 3, "ppo": 2, "hatrpo": 3}  # a critic, a KL to the base, one that stops, a trust region
COUNTS = [(name, count) for name in CASES for count in (2, 3) if NIGHT or BY_DAY.get(name) == count]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "count"), COUNTS)
def test_ranks_learn_what_one_process_learns(name: str, count: int, tmp_path: Path) -> None:
    run = recipe(tmp_path, name, *CASES[name], "--algorithm.optimizer.epsilon", "1e-4")
    batches = [episodes(6, seed, noise=0.02) for seed in range(2)]
    right, rows = learned(run, batches, SINGLE_RANK)
    found = together(count, lambda member: learned(run, batches, member))
    for mine, said in found:
        assert mine.keys() == right.keys()
        assert all(torch.equal(mine[key], found[0][0][key]) for key in mine), "ranks drift apart"
        for key, value in right.items():
            assert torch.allclose(mine[key], value, rtol=1e-4, atol=2e-6), key
        for row, expected in zip(said, rows, strict=True):
            assert row.keys() == expected.keys()
            off = {
                key: (row[key], value)
                for key, value in expected.items()
                if "difference" not in key and not np.isclose(row[key], value, rtol=2e-3, atol=1e-5, equal_nan=True)
            }
            assert not off


@pytest.mark.parametrize("body", ["frozen", "lora"])
def test_a_critic_is_fitted_by_all_together_and_says_the_same_everywhere(body: str, backbone: Backbone) -> None:
    """Values, ends and what its normaliser has seen are of all episodes, whoever has read which."""
    ends = {"a": np.array([7, 8, 9], np.int32)}
    batch = [episode(make_action("a", prompt=(5, n)), status="truncated", bootstrap=ends) for n in range(3, 8)]

    def fitted(ranks: Ranks) -> Any:
        chosen = {"body": body, "epsilon": 1e-4, "learning_rate": 0.01, "normalize_values": True, "minibatches": 2}
        mine = Critic(
            CriticSettings.model_validate(chosen), "token", {"a": CriticBody("base", deepcopy(backbone))}, [("a", "a")],
            seed=0, tokens_per_batch=1000, ranks=ranks,
        )  # fmt: skip
        for step in range(2):
            values = mine.evaluate(batch)
            metrics = mine.update(values, [row + n for n, row in enumerate(values.actions)], step)
        after = mine.evaluate(batch)
        return [*np.concatenate(after.actions), *(after.final_value(n) for n in range(5)), *metrics.values()]

    right = fitted(SINGLE_RANK)
    for found in together(2, fitted):
        np.testing.assert_allclose(found, right, rtol=1e-4, atol=1e-6)


def test_the_kl_stop_is_decided_by_all_or_none(tmp_path: Path) -> None:
    """One rank's own tokens may be within the limit and another's beyond it."""
    run = recipe(tmp_path, "ppo", "--algorithm.epochs", "4", "--algorithm.kl_stop", "1e-7")
    _, rows = learned(run, [episodes(6)], SINGLE_RANK)
    assert rows[0]["kl_stops"] > 0
    for _, said in together(2, lambda member: learned(run, [episodes(6)], member)):
        assert said[0]["kl_stops"] == rows[0]["kl_stops"]


OWN_BODY = ("mappo", "--algorithm.critic.body", "lora")


@pytest.mark.parametrize(("count", "several", "words"), [(2, 5, ("grpo",)), (3, 1, ("grpo",)), (3, 1, OWN_BODY)])
def test_every_rank_passes_through_a_backbone_equally_often(
    count: int, several: int, words: tuple[str, ...], tmp_path: Path
) -> None:
    """Long actions on one rank, none on another: a sharded base would wait for ever for the one that is done."""
    run = recipe(tmp_path, *words, "--training.tokens_per_micro_batch", "60")
    batch = episodes(several)

    def passes(member: Member) -> int:
        with LOADING:
            learner = begun(run, member)
        calls = 0
        backbone = learner.packing.backbones["actor"]
        original = backbone.hidden_states

        def counted(*arguments: Any) -> Tensor:
            nonlocal calls
            calls += 1
            return original(*arguments)

        backbone.hidden_states = counted  # type: ignore[method-assign]
        learner.learn(batch, Progress(0, 0))
        return calls

    often = together(count, passes)
    assert len(set(often)) == 1
    assert often[0] > 0


def test_who_has_less_to_do_on_a_backbone_is_idle_there_and_all_go_in_one_order() -> None:
    one, two = (cast(Backbone, SimpleNamespace()) for _ in range(2))
    adapters = {"a": "of a", "b": None, "c": "of c"}
    packing = Packing(
        {"a": one, "b": two, "c": one}, adapters, {}, "action-mean", "action", 9, constant_length=1, teammate_text=False
    )
    has = [[one, one], [one, two, two]]

    def work(member: Member) -> Any:
        mine = [cast(MicroBatch, SimpleNamespace(backbone=backbone)) for backbone in has[member.rank]]
        assert packing.pad_to_ranks(mine, ["a", "b", "c"], SINGLE_RANK) == mine
        in_step = packing.pad_to_ranks(mine, ["a", "b", "c"], member)
        assert [batch for batch in in_step if not isinstance(batch, IdleBatch)] == mine
        idle = [batch for batch in in_step if isinstance(batch, IdleBatch)]
        assert all(batch.adapter in ([None] if batch.backbone is two else ["of a", "of c"]) for batch in idle)
        return [batch.backbone for batch in in_step]

    assert together(2, work) == [[one, one, two, two]] * 2


def whole(backbone: Backbone, *policies: str) -> Packing:
    """Policies that are their base."""
    return Packing(
        dict.fromkeys(policies, backbone), dict.fromkeys(policies), {"a": 1.0}, "action-mean", "action", 99,
        constant_length=1, teammate_text=False,
    )  # fmt: skip


def test_a_rank_that_has_nothing_to_score_passes_through_the_backbone_with_the_others(backbone: Backbone) -> None:
    sample = Sample(make_action("a"), 1.0, np.zeros(1))

    def scored(member: Member) -> Any:
        forwarded = lengths_read(mine := deepcopy(backbone))
        return score_actions(whole(mine, "a"), [sample], member), forwarded

    (first, read), (second, idle) = together(2, scored)
    assert first.keys() == second.keys() == {sample.action.key}
    assert (read, idle) == ([sum(read)], [1])


def test_what_is_scored_before_a_policy_moves_is_scored_by_one_rank(backbone: Backbone) -> None:
    sample = Sample(make_action("a"), 1.0, np.zeros(1))

    def scored(member: Member) -> Any:
        forwarded = lengths_read(mine := deepcopy(backbone))
        settings = AlgorithmSettings.model_validate({})
        update = PolicyUpdater(UpdateSetup(settings, PPO(), {}, whole(mine, "a"), ranks=member), FixedLogProbs())
        update._score_old([sample])
        return list(update.old), forwarded

    (first, read), (second, idle) = together(2, scored)
    assert first == second == [sample.action.key]
    assert (read, idle) == ([sum(read)], [1])


def test_policies_come_in_the_same_order_on_every_rank_and_step_on_gradients_of_all(
    backbone: Backbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names lie in a set in another order in every process."""
    names = [f"policy {n}" for n in range(8)]
    packing = whole(backbone, *names)
    samples = [Sample(make_action("a", policy=name), 1.0, np.zeros(1)) for name in reversed(names)]
    told: list[list[str]] = []
    done: list[str] = []

    class Summing(SingleRank):
        def sum_gradients(self, parameters: Iterable[Any]) -> None:
            done.extend(f"sum {name}" for name in parameters)

    def in_step(self: Packing, batches: object, policies: Sequence[str], ranks: Ranks) -> list[MicroBatch | IdleBatch]:
        told.append(list(policies))
        return []

    def optimizer(name: str) -> Any:
        return SimpleNamespace(
            parameters={"w": name},
            zero_grad=lambda: None,
            clip_gradient=lambda: torch.ones(()),
            step_clipped=lambda: done.append(f"step {name}"),
        )

    monkeypatch.setattr(Packing, "pad_to_ranks", in_step)
    score_actions(packing, samples)
    settings = AlgorithmSettings.model_validate({"kl_stop": 0.0, "epochs": 1})
    optimizers = {name: optimizer(name) for name in names}
    update = PolicyUpdater(UpdateSetup(settings, PPO(), optimizers, packing, ranks=Summing()), FixedLogProbs())
    update.run(UpdatePhase(tuple(names)), samples, step=0)
    assert done == [f"{what} {name}" for what in ("sum", "step") for name in names]
    assert told == [names, names]


def test_what_a_rank_has_scored_the_others_know(backbone: Backbone) -> None:
    """Later minibatches share the same actions out in other ways."""
    samples = [Sample(make_action("a", sample=n), 1.0, np.zeros(1)) for n in range(2)]
    settings = AlgorithmSettings.model_validate({})

    def told(member: Member) -> Any:
        update = PolicyUpdater(UpdateSetup(settings, PPO(), {}, whole(backbone, "a"), ranks=member), FixedLogProbs())
        mine = samples[member.rank]
        update.old[mine.action.key] = np.array([-1.0 - member.rank])
        update._share_old_scores([mine])
        return [update.old[sample.action.key].tolist() for sample in samples]

    assert together(2, told) == [[[-1.0], [-2.0]]] * 2


@given(st.lists(st.integers(1, 50)), st.integers(1, 5))
def test_shares_hold_everything_once_and_are_about_equal(sizes: list[int], count: int) -> None:
    items = list(enumerate(sizes))
    shares = [split_share(_Rank(rank, count), items, lambda item: item[1]) for rank in range(count)]
    assert sorted(item for part in shares for item in part) == items
    assert all(part == sorted(part) for part in shares)
    if items:
        loads = [sum(size for _, size in part) for part in shares]
        assert max(loads) - min(loads) <= max(sizes)


def test_a_share_of_several_bases_keeps_the_order_of_its_items() -> None:
    class Own(_Rank):
        def on(self, base: str) -> _Rank:
            return groups[base]

    groups = {base: _Rank(0, 1) for base in "ab"}
    items = ["a 1", "b 2", "a 3", "b 4"]
    assert split_share_by_base(Own(0, 1), items, len, lambda item: item[0]) == items


def test_a_rank_that_does_not_train_a_base_has_no_share() -> None:
    assert split_share(None, [1, 2, 3], lambda size: size) == []


@pytest.mark.parametrize("count", [2, 4, 8])
def test_shares_of_a_ragged_batch_are_within_a_hundredth_of_each_other(count: int) -> None:
    sizes = np.random.default_rng(0).lognormal(6, 1, 256).astype(int).tolist()
    loads = [sum(split_share(_Rank(rank, count), sizes, lambda size: size)) for rank in range(count)]
    assert max(loads) < 1.01 * min(loads)


def test_what_is_learned_on_several_models_by_the_same_ranks_is_shared_as_one_load() -> None:
    both, first = _Rank(0, 2), [("a", 9), ("b", 8), ("a", 7)]

    class Whole(_Rank):
        def on(self, base: str) -> _Rank:
            return both

    assert split_share_by_base(Whole(0, 2), first, lambda item: item[1], lambda item: item[0]) == [("a", 9)]


class _Rank:
    def __init__(self, rank: int, count: int) -> None:
        self.rank, self.count = rank, count

    def gather(self, mine: T) -> list[T]:
        raise AssertionError

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        raise AssertionError

    def on(self, base: str) -> _Rank:
        raise AssertionError


def test_sums_entries_and_counts_are_of_all_ranks() -> None:
    def work(member: Member) -> Any:
        meter = MetricAccumulator()
        meter.add("loss", 2.0 * member.rank, 1.0 + member.rank)
        meter.update_max("largest", 2.0 - member.rank)
        everyone = meter.merge_ranks(member)
        return (
            sum_over_ranks(member, np.array([1.0, member.rank, (1e16, 1.0, -1e16)[member.rank]])).tolist(),
            merge_over_ranks(member, {member.rank: "x"}),
            everyone.means(),
        )

    for numbers, entries, means in together(3, work):
        assert numbers == [3.0, 3.0, 0.0], "in the ranks' order everywhere, in which the 1 is rounded away"
        assert entries == {0: "x", 1: "x", 2: "x"}
        assert means == {"loss": 1.0, "largest": 2.0}
