"""Policy updates: the gradient is what the formulas say, however the minibatch is cut."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from marft.common.types import Episode, Sample, Task
from marft.config.algorithm import AlgorithmSettings, OptimizerSettings
from marft.config.interfaces.credit import CreditOutput
from marft.config.interfaces.objective import LossInputs
from marft.config.interfaces.schedule import Progress, UpdatePhase
from marft.models.backbone import Backbone
from marft.trainer.batching import BatchCounts, Packing, make_samples, minibatches
from marft.trainer.micro_batch import FixedLogProbs
from marft.trainer.objectives.ppo import PPO
from marft.trainer.optimizers import PolicyOptimizer
from marft.trainer.scoring import score_batch, score_with_teammates
from marft.trainer.update import PolicyUpdater, UpdateSetup
from marft.trainer.update_schedules import AgentByAgent, Simultaneous
from tests import references
from tests.episodes import make_action
from tests.nights import by_day

POLICIES = ("one", "two")


@pytest.fixture
def double(backbone: Backbone) -> Backbone:
    """A float64 base with a random adapter for each policy."""
    torch.manual_seed(3)
    for policy in POLICIES:
        backbone.add_adapter(policy, 4, 8.0, ("q_proj", "v_proj"), seed=0)
        for adapter in backbone.adapters(policy).values():
            torch.nn.init.normal_(adapter.b, std=0.2)
    backbone.model.double()
    return backbone


def packing(
    backbone: Backbone, level: str = "action", aggregation: str = "action-mean", tokens: int = 10**6
) -> Packing:
    return Packing(
        backbones=dict.fromkeys(POLICIES, backbone),
        adapters={policy: policy for policy in POLICIES},
        temperatures={"one": 1.0, "two": 0.7},
        aggregation=aggregation,  # type: ignore[arg-type]
        level=level,  # type: ignore[arg-type]
        tokens_per_batch=tokens,
        constant_length=1,
        teammate_text=False,
    )


def random_samples(backbone: Backbone, level: str, count: int = 7, seed: int = 0, drift: float = 0.1) -> list[Sample]:
    """Samples whose old log-probs are ``drift`` away from the policy's."""
    random = np.random.default_rng(seed)
    samples = []
    for number in range(count):
        policy = POLICIES[number % 2] if number else "one"
        tokens = tuple(int(t) for t in random.integers(3, 100, random.integers(1, 6)))
        action = make_action(
            policy,
            sample=number,
            policy=policy,
            prompt=tuple(int(t) for t in random.integers(3, 100, random.integers(1, 9))),
            tokens=tokens,
        )
        size = 1 if level == "action" else len(tokens)
        samples.append(Sample(action, float(random.integers(1, 4)), random.normal(size=size)))
    scored = []
    for sample in samples:
        batch = packing(backbone, level).micro_batches([sample], BatchCounts.from_samples([sample], pooled=False))[0]
        with torch.no_grad():
            log_probs = score_batch(batch).log_probs.numpy() + random.normal(size=len(sample.action.tokens)) * drift
        scored.append(replace(sample, action=replace(sample.action, log_probs=log_probs.astype(np.float64))))
    return scored


def begun(
    samples: Sequence[Sample],
    chosen: AlgorithmSettings,
    made: Mapping[str, PolicyOptimizer],
    pack: Packing,
) -> PolicyUpdater:
    """An update whose policies have moved already, from where the samples' log-probs say."""
    old = {sample.action.key: sample.action.log_probs.astype(np.float64) for sample in samples}
    update = PolicyUpdater(UpdateSetup(chosen, PPO(clip=0.2, dual_clip=3.0), made, pack), FixedLogProbs(old=old))
    update.updated_policies |= set(POLICIES)
    return update


class Recording(PolicyOptimizer):
    """Keeps the gradient that a step would have used, and steps by nothing."""

    gradient: Mapping[str, torch.Tensor]

    def clip_gradient(self) -> torch.Tensor:
        return torch.ones(())

    def step_clipped(self) -> None:
        self.gradient = {n: p.grad.clone() for n, p in self.parameters.items() if p.grad is not None}


