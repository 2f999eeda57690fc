"""From credited actions to minibatches and micro-batches: what is trained, what it weighs, and how it is cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from tools.model_families import build_small_backbone

from marft.common.token_data import TokenSource
from marft.common.types import Choice, Episode, Observation, Option, Sample, Task, Transition
from marft.config.interfaces.credit import CreditOutput
from marft.models.backbone import Backbone
from marft.trainer.batching import (
    BatchCounts,
    IdleBatch,
    Packing,
    make_samples,
    minibatches,
    normalize,
    normalizer,
    pack_shared_prefixes,
    select_mixed_lengths,
)
from marft.trainer.ranks.interface import SingleRank
from tests.episodes import make_action
from tests.families import FAMILY


def sample(number: int = 0, length: int = 2, policy: str = "a", *, successful: bool = False, said: int = 0) -> Sample:
    """One whose row has ``length`` tokens besides its prompt's one; a teammate wrote the first ``said`` of them."""
    marks = (int(TokenSource.TEAMMATE),) * said + (int(TokenSource.SAMPLED),) * (length - said)
    action = make_action(policy, sample=number, prompt=(5,), tokens=tuple(range(length)), marks=marks)
    return Sample(action, 1.0, np.zeros(1), successful)


def lengths(samples: Sequence[Sample]) -> list[int]:
    return [len(one.action.tokens) for one in samples]


class TestSamples:
    BATCH = Episode(
        Task("t", "o"), "train/0", 0, tuple(make_action("ab"[n % 2], index=n, tokens=(1, 2, 3)) for n in range(4)),
        "terminated", (Transition(Observation("o"), 1.0),),
    )  # fmt: skip
    ADVANTAGES = [np.full(1, float(n)) for n in range(4)]

    def test_an_action_that_only_judged_others_is_not_trained_whoever_made_it(self) -> None:
        credits = CreditOutput(self.ADVANTAGES, trained=[False, True, True, False])
        samples, raw = make_samples([self.BATCH], credits, ["a", "b"], "tokens", False)
        assert [(s.action.index, s.advantages.tolist(), s.normalizer) for s in samples] == [
            (1, [1.0], 3.0), (2, [2.0], 3.0)
        ]  # fmt: skip
        assert [row.tolist() for row in raw] == [[1.0], [2.0]]
        assert all(s.solved for s in samples)

    def test_without_normalisation_of_actions_or_advantages_both_stay_as_they_are(self) -> None:
        samples, raw = make_samples([self.BATCH], CreditOutput(self.ADVANTAGES), ["b"], "none", False)
        assert [(s.normalizer, s.advantages.tolist()) for s in samples] == [(1.0, [1.0]), (1.0, [3.0])]
        assert all(s.advantages is row for s, row in zip(samples, raw, strict=True))

    def test_where_nobody_is_trained_there_is_nothing(self) -> None:
        assert make_samples([self.BATCH], CreditOutput(self.ADVANTAGES), [], "none", True) == ([], [])

    def test_z_is_at_least_1_and_that_of_a_choice_is_1(self) -> None:
        options = (Option(np.ones(3, np.int32)), Option(np.ones(2, np.int32)))
        choice = Choice(options, 0, np.log(np.array([0.5, 0.5], np.float32)))
        one, none = (
            make_action(tokens=(1,), text="word"),
            make_action(tokens=(1,), marks=(int(TokenSource.TOOL),), text=" "),
        )
        for kind in ("tokens", "words"):
            assert [normalizer(action, kind) for action in (one, none)] == [1.0, 1.0]  # type: ignore[arg-type]
            assert normalizer(replace(make_action(tokens=(1, 2, 3)), choice=choice), kind) == 1.0  # type: ignore[arg-type]

    def test_advantages_that_are_all_equal_become_0_and_nothing_large(self) -> None:
        assert [row.tolist() for row in normalize([np.array([0.3]), np.array([0.3, 0.3])])] == [[0.0], [0.0, 0.0]]


