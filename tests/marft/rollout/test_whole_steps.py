"""Whole learner steps against the dense twin: every gradient, weight and number of every preset and every option."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from transformers import PreTrainedTokenizerBase

from marft.agents.game import Attempt
from marft.common.types import Episode, Observation, Task, Transition
from marft.config.algorithm import merge_tables
from marft.config.algorithms import PRESETS
from marft.rollout.local_runner import LocalRolloutRunner
from marft.rollout.rollout_batch import collect_rollouts
from marft.runs.state import State
from tests.dense.report import Report
from tests.dense.trials import SMOOTH, STARTS, Table, algorithm, episodes_for, steps_of
from tests.dense.twins import POLICIES, Twins, differ, recipe, save_small_model
from tests.nights import BY_NIGHT, some


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, tiny_tokenizer: PreTrainedTokenizerBase) -> Path:
    return save_small_model(tmp_path_factory.mktemp("small"), tiny_tokenizer)


@functools.cache
def plain(model: Path, start: str) -> Report:
    """A step of the dense twin without any option."""
    twins = Twins(recipe(model, algorithm(**merge_tables(SMOOTH, STARTS[start]))))
    return twins.dense.learn(episodes_for(twins), 0)


def check(model: Path, start: str, option: Table, **of_recipe: Any) -> Report:
    """A step with an option, which must matter: else it could be ignored unnoticed."""
    twins = Twins(recipe(model, algorithm(**merge_tables(merge_tables(SMOOTH, STARTS[start]), option)), **of_recipe))
    right = steps_of(twins)
    assert differ(right, plain(model, start)), "the option changes nothing, so the test cannot fail"
    return right


@pytest.mark.slow
@pytest.mark.parametrize("name", some([name for name in PRESETS if name != "maxrl"], of=4))
def test_a_step_of_every_preset(name: str, model: Path) -> None:
    """But MaxRL's, which refuses these episodes: their rewards are not between 0 and 1."""
    steps_of(Twins(recipe(model, algorithm(name))))


@pytest.mark.parametrize("name", ["marft", "dapo", "happo"])
def test_in_single_precision_too(name: str, model: Path) -> None:
    """As it runs; the others run with weights in double precision, so that they can be held tighter."""
    steps_of(Twins(recipe(model, algorithm(name, optimizer={"epsilon": 1e-3})), precise=False), tolerance=2e-3)