def optimizers(backbone: Backbone) -> dict[str, Recording]:
    made = {}
    for policy in POLICIES:
        named = {
            f"{layer}.{half}": parameter
            for layer, adapter in backbone.adapters(policy).items()
            for half, parameter in (("a", adapter.a), ("b", adapter.b))
        }
        optimizer = Recording.__new__(Recording)
        optimizer.parameters, optimizer.settings = named, OptimizerSettings()
        optimizer.master_weights, optimizer.offload = None, False
        optimizer.optimizer = torch.optim.SGD(named.values(), lr=0.0)  # type: ignore[assignment]
        made[policy] = optimizer
    return made


def algorithm(**changes: object) -> AlgorithmSettings:
    return AlgorithmSettings.model_validate({"epochs": 1, "minibatches": 1, "kl_stop": 0.0, **changes})


def gradients(
    backbone: Backbone, samples: Sequence[Sample], pack: Packing, chosen: AlgorithmSettings | None = None
) -> tuple[dict[str, torch.Tensor], dict[str, float]]:
    chosen = chosen or algorithm(level=pack.level, entropy_coefficient=0.01)
    made = optimizers(backbone)
    update = begun(samples, chosen, made, pack)
    update.run(UpdatePhase(POLICIES), samples, step=0)
    return {f"{p}.{n}": g for p, o in made.items() for n, g in o.gradient.items()}, update.accumulator.means()