class TestMinibatches:
    SAMPLES = [sample(n, policy="ab"[n % 2]) for n in range(12)]

    def drawn(self, seed: int = 0, step: int = 0, epoch: int = 0) -> dict[str, list[int]]:
        parts = minibatches(self.SAMPLES, 2, seed, step, epoch)
        return {p: [s.action.key.sample // 2 for part in parts for s in part if s.action.policy == p] for p in "ab"}

    def test_every_policy_has_an_order_of_its_own_at_every_step_and_epoch(self) -> None:
        first = self.drawn()
        orders = [first["a"], first["b"], self.drawn(1)["a"], self.drawn(step=1)["a"], self.drawn(epoch=1)["a"]]
        assert len(set(map(tuple, orders))) == 5
        assert first == self.drawn()

    def test_the_order_is_the_same_in_every_version(self) -> None:
        """A run that goes on under a newer version learns as it would have."""
        assert self.drawn(seed=3, step=2, epoch=1)["a"] == [0, 4, 3, 5, 1, 2]

    def test_of_fewer_samples_than_minibatches_none_is_empty(self) -> None:
        assert [len(part) for part in minibatches(self.SAMPLES[:1], 3, 0, 0, 0)] == [1]

    def test_policies_come_in_the_order_of_their_names(self) -> None:
        samples = [sample(n, policy=policy) for n, policy in enumerate("edcba")]
        assert [s.action.policy for s in minibatches(samples, 1, 0, 0, 0)[0]] == list("abcde")


class TestLengths:
    def test_the_longest_the_shortest_and_some_between_are_taken(self) -> None:
        samples = [sample(n, length) for n, length in enumerate((3, 9, 1, 5, 7, 2, 8, 4, 6))]
        assert lengths(select_mixed_lengths(samples, 3)) == [9, 5, 1]
        assert lengths(select_mixed_lengths(samples, 2)) == [9, 1]

    @pytest.mark.parametrize(("given", "taken"), [(1, 1), (2, 1), (3, 1), (4, 2), (7, 3), (20, 5)])
    def test_at_most_half_of_them_are_taken_but_one_at_least(self, given: int, taken: int) -> None:
        chosen = select_mixed_lengths([sample(n, n + 1) for n in range(given)], 5)
        assert len(chosen) == taken
        assert lengths(chosen)[0] == given

    def test_of_none_none_are_taken(self) -> None:
        assert select_mixed_lengths([], 4) == []


class TestDenominators:
    SAMPLES = [
        sample(0, 2, successful=True), sample(1, 4), sample(2, 5, "b", successful=True, said=2), sample(3, 1, "b"),
        sample(4, 3, "b", successful=True, said=1),
    ]  # fmt: skip

    def test_each_policy_is_divided_by_its_own_counts(self) -> None:
        counts = BatchCounts.from_samples(self.SAMPLES, pooled=False)
        assert (dict(counts.actions), dict(counts.tokens)) == ({"a": 2, "b": 3}, {"a": 6, "b": 6})
        assert dict(counts.successful_tokens) == {"a": 2, "b": 5}
        assert dict(counts.teammate_tokens) == {"a": 0, "b": 3}

    def test_pooled_all_are_divided_by_the_counts_of_all(self) -> None:
        counts = BatchCounts.from_samples(self.SAMPLES, pooled=True)
        assert counts.actions == {"a": 5, "b": 5}
        assert counts.tokens == {"a": 12, "b": 12}
        assert counts.successful_tokens == {"a": 7, "b": 7}
        assert counts.teammate_tokens == {"a": 3, "b": 3}

    @pytest.mark.parametrize(
        ("aggregation", "expected"),
        [
            ("token-mean", [1 / 6] * 5),
            ("action-mean", [1 / 4, 1 / 8, 1 / 9, 1 / 3, 1 / 6]),
            ("action-mean-of-sums", [1 / 2, 1 / 2, 1 / 3, 1 / 3, 1 / 3]),
            ("constant-length", [1 / 20, 1 / 20, 1 / 30, 1 / 30, 1 / 30]),
        ],
    )
    def test_what_a_token_weighs(self, aggregation: Any, expected: list[float]) -> None:
        counts = BatchCounts.from_samples(self.SAMPLES, pooled=False)
        assert [counts.token_weight(one, aggregation, 10) for one in self.SAMPLES] == pytest.approx(expected, rel=1e-12)

    def test_tokens_of_successes_weigh_in_the_likelihood_and_no_others(self) -> None:
        counts = BatchCounts.from_samples(self.SAMPLES, pooled=False)
        assert [counts.nll_weight(one) for one in self.SAMPLES] == [1 / 2, 0.0, 1 / 5, 0.0, 1 / 5]


class TestSizes:
    """A packing in one size has the size of the largest batch that its parts are cut into, in steps of 64 tokens."""

    @staticmethod
    def size(parts: Sequence[Sequence[int]], limit: int, *, full: bool = True) -> int | None:
        backbone = cast(Backbone, SimpleNamespace(needs_fixed_size=full))
        packing = Packing(
            {"a": backbone}, {}, {}, "action-mean", "action", limit, constant_length=1, teammate_text=False
        )
        samples = [[sample(n, length) for n, length in enumerate(part)] for part in parts]
        return packing.with_fixed_sizes(samples).sizes.get(id(backbone))

    def test_it_is_that_of_the_largest_batch_over_all_parts(self) -> None:
        assert self.size([[64] * 3, [64] * 2], 10_000) == 3 * 64
        assert self.size([[64] * 2, [64] * 3], 10_000) == 3 * 64

    def test_it_is_rounded_up_and_not_beyond(self) -> None:
        assert [self.size([[n]], 10_000) for n in (1, 63, 64, 65, 128, 129)] == [64, 64, 64, 128, 128, 192]

    def test_batches_hold_at_most_their_limit_and_are_about_equally_large(self) -> None:
        """Under a limit of five rows six are cut into three and three, not five and one; seven into four and three."""
        assert self.size([[64] * 6], 5 * 64) == 3 * 64
        assert self.size([[64] * 7], 5 * 64) == 4 * 64
        assert self.size([[64] * 10], 5 * 64) == 5 * 64
        assert self.size([[64] * 4], 2 * 64) == 2 * 64

    def test_an_action_that_is_longer_than_the_limit_goes_alone(self) -> None:
        assert self.size([[64, 640]], 128) == 640

    def test_where_batches_may_have_any_size_none_is_set(self) -> None:
        assert self.size([[64]], 128, full=False) is None


def test_a_row_is_as_long_as_what_is_read_to_score_it() -> None:
    """The last token is predicted and not read."""
    one = replace(sample(0, 3), action=make_action("a", prompt=(1, 2, 3, 4), tokens=(5, 6, 7)))
    other = replace(sample(1, 5), action=make_action("a", prompt=(1,), tokens=(1, 2, 3, 4, 5)))
    assert select_mixed_lengths([other, one, other, other], 1) == [one]


PROMPT = tuple(range(20, 30))


def attempt(number: int, prompt: tuple[int, ...] = PROMPT, policy: str = "a") -> Sample:
    """One that reads its prompt and one token of its own, which is its number."""
    return Sample(make_action(policy, sample=number, prompt=prompt, tokens=(number, 9)), 1.0, np.zeros(1))


class TestSharedPrefixes:
    BACKBONE = cast(
        Backbone,
        SimpleNamespace(
            device=torch.device("cpu"),
            needs_fixed_size=True,
            rounds_by_batch=False,
            router_replay=None,
            benefits_from_tree=lambda *_: True,
        ),
    )

    def bins(self, samples: Sequence[Sample], limit: int) -> list[tuple[list[int], int]]:
        """Numbers of the samples in each bin, and the tokens it counts."""
        bins = pack_shared_prefixes(self.BACKBONE, samples, {"a": None, "b": "adapter"}, limit)
        assert all(one.shared for one in bins)
        return [([s.action.key.sample for s in one.samples], one.tokens) for one in bins]

    def packing(self, tokens: int = 1000, **changes: Any) -> Packing:
        packing = Packing(
            {"a": self.BACKBONE}, {"a": None}, {"a": 1.0}, "action-mean", "action", tokens, constant_length=1,
            teammate_text=False,
        )  # fmt: skip
        return replace(packing, **changes)

    def test_attempts_at_one_task_are_packed_together_and_read_its_prompt_once(self) -> None:
        other = tuple(range(30, 40))
        samples = [attempt(0), attempt(1, other), attempt(2), attempt(3, other)]
        assert self.bins(samples, 12) == [([0, 2], 12), ([1, 3], 12)]
        assert self.bins(samples, 100) == [([0, 2, 1, 3], 24)]

    def test_rows_of_different_adapters_share_nothing_and_are_kept_apart(self) -> None:
        samples = [attempt(n, policy="ab"[n % 2]) for n in range(4)]
        assert self.bins(samples, 100) == [([0, 2, 1, 3], 24)]

    def test_a_sample_as_large_as_the_limit_takes_no_other(self) -> None:
        assert self.bins([attempt(0), attempt(1)], 11) == [([0], 11), ([1], 11)]

    def test_a_sample_above_the_limit_takes_what_adds_a_quarter_of_its_tokens(self) -> None:
        """Whatever is in the micro-batches before it."""
        small = attempt(9, (1, 2))
        samples = [small, *(attempt(n) for n in range(4))]
        assert self.bins(samples, 5) == [([9], 3), ([0, 1, 2], 13), ([3], 11)]

    def test_the_options_of_a_choice_read_what_they_have_in_common_once(self) -> None:
        options = tuple(Option(np.array(tokens, np.int32)) for tokens in ((4, 3), (7, 8, 9), (7, 8, 6)))
        choice = Choice(options, 0, np.log(np.full(3, 1 / 3, np.float32)))
        action = replace(make_action("a", prompt=PROMPT, tokens=(4, 3)), choice=choice)
        assert self.bins([Sample(action, 1.0, np.zeros(1))], 100) == [([0], 10 + 1 + 2)]

    def test_where_sharing_saves_nothing_nothing_is_packed_so(self) -> None:
        slow = cast(Backbone, SimpleNamespace(router_replay=None, benefits_from_tree=lambda *_: False))
        assert pack_shared_prefixes(slow, [attempt(0), attempt(1)], {"a": None}, 100) == []

    def test_with_one_size_a_micro_batch_holds_no_more_than_that(self) -> None:
        samples = [attempt(n) for n in range(6)]
        fixed = self.packing(share=True, sizes={id(self.BACKBONE): 13})
        batches = fixed.micro_batches(samples, BatchCounts.from_samples(samples, pooled=False))
        assert [len(batch.samples) for batch in batches] == [3, 3]
        assert all(len(batch.rows.ids) == 13 for batch in batches)

    def test_scores_are_bitwise_those_of_any_packing_only_without_shared_prefixes_and_fixed_sizes(self) -> None:
        samples = [attempt(0), attempt(1)]
        assert self.packing().is_exact(samples)
        assert not self.packing(share=True).is_exact(samples)
        assert not self.packing(sizes={id(self.BACKBONE): 64}).is_exact(samples)

    @pytest.mark.parametrize(
        ("family", "exact"), [("Qwen 3", True), ("Qwen 3 with experts", False), ("Qwen 3.5", False)]
    )
    def test_scores_of_experts_and_recurrent_layers_depend_on_the_packing(self, family: str, exact: bool) -> None:
        packing = self.packing(backbones={"a": build_small_backbone(FAMILY[family])})
        assert packing.is_exact([attempt(0)]) is exact


class TestIdleRanks:
    def test_an_idle_pass_runs_the_backbone_and_teaches_it_nothing(self, backbone: Backbone) -> None:
        backbone.add_adapter("a", 4, 8.0, ("q_proj",), seed=0)
        loss = IdleBatch(backbone, "a").forward()
        loss.backward()
        gradients = [p.grad for p in backbone.model.parameters() if p.grad is not None]
        assert loss.item() == 0.0
        assert gradients
        assert not any(gradient.any() for gradient in gradients)

    def test_a_rank_that_does_not_train_a_base_is_never_idle_on_it(self) -> None:
        class FirstOfTwo(SingleRank):
            count = 2

            def gather(self, value: Any) -> list[Any]:
                return [value, [1, 1]]

            def on(self, base: str) -> Any:
                return self if base == "mine" else None

        backbones = [cast(Backbone, SimpleNamespace()) for _ in range(2)]
        packing = Packing(
            dict(zip("ab", backbones, strict=True)), {"a": None, "b": None}, {}, "action-mean", "action", 9,
            constant_length=1, teammate_text=False, bases={"a": "mine", "b": "of others"},
        )  # fmt: skip
        (idle,) = packing.pad_to_ranks([], ["a", "b"], FirstOfTwo())
        assert idle.backbone is backbones[0]