OPTIONS: Mapping[str, tuple[Table, tuple[str, ...]]] = {
    # KL to the base
    "k2 in the loss": ({"kl": {"coefficient": 0.3, "estimator": "k2"}}, ("action", "token")),
    "k3 in the loss": ({"kl": {"coefficient": 0.3, "estimator": "k3"}}, ("action", "token")),
    "k3-corrected in the loss": ({"kl": {"coefficient": 0.3}}, ("action", "token", "turns")),
    "k1 in the reward": (
        {"kl": {"coefficient": 0.3, "apply_to": "reward"}},
        ("action", "token", "critic", "token critic", "turns", "a2po"),
    ),
    # beside the objective
    "entropy": ({"entropy_coefficient": 0.1}, ("action", "token", "turns")),
    "likelihood of what succeeded": ({"nll_coefficient": 0.2}, ("action", "token")),
    "text of helpers": ({"teammate_text": {"coefficient": 0.5, "weight": {"name": "bounded"}}}, ("action", "token")),
    "text of teammates": ({"teammate_text": {"coefficient": 0.5, "weight": {"name": "truncated", "cap": 0.8}}}, ("action", "token")),
    # what the engine says and what the learner says
    "weights of actions": (
        {"sampler_correction": {"level": "action", "cap": 1.2}}, ("action", "token"),
    ),
    "geometric weights": (
        {"sampler_correction": {"level": "geometric", "cap": 1.1}}, ("action", "token"),
    ),
    "weights of tokens": ({"sampler_correction": {"level": "token", "cap": 1.1}}, ("token",)),
    "weights in a band": (
        {"sampler_correction": {"level": "token", "mask_low": 0.9, "mask_high": 1.1}}, ("token",),
    ),
    "actions in a band": (
        {"sampler_correction": {"level": "geometric", "mask_low": 0.95, "mask_high": 1.08}}, ("action",),
    ),
    # how terms are averaged
    "mean of means": ({"aggregation": "action-mean"}, ("token", "token critic")),
    "mean of sums": ({"aggregation": "action-mean-of-sums"}, ("token",)),
    "over the longest": ({"aggregation": "constant-length"}, ("token",)),
    "over a constant": ({"aggregation": "constant-length", "constant_length": 3}, ("token",)),
    "mean of means, entropy": ({"aggregation": "action-mean", "entropy_coefficient": 0.1}, ("token",)),
    "over a constant, KL": ({"aggregation": "constant-length", "kl": {"coefficient": 0.3}}, ("token",)),
    "over all policies": ({"denominator": "pooled"}, ("action", "token")),
    "over 1": ({"normalization": "none"}, ("action",)),
    "over words": ({"normalization": "words"}, ("action",)),
    "advantages as they are": ({"normalize_advantages": False}, ("critic",)),
    "advantages normalised": ({"normalize_advantages": True}, ("token",)),
    # how often
    "one epoch, one minibatch": ({"epochs": 1, "minibatches": 1}, ("action",)),
    "one epoch, three minibatches": ({"epochs": 1, "minibatches": 3}, ("action",)),
    "three epochs, one minibatch": ({"epochs": 3, "minibatches": 1}, ("action", "token")),
    "KL stop": ({"kl_stop": 0.02}, ("action", "token", "turns")),
    "KL stop at once": ({"kl_stop": 1e-6}, ("action",)),
    # clips
    "clip": ({"objective": {"name": "ppo", "clip": 0.05}}, ("token", "turns", "a2po")),
    "wide clip": ({"objective": {"name": "ppo", "clip": 0.4}}, ("action",)),
    "clip higher": ({"objective": {"name": "ppo", "clip": 0.05, "clip_high": 0.3}}, ("action",)),
    "dual clip": ({"objective": {"name": "ppo", "dual_clip": 1.05}, "optimizer": {"learning_rate": 0.03}}, ("action", "token")),
    "cispo": ({"objective": {"name": "cispo", "clip_high": 0.05}}, ("action", "token")),
    "dppo": ({"objective": {"name": "dppo", "delta": 0.01}}, ("token",)),
    "drpo": ({"objective": {"name": "drpo", "delta": 0.1}}, ("token",)),
    "reinforce": ({"objective": {"name": "reinforce"}}, ("action",)),
    "gradients cut short": ({"optimizer": {"max_gradient_norm": 0.01}}, ("action", "turns")),
    "gradients not cut": ({"optimizer": {"max_gradient_norm": 1e3}}, ("action",)),
    # optimizer
    "AdamW": (
        {"optimizer": {"epsilon": 1e-3, "beta1": 0.5, "beta2": 0.9, "weight_decay": 0.5, "max_gradient_norm": 9.0}}, ("action",)
    ),
    # rewards
    "mixture": ({"reward": {"team_weight": 0.3, "own_weight": 2.0}}, ("action", "critic", "turns")),
    "margin": ({"reward": {"shaping": "margin"}}, ("action",)),
    "quality": ({"reward": {"shaping": "quality", "shaping_weight": 0.3}}, ("action",)),
    "price of length": ({"reward": {"overlong_buffer": 4}}, ("action", "critic")),
    # credit
    "monte carlo": ({"credit": {"name": "monte-carlo"}}, ("action", "token")),
    "rloo": ({"credit": {"name": "rloo"}}, ("token",)),
    "per agent": ({"credit": {"name": "agent-group"}}, ("action",)),
    "comam": ({"credit": {"name": "comam"}}, ("action",)),
    "whitened": ({"credit": {"name": "batch"}}, ("action", "token")),
    "not scaled": ({"credit": {"name": "grpo", "scale_rewards": False}}, ("action",)),
    "per agent, KL in the reward": (
        {"credit": {"name": "agent-group"}, "kl": {"coefficient": 0.3, "apply_to": "reward"}}, ("token",)
    ),
    "whitened, KL in the reward": ({"credit": {"name": "batch"}, "kl": {"coefficient": 0.3, "apply_to": "reward"}}, ("token",)),
    "chains of agents": ({"credit": {"successor": "agent"}}, ("critic", "token critic")),
    "chains along what was seen": ({"credit": {"successor": "graph"}}, ("critic", "token critic")),
    "every hop its own": (
        {"credit": {"gamma_agent": 0.8, "gamma_step": 0.7, "lambda_agent": 0.6, "lambda_step": 0.5, "lambda_critic": 0.4,
                    "gamma_token": 0.9, "lambda_token": 0.85}}, ("critic", "token critic"),
    ),
    "adaptive lambda": ({"credit": {"adaptive_lambda": 0.3}}, ("token critic",)),
    "mean value": ({"credit": {"value": "mean", "lambda_step": 0.5, "lambda_critic": 0.3}}, ("turns", "a2po")),
    # critic
    "one head an agent": ({"critic": {"heads": "agent"}}, ("critic",)),
    "independent": ({"critic": {"kind": "independent"}}, ("critic", "token critic")),
    "a body of its own": ({"critic": {"body": "lora", "lora_rank": 2, "epochs": 2}}, ("critic", "token critic")),
    "squared errors": ({"critic": {"loss": "squared"}}, ("critic",)),
    "narrow Huber": ({"critic": {"huber_delta": 0.3}}, ("critic",)),
    "narrow value clip": ({"critic": {"value_clip": 0.02}}, ("critic",)),
    "no value clip": ({"critic": {"value_clip": 0.0, "learning_rate": 0.05}}, ("critic",)),
    "a coefficient": ({"critic": {"coefficient": 0.05, "epsilon": 1e-2}}, ("critic",)),
    "values' gradients cut short": ({"critic": {"max_gradient_norm": 0.01, "epsilon": 1e-3}}, ("critic",)),
    "values' gradients not cut": ({"critic": {"max_gradient_norm": 1e3}}, ("critic",)),
    "the critic's minibatches": ({"critic": {"minibatches": 3, "epochs": 2}}, ("critic",)),
    # schedules
    "first clip": ({"schedule": {"name": "a2po", "first_clip": 0.2}, "objective": {"name": "ppo", "clip": 0.1}}, ("a2po",)),
    "narrow team ratios": ({"schedule": {"name": "sequential", "ratio_limit": 1.02}}, ("turns",)),
    "turns at token level": ({"level": "token"}, ("turns", "a2po")),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("option", "start"), some(((option, start) for option, (_, starts) in OPTIONS.items() for start in starts), of=9)
)
def test_a_step_with_every_option(option: str, start: str, model: Path) -> None:
    check(model, start, OPTIONS[option][0])


