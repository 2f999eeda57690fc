"""Seconds of plans, held to arithmetic by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import pytest

from marft.common.types import JointAction, Observation
from marft.config import RunSettings, load_recipe
from marft.config.interfaces.organization import Agents, Organization
from marft.models.device_specs import find_device_spec
from marft.models.model_sizes import COMMON_MODELS
from marft_lab.planning.memory import PlanContext, micro_batch_tokens
from marft_lab.planning.plan import PlanRequest, Split, make_plan
from marft_lab.planning.timing import (
    DECODE_LAUNCHES,
    FORWARD_LAUNCHES,
    LEARNING_LAUNCHES,
    Efficiencies,
    training_operations,
)
from marft_lab.planning.workload import KnownLengths, Lengths, PolicyWorkload, compute_workload

SHAPE = COMMON_MODELS["qwen2.5-3b"]
VLLM = ("--engine.kind", "vllm")
LINK = 0.6 * 450e9  # bytes a second that an H100's link is taken to reach


def math(*overrides: str) -> RunSettings:
    return load_recipe("math_dual", ["--models.base.path", "Qwen/Qwen2.5-3B-Instruct", *overrides])


def split(run: RunSettings, gpus: int = 1, **asked: Any) -> Split:
    return make_plan(run, PlanRequest(gpus, find_device_spec("h100"), **asked)).best


def seconds(one: Split, name: str) -> float:
    return sum(phase.seconds for phase in one.phases if phase.name == name)


def test_episodes_that_are_not_live_wait_for_those_that_are() -> None:
    words = (
        "--rollout.tasks_per_step",
        "64",
        "--rollout.samples_per_task",
        "1",
        "--rollout.max_concurrent_episodes",
        "24",
    )
    run = math(*words)
    assert (
        seconds(split(run, environment_seconds=2.0), "environment") == 3 * 2.0 * compute_workload(run).environment_steps
    )


def test_adapters_are_published_as_float32_over_the_link() -> None:
    numbers = 2 * SHAPE.adapter_parameters(8, ("q_proj", "v_proj"))
    assert seconds(split(math(*VLLM), gpus=2), "publishing") == pytest.approx(4 * numbers / LINK)
    assert seconds(split(math()), "publishing") == 0


def test_all_but_the_first_minibatch_are_scored_before_the_update() -> None:
    one, two, four = (
        seconds(split(math("--algorithm.minibatches", count)), "scores before the update") for count in "124"
    )
    assert one == 0
    assert two / four == pytest.approx((1 / 2) / (3 / 4))


def test_probes_are_scored_after_the_update() -> None:
    tasks = ("--rollout.tasks_per_step", "64")
    none, four, eight = (
        seconds(split(math(*tasks, "--guards.probes", count)), "scores after the update") for count in "048"
    )
    assert none == 0
    assert 2 * four == pytest.approx(eight)


def test_gradient_checkpointing_takes_a_forward_more() -> None:
    policy = compute_workload(math(), KnownLengths(prompt=100, action=100, longest=100)).policies[0]
    more = training_operations(SHAPE, policy, True, True) - training_operations(SHAPE, policy, False, True)
    assert more == pytest.approx(2 * SHAPE.matrix_parameters + 2 * 200 * SHAPE.query_dim * SHAPE.layers)


def test_the_longest_action_is_waited_for() -> None:
    short, longer = (
        seconds(split(math(), lengths=KnownLengths(prompt=100, action=100, longest=longest)), "writing")
        for longest in (100, 500)
    )
    assert longer > 1.5 * short


def test_agents_of_a_chain_take_turns_and_those_of_a_parallel_team_do_not() -> None:
    chain = compute_workload(math("--rollout.tasks_per_step", "8", "--rollout.samples_per_task", "2"))
    assert (chain.episodes, chain.concurrent_actions) == (16, 16)
    words = ("--rollout.tasks_per_step", "8", "--rollout.samples_per_task", "2", "--team.organization", "parallel")
    assert compute_workload(math(*words)).concurrent_actions == 32


class InTurn(Organization):
    """Somebody's own, in which one agent acts after the other."""

    acts_in_sequence: ClassVar[bool] = True

    async def act(self, observation: Observation, agents: Agents) -> JointAction:
        raise AssertionError("nobody plays here")


@pytest.mark.parametrize(
    ("organization", "requests"),
    [
        ("chain", 1),
        ("marft.agents.organizations:Chain", 1),
        ("tests.marft_lab.test_plan_seconds:InTurn", 1),
        ("tests.plugins:Apart", 2),  # it declares nothing
    ],
)
def test_an_organization_given_by_import_path_is_planned_like_the_built_in_one(
    organization: str, requests: int
) -> None:
    words = ("--rollout.tasks_per_step", "8", "--rollout.samples_per_task", "2", "--team.organization", organization)
    assert compute_workload(math(*words)).concurrent_actions == 16 * requests


def test_micro_batches_are_cut_evenly() -> None:
    run = math("--training.tokens_per_micro_batch", "8192", "--algorithm.minibatches", "1")
    run = run.model_copy(
        update={"rollout": run.rollout.model_copy(update={"tasks_per_step": 12, "samples_per_task": 1})}
    )
    work = compute_workload(run, KnownLengths(prompt=500, action=500, longest=500))
    place = PlanContext(run, {"base": SHAPE}, work, find_device_spec("h100"))
    # 12 rows of each agent: 12,000 tokens in two of 6,000, give or take half a row
    assert micro_batch_tokens(place, work.policies[:1], 1) == 6000 + 500
    assert micro_batch_tokens(place, work.policies[:1], 2) == 6000
    halves = run.model_copy(update={"algorithm": run.algorithm.model_copy(update={"minibatches": 3})})
    assert micro_batch_tokens(PlanContext(halves, place.shapes, work, place.card), work.policies[:1], 1) == 4000


