"""Learning by imitation: the loss is that of plain loops in float64, and no way of cutting a batch changes it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from marft.common.types import Sample, TokenSource
from marft.config import RunSettings
from marft.models.packed_rows import PackedRows
from marft.models.policy_registry import PolicyRegistry
from marft.trainer.batching import BatchCounts, build_sample
from marft.trainer.learner import TRACES, Learner, refuse_traces
from marft_serve.traces.settings import SftSettings
from marft_serve.traces.sft import SftLearner, SftLoss
from tests.episodes import make_action
from tests.helpers import settings
from tests.learners import ROLES, begun, episodes, recipe


def run_of(tmp_path: Path, *overrides: str) -> RunSettings:
    return settings(
        "tiny", tmp_path, "--training.tokens_per_micro_batch", "10000", "--sft.schedule", "linear",
        "--algorithm.optimizer.max_gradient_norm", "1000.0", *overrides,
    )  # fmt: skip


def supervisor(run: RunSettings, steps: int = 4) -> tuple[SftLearner, PolicyRegistry]:
    """One whose adapters say something of their own."""
    torch.manual_seed(0)
    models = PolicyRegistry(run)
    for role in ROLES:
        for adapter in models.base_models["base"].adapters(role).values():
            torch.nn.init.normal_(adapter.b, std=0.05)
    return SftLearner(run, models, steps, SftSettings.from_run(run).build_optimizer(run, steps)), models


def samples(count: int = 6) -> list[Sample]:
    made = [build_sample(action) for episode in episodes(count) for action in episode.actions]
    marks = np.zeros(len(made[0].action.tokens), np.uint8)
    marks[:2] = TokenSource.TOOL  # what is read, and not trained
    action = made[0].action
    return [build_sample(replace(action, marks=marks, log_probs=action.log_probs[2:])), *made[1:]]


def reference(models: PolicyRegistry, batch: Sequence[Sample], policy: str) -> tuple[float, int]:
    """Σ −log π(y_t | x, y_<t), and how many tokens, by a plain loop: row by row, in float64, with the whole softmax."""
    total, count = 0.0, 0
    for sample in batch:
        action = sample.action
        if action.policy != policy:
            continue
        ids = np.concatenate([action.prompt, action.tokens])
        owner = models.policies[policy]
        rows = PackedRows.from_rows([ids], [owner.adapter], owner.backbone.device)
        hidden = owner.backbone.hidden_states(rows).double()
        logits = hidden @ owner.backbone.head.weight.double().t()
        for place in range(len(action.tokens)):
            if action.marks[place] == TokenSource.SAMPLED:
                row = logits[len(action.prompt) + place - 1]
                total -= float(row[int(action.tokens[place])] - torch.logsumexp(row, 0))
                count += 1
    return total, count


def gradients(it: SftLearner, models: PolicyRegistry) -> dict[str, Tensor]:
    return {
        f"{role}/{name}": parameter.grad.clone()
        for role in ROLES
        for name, parameter in models.policies[role].parameters().items()
        if parameter.grad is not None
    }


def test_the_loss_is_that_of_plain_loops(tmp_path: Path) -> None:
    """At temperature 1, whatever agents sample with."""
    hot = [("--agents.reasoner.sampling.temperature", "1.5"), ("--agents.actor.sampling.temperature", "0.5")]
    it, models = supervisor(run_of(tmp_path, *hot[0], *hot[1]))
    batch = samples()
    with torch.no_grad():
        expected = {role: reference(models, batch, role) for role in ROLES}
    measured = it.evaluate(batch)
    for role, (total, count) in expected.items():
        assert measured.tokens[role] == count
        assert measured.losses[role] == pytest.approx(total, rel=1e-5)
    learned, _ = it.learn(batch, 0)
    assert learned.losses == pytest.approx(measured.losses, rel=1e-6)
    assert measured.mean() == pytest.approx(
        sum(total for total, _ in expected.values()) / sum(count for _, count in expected.values()), rel=1e-5
    )


def test_a_policy_that_is_not_finite_is_named(tmp_path: Path) -> None:
    it, models = supervisor(run_of(tmp_path))
    assert it.not_finite() == []
    with torch.no_grad():
        next(iter(models.policies["actor"].parameters().values())).view(-1)[0] = math.inf
    assert it.not_finite() == ["policies.actor"]


def test_the_gradient_is_that_of_each_policys_mean_over_its_tokens(tmp_path: Path) -> None:
    it, models = supervisor(run_of(tmp_path))
    batch = samples(2)
    it.learn(batch, 0)
    found = gradients(it, models)
    other, models = supervisor(run_of(tmp_path))
    loss = torch.zeros(())
    for role in ROLES:
        mine = [sample.action for sample in batch if sample.action.policy == role]
        count = sum(action.num_decisions for action in mine)
        for action in mine:
            ids = np.concatenate([action.prompt, action.tokens])
            backbone = models.policies[role].backbone
            hidden = backbone.hidden_states(PackedRows.from_rows([ids], [role], backbone.device))
            logits = hidden @ backbone.head.weight.t()
            at = len(action.prompt) - 1 + np.flatnonzero(action.sampled_mask)
            log_probs = torch.log_softmax(logits[torch.from_numpy(at)], -1)
            targets = torch.from_numpy(action.tokens[action.sampled_mask].astype(np.int64))
            loss = loss - log_probs.gather(1, targets[:, None]).sum() / count
    loss.backward()
    expected = gradients(other, models)
    assert expected.keys() == found.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("tokens", ["60", "300"])
def test_no_cut_into_micro_batches_changes_the_gradient(tmp_path: Path, tokens: str) -> None:
    whole, models = supervisor(run_of(tmp_path))
    loss, _ = whole.learn(samples(), 0)
    expected = gradients(whole, models)
    cut, models = supervisor(run_of(tmp_path, "--training.tokens_per_micro_batch", tokens))
    again, _ = cut.learn(samples(), 0)
    assert again.losses == pytest.approx(loss.losses, rel=1e-5)
    for name, gradient in gradients(cut, models).items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-3, atol=1e-6)


def test_nothing_but_a_roles_own_tokens_teaches_it(tmp_path: Path) -> None:
    batch = samples(2)
    it, models = supervisor(run_of(tmp_path))
    rows = it.packing.micro_batches(batch, BatchCounts.from_samples(batch, pooled=False))
    targets = {int(target) for batch_ in rows for target in batch_.targets}
    trained = {int(token) for sample in batch for token in sample.action.tokens[sample.action.sampled_mask]}
    assert targets == trained
    assert sum(len(one.targets) for one in rows) == sum(sample.action.num_decisions for sample in batch)
    alone = [sample for sample in batch if sample.action.policy == "actor"]
    it.learn(alone, 0)
    assert all(name.startswith("actor/") for name in gradients(it, models))


def test_every_step_has_a_gradient_of_its_own(tmp_path: Path) -> None:
    still = ("--sft.learning_rate", "1e-12")
    batch = samples(4)
    once, models = supervisor(run_of(tmp_path, *still))
    once.learn(batch[4:], 1)
    expected = gradients(once, models)
    twice, models = supervisor(run_of(tmp_path, *still))
    twice.learn(batch[:4], 0)
    twice.learn(batch[4:], 1)
    for name, gradient in gradients(twice, models).items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-3, atol=1e-6)


def test_norms_are_those_of_each_policy_and_what_is_not_finite_is_skipped(tmp_path: Path) -> None:
    it, models = supervisor(run_of(tmp_path))
    _, metrics = it.learn(samples(2), 0)
    norms = {role: metrics[f"policies/{role}/gradient_norm"] for role in ROLES}
    for role, norm in norms.items():
        parts = [g.double().square().sum() for name, g in gradients(it, models).items() if name.startswith(role)]
        assert norm == pytest.approx(float(torch.stack(parts).sum().sqrt()), rel=1e-4)
    assert metrics["gradient_norm"] == pytest.approx(sum(norms.values()) / 2)
    assert metrics["skipped_updates"] == 0.0
    with torch.no_grad():
        next(iter(models.policies["actor"].parameters().values())).fill_(math.nan)
    _, metrics = it.learn(samples(2), 1)
    assert metrics["skipped_updates"] == 1.0  # they share a forward


def test_a_policy_without_turns_stays_as_it_is(tmp_path: Path) -> None:
    it, models = supervisor(run_of(tmp_path))
    before = {name: p.detach().clone() for name, p in models.policies["reasoner"].parameters().items()}
    _, metrics = it.learn([sample for sample in samples(2) if sample.action.policy == "actor"], 0)
    assert all(torch.equal(before[name], p) for name, p in models.policies["reasoner"].parameters().items())
    assert "policies/reasoner/learning_rate" not in metrics


def test_the_rate_rises_and_goes_down_to_nothing(tmp_path: Path) -> None:
    run = run_of(tmp_path, "--sft.warmup_ratio", "0.5", "--sft.learning_rate", "0.01")
    it, _ = supervisor(run, steps=4)
    rates = [it.learn(samples(1), step)[1]["policies/actor/learning_rate"] for step in range(4)]
    assert rates == pytest.approx([0.005, 0.01, 0.01, 0.005])


def test_a_mean_of_nothing_is_no_number() -> None:
    nothing = SftLoss({}, {})
    assert math.isnan(nothing.mean())
    assert math.isnan(nothing.mean("actor"))
    assert SftLoss({"a": 3.0, "b": 1.0}, {"a": 1, "b": 1}).mean() == 2.0
    assert SftLoss({"a": 3.0}, {"a": 1, "b": 0}).mean() == 3.0


def test_state_comes_back(tmp_path: Path) -> None:
    it, _ = supervisor(run_of(tmp_path))
    it.learn(samples(2), 0)
    other, _ = supervisor(run_of(tmp_path))
    other.load_optimizer_state(it.optimizer_state())
    assert it.state_dict() == {}
    other.load_state_dict({})
    found = other.optimizer_state()
    assert found.keys() == it.optimizer_state().keys()
    assert all(torch.equal(tensor, found[name]) for name, tensor in it.optimizer_state().items())


def test_traces_are_not_trained_with_ratios(tmp_path: Path) -> None:
    played = episodes(2)
    refuse_traces(played)
    told = [replace(played[0], stream=TRACES), played[1]]
    with pytest.raises(ValueError, match="need the ids that were sampled"):
        refuse_traces(told)
    learner: Learner = begun(recipe(tmp_path, "marft"))
    with pytest.raises(ValueError, match="marft sft"):
        learner.learn(told, None)  # type: ignore[arg-type]


def test_an_action_to_imitate_has_no_advantage() -> None:
    sample = build_sample(make_action("actor"))
    assert (sample.normalizer, sample.advantages.tolist()) == (1.0, [0.0])


def test_where_all_is_frozen_nothing_imitates(tmp_path: Path) -> None:
    frozen = ("--policies.reasoner.train", "frozen", "--policies.actor.train", "frozen")
    with pytest.raises(ValueError, match="all are frozen"):
        supervisor(run_of(tmp_path, *frozen))


@pytest.mark.parametrize(("said", "shared"), [("auto", True), ("always", True), ("never", False)])
def test_rows_share_what_they_begin_with_unless_told_not_to(tmp_path: Path, said: str, shared: bool) -> None:
    it, _ = supervisor(run_of(tmp_path, "--training.share_prefixes", said))
    assert it.packing.share is shared