def assert_equal(a: Mapping[str, torch.Tensor], b: Mapping[str, torch.Tensor]) -> None:
    assert a.keys() == b.keys()
    for name, gradient in a.items():
        torch.testing.assert_close(b[name], gradient, rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize(
    ("level", "aggregation"), [("action", "action-mean"), ("token", "token-mean"), ("token", "action-mean")]
)
def test_gradients_do_not_depend_on_micro_batches_or_row_order(double: Backbone, level: str, aggregation: str) -> None:
    samples = random_samples(double, level)
    whole, whole_metrics = gradients(double, samples, packing(double, level, aggregation))
    for tokens in (1, 13, 25):
        for order in (samples, samples[::-1]):
            cut, metrics = gradients(double, order, packing(double, level, aggregation, tokens))
            assert_equal(whole, cut)
            for name in (
                "policy_loss",
                "entropy",
                "kl_before_step",
                "clip_fraction",
                "agents/one/entropy",
                "agents/two/kl_before_step",
            ):
                assert metrics[name] == pytest.approx(whole_metrics[name], rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(("level", "aggregation"), [("action", "action-mean"), ("token", "constant-length")])
@given(cuts=st.lists(st.integers(0, 6), max_size=3), seed=st.integers(0, 5))
@settings(max_examples=by_day(12, 25))
def test_workers_with_global_denominators_add_up_to_the_whole(
    level: str, aggregation: str, cuts: list[int], seed: int
) -> None:
    """Loss functions return sums: a minibatch split over workers, each weighing its part by the whole's counts, has
    gradients that sum to the whole's."""
    backbone = _double_backbone()
    samples = random_samples(backbone, level, seed=seed)
    counts = BatchCounts.from_samples(samples, pooled=False)
    pack = packing(backbone, level, aggregation)
    weights = [w for policy in POLICIES for a in backbone.adapters(policy).values() for w in (a.a, a.b)]

    def gradient(part: Sequence[Sample]) -> list[torch.Tensor]:
        for batch in pack.micro_batches(part, counts) if part else []:
            scores = score_batch(batch)
            inputs = LossInputs(
                batch.unit_log_probs(scores.log_probs),
                batch.unit_log_probs(batch.engine_log_probs),
                batch.advantages,
                batch.unit_log_probs(batch.engine_log_probs),
            )
            (PPO()(inputs).terms * batch.unit_weights).sum().backward()
        found = [torch.zeros_like(w) if w.grad is None else w.grad for w in weights]
        for w in weights:
            w.grad = None
        return found

    edges = [0, *sorted(cuts), len(samples)]
    parts = [gradient(samples[a:b]) for a, b in zip(edges, edges[1:], strict=False)]
    for whole, *pieces in zip(gradient(samples), *parts, strict=True):
        torch.testing.assert_close(sum(pieces[1:], pieces[0]), whole, rtol=1e-6, atol=1e-10)


def test_the_likelihood_of_what_succeeded_is_a_mean_over_its_tokens(double: Backbone) -> None:
    """VAPO: −μ · log π, over the sampled tokens of the policy's successful actions, and only those."""
    samples = [replace(s, solved=n % 3 == 0) for n, s in enumerate(random_samples(double, "token"))]
    pack = packing(double, "token", "token-mean")
    _, plain = gradients(double, samples, pack, algorithm(level="token"))
    _, metrics = gradients(double, samples, pack, algorithm(level="token", nll_coefficient=0.3))
    expected = plain["policy_loss"]
    for policy in POLICIES:
        rows = [x for s in samples if s.solved and s.action.policy == policy for x in _log_probs(double, s)]
        expected += 0.3 * -sum(rows) / len(rows)
    assert metrics["policy_loss"] == pytest.approx(expected, rel=1e-5)


def test_the_action_level_loss_equals_the_slow_reference(double: Backbone) -> None:
    samples = random_samples(double, "action", drift=0.5)
    _, metrics = gradients(double, samples, packing(double), algorithm(level="action"))
    counts = {policy: sum(s.action.policy == policy for s in samples) for policy in POLICIES}
    expected = 0.0
    for sample in samples:
        now = _log_probs(double, sample)
        ratio = references.action_ratio(now, list(sample.action.log_probs), sample.normalizer)
        term = references.ppo_term(math.log(ratio), 0.0, float(sample.advantages[0]), 0.2, 0.2, 3.0)
        expected += term / counts[sample.action.policy]
    assert metrics["policy_loss"] == pytest.approx(expected, rel=1e-5)


def test_the_token_level_loss_equals_the_slow_reference(double: Backbone) -> None:
    samples = random_samples(double, "token", drift=0.5)
    _, metrics = gradients(double, samples, packing(double, "token", "token-mean"), algorithm(level="token"))
    counts = {policy: sum(len(s.action.tokens) for s in samples if s.action.policy == policy) for policy in POLICIES}
    expected = 0.0
    for sample in samples:
        for now, old, advantage in zip(
            _log_probs(double, sample), sample.action.log_probs, sample.advantages, strict=True
        ):
            expected += (
                references.ppo_term(now, float(old), float(advantage), 0.2, 0.2, 3.0) / counts[sample.action.policy]
            )
    assert metrics["policy_loss"] == pytest.approx(expected, rel=1e-5)


def test_normalising_by_tokens_makes_gspos_sequence_ratio(double: Backbone) -> None:
    sample = random_samples(double, "action", count=1)[0]
    by_tokens = replace(sample, normalizer=float(len(sample.action.tokens)))
    batch = packing(double).micro_batches([by_tokens], BatchCounts.from_samples([by_tokens], pooled=False))[0]
    difference = batch.unit_log_probs(score_batch(batch).log_probs) - batch.unit_log_probs(batch.engine_log_probs)
    per_token = np.array(_log_probs(double, sample)) - sample.action.log_probs
    assert difference.exp().item() == pytest.approx(math.exp(per_token.mean()), rel=1e-6)


def test_a_policys_gradient_does_not_shrink_as_the_team_grows_unless_pooled(double: Backbone) -> None:
    samples = random_samples(double, "action")
    alone = [s for s in samples if s.action.policy == "one"]
    mine = {n: g for n, g in gradients(double, samples, packing(double))[0].items() if n.startswith("one.")}
    assert_equal(mine, {n: g for n, g in _gradients_of_one(double, alone).items() if n.startswith("one.")})
    pooled, _ = gradients(double, samples, packing(double), algorithm(denominator="pooled", entropy_coefficient=0.01))
    share = len(alone) / len(samples)
    for name, gradient in mine.items():
        torch.testing.assert_close(pooled[name], gradient * share, rtol=1e-4, atol=1e-7)  # weights are float32


def test_log_probs_are_taken_at_each_agents_sampling_temperature(double: Backbone) -> None:
    """Sampling at one temperature and scoring at another once made every ratio wrong."""
    sample = next(s for s in random_samples(double, "action") if s.action.agent == "two")
    batch = packing(double).micro_batches([sample], BatchCounts.from_samples([sample], pooled=False))[0]
    hidden = double.hidden_states(batch.rows)[batch.predict_from]
    logits = hidden @ double.head.weight.T / 0.7
    expected = logits.log_softmax(-1).gather(1, batch.targets[:, None])[:, 0]
    torch.testing.assert_close(score_batch(batch).log_probs, expected)


def test_entropies_have_a_gradient_only_where_one_is_asked_for(double: Backbone) -> None:
    samples = random_samples(double, "action", count=2)
    batch = packing(double).micro_batches(samples, BatchCounts.from_samples(samples, pooled=False))[0]
    assert not score_batch(batch).entropies.requires_grad
    assert score_with_teammates(batch, entropy_gradient=True)[0].entropies.requires_grad


def test_scored_tokens_are_the_sampled_tokens_end_of_turn_included(double: Backbone) -> None:
    """The end-of-turn token was once never trained, and padding was."""
    action = make_action("one", policy="one", prompt=(5, 6), tokens=(7, 8, 2), marks=(0, 0, 0))
    tool = make_action("one", policy="one", prompt=(5, 6), tokens=(7, 8, 2), marks=(0, 1, 0), sample=1)
    samples = [Sample(a, 1.0, np.array([1.0])) for a in (action, tool)]
    batch = packing(double).micro_batches(samples, BatchCounts.from_samples(samples, pooled=False))[0]
    assert batch.targets.tolist() == [7, 8, 2, 7, 2]
    assert batch.rows.ids[batch.predict_from].tolist() == [6, 7, 8, 6, 8]


def test_the_kl_stop_comes_before_the_optimizer_step(double: Backbone) -> None:
    samples = random_samples(double, "action", drift=2.0)
    for tokens in (10**6, 13):  # one micro-batch, and several
        made = optimizers(double)
        chosen = algorithm(kl_stop=0.01, epochs=3)
        update = begun(samples, chosen, made, packing(double, tokens=tokens))
        update.run(UpdatePhase(POLICIES), samples, step=0)
        assert all(not hasattr(optimizer, "gradient") for optimizer in made.values())
        assert update.accumulator.total("kl_stops") == 1
        if tokens == 10**6:  # known before the backward pass, which did not run
            assert all(p.grad is None for o in made.values() for p in o.parameters.values())


def test_a_kl_that_is_not_a_number_stops_too(double: Backbone) -> None:
    samples = random_samples(double, "action")
    broken = replace(samples[0].action, log_probs=np.full(len(samples[0].action.tokens), np.nan, np.float32))
    made = optimizers(double)
    stopped = [replace(samples[0], action=broken)]
    begun(stopped, algorithm(kl_stop=0.5), made, packing(double)).run(UpdatePhase(POLICIES), stopped, step=0)
    assert not hasattr(made["one"], "gradient")


def test_policies_outside_a_phase_get_no_rows_and_no_step(double: Backbone) -> None:
    samples = random_samples(double, "action")
    made = optimizers(double)
    PolicyUpdater(UpdateSetup(algorithm(), PPO(), made, packing(double)), FixedLogProbs()).run(
        UpdatePhase(("two",)), samples, step=0
    )
    assert not hasattr(made["one"], "gradient")
    assert made["two"].gradient
    assert all(p.grad is None for p in made["one"].parameters.values())


def test_schedules_name_the_policies_in_turn() -> None:
    assert Simultaneous().plan_phases(Progress(0, 0), ("a", "b"), 0) == [UpdatePhase(("a", "b"))]
    schedule = AgentByAgent(interval=10)
    turns = [
        schedule.plan_phases(Progress(0, steps), ("a", "b", "c"), 0)[0].policies[0] for steps in (0, 9, 10, 20, 30)
    ]
    assert turns == ["a", "a", "b", "c", "a"]


def test_frozen_actions_weigh_nothing_in_normalisation() -> None:
    actions = [make_action("one"), make_action("frozen"), make_action("one", sample=1)]
    none = [np.zeros(1)] * 3
    credits = CreditOutput([np.array([1.0]), np.array([1000.0]), np.array([-1.0])], none, none)
    batch = Episode(Task("t", "o"), "train/0", 0, tuple(actions), "terminated")
    samples, raw = make_samples([batch], credits, ["one"], "none", True)
    assert [s.action.agent for s in samples] == ["one", "one"]
    assert [float(s.advantages[0]) for s in samples] == pytest.approx([1 / math.sqrt(2), -1 / math.sqrt(2)])
    assert [float(a[0]) for a in raw] == [1.0, -1.0]


@given(count=st.integers(1, 5), samples=st.integers(1, 20), epoch=st.integers(0, 3))
def test_minibatches_hold_every_sample_once_and_every_policy_evenly(count: int, samples: int, epoch: int) -> None:
    mine = [Sample(make_action(POLICIES[i % 2], sample=i), 1.0, np.zeros(1)) for i in range(samples)]
    parts = minibatches(mine, count, seed=0, step=3, epoch=epoch)
    assert sorted(s.action.key.sample for part in parts for s in part) == list(range(samples))
    for policy in POLICIES:
        sizes = [sum(s.action.policy == policy for s in part) for part in parts]
        assert len(parts) < count or max(sizes) - min(sizes) <= 1


def test_the_optimizer_skips_a_gradient_that_is_not_finite() -> None:
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = PolicyOptimizer({"p": parameter}, OptimizerSettings(), 0.1, steps=10)
    parameter.grad = torch.tensor([math.nan, 1.0])
    assert math.isnan(optimizer.step())
    assert parameter.tolist() == [1.0, 1.0]


def _double_backbone() -> Backbone:
    if not _CACHE:
        from transformers import Qwen2Config, Qwen2ForCausalLM

        from marft.models import attention

        attention.register_attention()
        torch.manual_seed(0)
        config = Qwen2Config(
            vocab_size=110, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
            num_key_value_heads=1, attn_implementation=attention.IMPLEMENTATION,
        )  # fmt: skip
        model = Qwen2ForCausalLM(config).requires_grad_(False)
        backbone = Backbone(model, 128)
        for policy in POLICIES:
            backbone.add_adapter(policy, 2, 4.0, ("q_proj",), seed=1)
        model.double()
        _CACHE.append(backbone)
    return _CACHE[0]


_CACHE: list[Backbone] = []


def _gradients_of_one(backbone: Backbone, samples: Sequence[Sample]) -> dict[str, torch.Tensor]:
    made = optimizers(backbone)
    chosen = algorithm(entropy_coefficient=0.01)
    begun(samples, chosen, made, packing(backbone)).run(UpdatePhase(("one",)), samples, step=0)
    return {f"one.{n}": g for n, g in made["one"].gradient.items()}


def _log_probs(backbone: Backbone, sample: Sample) -> list[float]:
    batch = packing(backbone).micro_batches([sample], BatchCounts.from_samples([sample], pooled=False))[0]
    with torch.no_grad():
        return [float(x) for x in score_batch(batch).log_probs]