def a_policy(**more: Any) -> PolicyWorkload:
    given = {"train": "lora", "rank": 8, "targets": ("q_proj", "v_proj"), **more}
    return PolicyWorkload("actor", "base", actions=4, lengths=Lengths(150, 50, 50), is_local=True, **given)  # type: ignore[arg-type]


def test_where_all_is_trained_a_weight_takes_six_operations_and_else_four() -> None:
    whole, frozen = (
        training_operations(SHAPE, a_policy(train=train, rank=0, targets=()), False, False)
        for train in ("full", "lora")
    )
    attention = 3.5 * 2 * 200 * SHAPE.query_dim * SHAPE.layers
    assert whole == pytest.approx(6 * SHAPE.matrix_parameters + attention + 8 * SHAPE.head_parameters / 4)
    assert frozen == pytest.approx(4 * SHAPE.matrix_parameters + attention + 4 * SHAPE.head_parameters / 4)


@pytest.mark.parametrize(("dtype", "flops"), [("bfloat16", 989e12), ("float32", 67e12)])
def test_what_is_trained_whole_is_computed_at_the_rate_of_its_precision(dtype: str, flops: float) -> None:
    words = ("--policies.actor.train", "full", "--policies.reasoner.train", "frozen", "--algorithm.epochs", "1")
    reached = Efficiencies().with_overrides(["launch=1e-9"])
    known = KnownLengths(prompt=1500, action=500, longest=500)
    made = make_plan(
        math(*words, "--models.base.dtype", dtype),
        PlanRequest(1, find_device_spec("h100"), known, efficiencies=reached),
    )
    actor = next(policy for policy in made.workload.policies if policy.name == "actor")
    rate = reached.rate(flops, 3350e9)
    assert seconds(made.best, "update") == pytest.approx(
        actor.tokens * training_operations(SHAPE, actor, False, False) / rate
    )


def test_a_critic_of_tokens_reads_actions_too() -> None:
    known = KnownLengths(prompt=300, action=100, longest=100)
    tokens, actions = (
        seconds(split(math("--algorithm.level", level), lengths=known), "critic") for level in ("token", "action")
    )
    assert actions / tokens == pytest.approx(300 / 400)


def test_kl_to_the_base_takes_a_reading_of_it() -> None:
    known = KnownLengths(prompt=300, action=100, longest=100)
    run = math("--algorithm.kl.coefficient", "0.1")
    scores = seconds(split(run, lengths=known), "scores of the base")
    token_level = math("--algorithm.kl.coefficient", "0.1", "--algorithm.level", "token")
    assert scores == pytest.approx(seconds(split(token_level, lengths=known), "critic"))
    assert seconds(split(math(), lengths=known), "scores of the base") == 0


RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
LAUNCHES = json.loads((RESULTS / "launches.json").read_text(encoding="utf-8"))["now"]


@pytest.mark.parametrize(
    ("unit", "kernels"),
    [
        ("decode step, two policies", DECODE_LAUNCHES),
        ("scoring micro-batch", FORWARD_LAUNCHES),
        ("learning micro-batch", LEARNING_LAUNCHES),
    ],
)
def test_kernels_per_layer_are_those_that_the_benchmark_counted(unit: str, kernels: int) -> None:
    assert kernels == LAUNCHES[unit]["per layer"]["launches"]


def test_micro_batches_of_few_tokens_take_the_time_of_their_launches() -> None:
    words = ("--training.tokens_per_micro_batch", "64", "--algorithm.epochs", "1")
    known = KnownLengths(prompt=40, action=20, longest=20)
    made = make_plan(math(*words), PlanRequest(1, find_device_spec("h100"), known))
    batches = sum(policy.tokens / 64 for policy in made.workload.policies)
    expected = batches * SHAPE.layers * LEARNING_LAUNCHES * Efficiencies().launch
    assert seconds(made.best, "update") == pytest.approx(expected)
    assert seconds(made.best, "update") > 3 * seconds(split(math(*words[2:]), lengths=known), "update")


@pytest.mark.parametrize(("eager", "seconds_per_layer"), [("true", 40 * 5e-6), ("false", 40 * 3e-6)])
def test_a_token_of_few_rows_takes_its_launches_or_its_kernels_in_a_graph(eager: str, seconds_per_layer: float) -> None:
    reached = Efficiencies().with_overrides(["bandwidth=1e9", "intensity=1e9"])
    run, known = math("--engine.enforce_eager", eager), KnownLengths(prompt=10, action=100, longest=100)
    writing = {
        name: seconds(make_plan(run, PlanRequest(1, find_device_spec("h100"), known, efficiencies=one)).best, "writing")
        for name, one in (("now", reached), ("twice", reached.with_overrides([f"iteration={2 * reached.iteration}"])))
    }
    steps = (writing["twice"] - writing["now"]) / reached.iteration
    assert writing["now"] == pytest.approx(steps * (SHAPE.layers * seconds_per_layer + reached.iteration), rel=0.01)
