"""One minibatch against plain loops: its loss with all that may stand beside the objective, what it reports, what it stops at."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from marft.common.types import Sample
from marft.config.interfaces.credit import Floats
from marft.models.backbone import Backbone
from marft.trainer.batching import BatchCounts
from marft.trainer.learner_metrics import compute_gradient_shares, compute_relative_ess
from marft.trainer.micro_batch import FixedLogProbs
from marft.trainer.objectives.ppo import PPO
from marft.trainer.scoring import score_batch
from marft.trainer.update import PolicyUpdater, UpdateSetup
from tests import references
from tests.marft.trainer.test_updates import POLICIES, Recording, algorithm, double, optimizers, packing, random_samples

__all__ = ["double"]  # a fixture

CUTS = (10**6, 13)  # tokens of a micro-batch: all in one, and several


@dataclass
class Batch:
    """Samples, and what is known of their tokens besides what the engine says."""

    samples: list[Sample]
    old: dict[int, Floats]
    base: dict[int, Floats]


def batch_of(backbone: Backbone, level: str) -> Batch:
    random = np.random.default_rng(3)
    samples = [
        Sample(s.action, s.normalizer, s.advantages, solved=n % 3 == 0)
        for n, s in enumerate(random_samples(backbone, level))
    ]
    near = [
        {s.action.key: s.action.log_probs + random.normal(0, 0.3, len(s.action.tokens)) for s in samples} for _ in "ab"
    ]
    return Batch(samples, *near)


def update_of(backbone: Backbone, batch: Batch, level: str, tokens: int = 10**6, **changes: object) -> PolicyUpdater:
    """One whose policies have moved, so that ratios are taken from ``batch.old``."""
    pack = packing(backbone, level, "token-mean" if level == "token" else "action-mean", tokens)
    setup = UpdateSetup(algorithm(level=level, **changes), PPO(clip=0.2), optimizers(backbone), pack)
    update = PolicyUpdater(setup, FixedLogProbs(batch.old, batch.base))
    update.updated_policies |= set(POLICIES)
    return update


def take(
    update: PolicyUpdater, samples: Sequence[Sample], *, first: bool = False, check: Sequence[Sample] = ()
) -> bool:
    return update._process_minibatch(samples, update.objective, is_first_epoch=first, check=check)


def scores_of(backbone: Backbone, sample: Sample) -> tuple[list[float], list[float]]:
    (batch,) = packing(backbone).micro_batches([sample], BatchCounts.from_samples([sample], pooled=False))
    with torch.no_grad():
        scores = score_batch(batch)
    return scores.log_probs.tolist(), scores.entropies.tolist()


def stepped(update: PolicyUpdater) -> bool:
    return any(hasattr(optimizer, "gradient") for optimizer in update.optimizers.values())


@pytest.mark.parametrize("tokens", CUTS)
@pytest.mark.parametrize(("level", "correction"), [("action", "geometric"), ("token", "token")])
def test_the_loss_is_what_the_formulas_say(level: str, correction: str, tokens: int, double: Backbone) -> None:
    batch = batch_of(double, level)
    update = update_of(
        double, batch, level, tokens, entropy_coefficient=0.02, nll_coefficient=0.3, kl={"coefficient": 0.4, "estimator": "k3"},
        sampler_correction={"level": correction, "cap": 1.1},
    )  # fmt: skip
    assert take(update, batch.samples, first=True)
    count = {p: sum(len(s.action.tokens) for s in batch.samples if s.action.policy == p) for p in POLICIES}
    solved = {
        p: sum(len(s.action.tokens) for s in batch.samples if s.action.policy == p and s.solved) for p in POLICIES
    }
    actions = {p: sum(s.action.policy == p for s in batch.samples) for p in POLICIES}
    loss, kls, entropies, offs, weights, of_units = 0.0, [], [], [], [], []
    for sample in batch.samples:
        policy, (now, entropy) = sample.action.policy, scores_of(double, sample)
        old, base, engine = (
            x.tolist() for x in (batch.old[sample.action.key], batch.base[sample.action.key], sample.action.log_probs)
        )
        each = 1 / (count[policy] if level == "token" else actions[policy] * len(now))
        differences = [o - e for o, e in zip(old, engine, strict=True)]
        if correction == "geometric":
            differences = [sum(differences) / len(differences)] * len(differences)
        corrections = [min(1.1, math.exp(d)) for d in differences]
        if level == "token":
            units = list(zip(now, old, corrections, sample.advantages.tolist(), strict=True))
        else:
            z, (advantage,) = sample.normalizer, sample.advantages.tolist()
            units = [(sum(now) / z, sum(old) / z, corrections[0], advantage)]
        for n, o, correct, advantage in units:
            unit = 1 / (count[policy] if level == "token" else actions[policy])
            of_units.append(correct)
            loss += unit * correct * references.ppo_term(n, o, advantage, 0.2, 0.2, math.inf)
        loss -= 0.02 * sum(entropy) * each
        loss += 0.4 * each * sum(math.exp(b - n) - 1 - (b - n) for n, b in zip(now, base, strict=True))
        loss -= 0.3 * sum(now) / solved[policy] if sample.solved else 0.0
        kls += [math.exp(n - o) - 1 - (n - o) for n, o in zip(now, old, strict=True)]
        entropies += entropy
        offs += [abs(o - e) for o, e in zip(old, engine, strict=True)]
        weights += corrections
    means = update.accumulator.means()
    assert means["policy_loss"] == pytest.approx(loss, rel=1e-5)
    for name, rows in (
        ("kl_before_step", kls),
        ("entropy", entropies),
        ("log_prob_difference", offs),
        ("sampler_weight", weights),
    ):
        assert means[name] == pytest.approx(sum(rows) / len(rows), rel=1e-5), name
    left = sum(of_units) ** 2 / (len(of_units) * sum(w * w for w in of_units))
    assert left < 0.9999
    assert compute_relative_ess(update.accumulator, POLICIES)["ess"] == pytest.approx(left, rel=1e-5)
    assert sum(compute_gradient_shares(update.accumulator, POLICIES).values()) == pytest.approx(1.0)
    assert "agents/one/clip_fraction" in means


@pytest.mark.parametrize("tokens", CUTS)
def test_the_kl_of_the_whole_minibatch_decides_whether_anything_steps(tokens: int, double: Backbone) -> None:
    """At the limit it steps; above it nothing but what was looked at is reported."""
    batch = batch_of(double, "action")
    take(free := update_of(double, batch, "action", tokens), batch.samples)
    kl = free.accumulator.means()["kl_before_step"]
    assert stepped(free)
    for limit, steps in ((kl * 1.000001, True), (kl * 0.999999, False)):
        update = update_of(double, batch, "action", tokens, kl_stop=limit)
        assert take(update, batch.samples) == stepped(update) == steps
        reported = {"policy_loss", "clip_fraction", "gradient_norm", "skipped_updates"}
        assert reported & update.accumulator.means().keys() == (reported if steps else set())
        assert {"kl_before_step", "entropy"} <= update.accumulator.means().keys()
        assert update.updated_policies == set(POLICIES)


def test_the_engine_is_compared_with_at_the_first_look_alone(double: Backbone) -> None:
    batch = batch_of(double, "action")
    for first in (True, False):
        take(update := update_of(double, batch, "action"), batch.samples, first=first)
        assert ("log_prob_difference" in update.accumulator.means()) == first


def test_packing_is_compared_before_anything_steps(double: Backbone) -> None:
    """The largest difference of any token, from what ratios are taken from."""
    batch = batch_of(double, "action")
    some = batch.samples[:2]
    update = update_of(double, batch, "action")
    now = update.score_current(some)
    take(update, batch.samples, check=some)
    right = max(np.abs(now[s.action.key] - batch.old[s.action.key]).max() for s in some)
    assert update.accumulator.means()["packing_difference"] == pytest.approx(right)
    take(silent := update_of(double, batch, "action"), batch.samples)
    assert "packing_difference" not in silent.accumulator.means()


def test_only_the_policies_of_its_samples_step_and_their_old_gradients_are_gone(double: Backbone) -> None:
    batch = batch_of(double, "action")
    update = update_of(double, batch, "action")
    update.updated_policies.clear()
    mine = [sample for sample in batch.samples if sample.action.policy == "one"]
    gradients = []
    for left in (None, 5.0):
        for parameter in update.optimizers["one"].parameters.values():
            parameter.grad = None if left is None else torch.full_like(parameter, left)
        take(update, mine)
        one = update.optimizers["one"]
        assert isinstance(one, Recording)
        gradients.append(one.gradient)
        update.updated_policies.clear()
    assert all(torch.equal(gradients[0][name], gradient) for name, gradient in gradients[1].items())
    assert not hasattr(update.optimizers["two"], "gradient")
    take(update, mine)
    assert update.updated_policies == {"one"}


def test_a_policy_that_has_not_moved_is_its_own_denominator(double: Backbone) -> None:
    """Whatever was known before; its ratio is 1, and its log-probs are what later epochs are compared with."""
    batch = batch_of(double, "action")
    update = update_of(double, batch, "action")
    update.updated_policies.clear()
    take(update, batch.samples)
    assert update.accumulator.means()["kl_before_step"] == 0.0
    for sample in batch.samples:
        assert update.old[sample.action.key].tolist() == pytest.approx(scores_of(double, sample)[0])


@pytest.mark.parametrize("entropy", [0.0, 0.02])
def test_an_entropy_bonus_has_a_gradient_of_its_own(entropy: float, double: Backbone) -> None:
    batch = batch_of(double, "action")
    still = [Sample(s.action, s.normalizer, np.zeros(1)) for s in batch.samples]
    update = update_of(double, batch, "action", entropy_coefficient=entropy)
    take(update, still)
    size = sum(float(g.abs().sum()) for o in update.optimizers.values() for g in o.gradient.values())  # type: ignore[attr-defined]
    assert (size > 1e-6) == (entropy > 0)