@pytest.mark.slow
@pytest.mark.parametrize("start", some(["token", "action", "critic", "turns"], of=4))
def test_log_probs_are_taken_at_each_agents_temperature(start: str, model: Path) -> None:
    check(model, start, {}, temperatures={"planner": 0.7, "solver": 1.3, "judge": 0.5})


@pytest.mark.parametrize("start", some(["turns", "action", "token"]))
def test_temperatures_hold_for_entropy_and_the_base_too(start: str, model: Path) -> None:
    option = {"entropy_coefficient": 0.1, "kl": {"coefficient": 0.3}}
    check(model, start, option, temperatures={"planner": 0.7, "solver": 1.3, "judge": 0.5})


@pytest.mark.slow
@pytest.mark.parametrize("start", some(STARTS))
def test_no_cut_into_micro_batches_changes_anything(start: str, model: Path) -> None:
    option = {"entropy_coefficient": 0.1, "kl": {"coefficient": 0.3}, "kl_stop": 0.4}
    check(model, start, option, micro_batch=20)


@pytest.mark.slow
@pytest.mark.parametrize("start", ["action", pytest.param("token", marks=BY_NIGHT)])
def test_the_kl_stop_looks_at_the_whole_minibatch(start: str, model: Path) -> None:
    for limit in (0.001, 0.01, 0.05, 0.1):  # some stop in the middle, wherever the last micro-batch happens to be
        check(model, start, {"kl_stop": limit, "epochs": 3}, micro_batch=20)


@pytest.mark.parametrize("start", ["action", pytest.param("critic", marks=BY_NIGHT), "turns"])
def test_agents_that_share_a_policy(start: str, model: Path) -> None:
    policies = {"planner": POLICIES["planner"], "frozen": POLICIES["frozen"]}
    check(model, start, {}, policies=policies, solver="planner")


@pytest.mark.parametrize("start", ["action", "token"])
def test_a_policy_that_trains_all_its_weights(start: str, model: Path) -> None:
    policies = {**POLICIES, "solver": {"model": "base", "train": "full", "learning_rate": 1e-3}}
    check(model, start, {"kl": {"coefficient": 0.3}}, policies=policies)


@pytest.mark.parametrize(
    "start", [pytest.param("action", marks=BY_NIGHT), "token critic", pytest.param("turns", marks=BY_NIGHT)]
)
def test_policies_on_models_of_their_own(start: str, model: Path) -> None:
    """Their rows are in other forwards, their values in other heads; the minibatch is one."""
    policies = {**POLICIES, "solver": {**POLICIES["solver"], "model": "other"}}
    check(
        model,
        start,
        {"denominator": "pooled", "kl_stop": 0.5, "critic": {"heads": "team"}}
        if start != "action"
        else {"denominator": "pooled"},
        policies=policies,
    )


@pytest.mark.parametrize("start", [pytest.param("turns", marks=BY_NIGHT), "a2po"])
def test_three_policies_in_turn(start: str, model: Path) -> None:
    """The one in the middle comes after somebody and before somebody: its clip is narrower than the last one's."""
    narrow = {"objective": {"name": "ppo", "clip": 0.05}, "optimizer": {"learning_rate": 0.02}}
    if start == "a2po":
        narrow["schedule"] = {"name": "a2po", "first_clip": 0.1}
    check(model, start, narrow, policies={**POLICIES, "frozen": {"model": "base"}})


def test_a_policys_own_learning_rate(model: Path) -> None:
    check(model, "action", {}, policies={**POLICIES, "planner": {"model": "base", "learning_rate": 0.003}})


def test_a_frozen_teammate_pays_no_kl_and_weighs_nothing(model: Path) -> None:
    """Its numbers may be anything: no gradient knows of them."""
    table = algorithm(**merge_tables(STARTS["critic"], {"kl": {"coefficient": 0.3, "apply_to": "reward"}}))
    reports = []
    for off in (0.0, 3.0):
        twins = Twins(recipe(model, table))
        episodes = [
            replace(e, actions=tuple(replace(a, log_probs=a.log_probs - off * (a.agent == "judge")) for a in e.actions))
            for e in episodes_for(twins)
        ]
        reports.append(twins.learn_alone(episodes))
    assert any(a.agent == "judge" for e in episodes for a in e.actions)
    assert not differ(*reports, by=1e-12)


class TestDynamicSampling:
    @staticmethod
    def kept(model: Path, **reward: Any) -> set[str]:
        """Tasks of which collecting keeps the attempts, where all earn 1 and one says more than the others."""
        table = algorithm("dapo", dynamic_sampling=1, reward=reward)
        run = recipe(model, table)
        writer = Twins(run).writer(extras=False)

        def play(attempts: Sequence[Attempt], on_done: object = None) -> list[Episode]:
            played = []
            for attempt in attempts:
                once = Transition(Observation("o"), 1.0)
                episode = writer.episode(attempt.task.id, attempt.sample, 1, [once])
                long = attempt.task.id == "apart" and attempt.sample == 1
                tokens = np.arange(3, 3 + (7 if long else 2), dtype=np.int32)
                played.append(replace(episode, task=attempt.task, stream=attempt.stream, actions=tuple(
                    replace(a, tokens=tokens, marks=np.zeros(len(tokens), np.uint8)) for a in episode.actions
                )))  # fmt: skip
            return played

        tasks = [Task(name, "o") for name in ("apart", "alike", "also alike", "alike as well")]
        found = collect_rollouts(
            cast(LocalRolloutRunner, SimpleNamespace(run=run, play=play, excluded_tasks={})),
            tasks,
            State(),
            lambda _: None,
        )
        return {e.task.id for e in found.training_episodes} if found.metrics["groups_discarded"] < 4 else set()

    def test_the_price_of_length_tells_no_attempts_apart(self, model: Path) -> None:
        assert self.kept(model) == set()
        assert self.kept(model, overlong_buffer=4) == set()


@pytest.mark.parametrize("start", some(["critic", "token critic", "turns", "a2po"]))
def test_of_rewards_that_are_all_equal_policies_learn_what_is_beside_advantages(start: str, model: Path) -> None:
    """Rewards of 1e-12 are equal. What is left is the entropy bonus, and what the critic learns."""
    check(
        model,
        start,
        {"equal_rewards": "zero", "reward": {"team_weight": 1e-12, "own_weight": 1e-12}, "entropy_coefficient": 0.1},
    )
