"""Whole learner steps on comparisons and on repeated attempts, against the dense twin, which writes the loss down in one
graph over all actions of a pair."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerBase

from tests.dense.report import Report
from tests.dense.trials import SMOOTH, Table, algorithm, steps_of
from tests.dense.twins import POLICIES, Twins, differ, recipe, save_small_model
from tests.nights import BY_NIGHT, some

TWICE: Table = {**SMOOTH, "epochs": 2}  # log-ratios leave 0 within a step


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, tiny_tokenizer: PreTrainedTokenizerBase) -> Path:
    return save_small_model(tmp_path_factory.mktemp("small"), tiny_tokenizer)


def step(model: Path, name: str, option: Table, count: int = 1, **of_recipe: object) -> Report:
    return steps_of(Twins(recipe(model, algorithm(name, **{**TWICE, **option}), **of_recipe)), count)  # type: ignore[arg-type]


def dpo(**keys: object) -> Table:
    return {"objective": {"name": "dpo", "beta": 0.5, **keys}}


def pairs(**keys: object) -> Table:
    return {"credit": {"name": "preference", **keys}}


OF_AGENTS, ALL = pairs(sides="agent"), pairs(pairs="all")
OPTIONS: Mapping[str, tuple[str, Table, Table]] = {  # the preset, what it is added to, the option
    "sharper": ("dpo", {}, dpo(beta=2.0)),
    "cDPO": ("dpo", {}, dpo(label_smoothing=0.2)),
    "IPO": ("dpo", {}, dpo(loss="ipo")),
    "R-DPO": ("dpo", {}, dpo(length_penalty=0.3)),
    "RPO": ("dpo", {}, dpo(nll_coefficient=0.7)),
    "SimPO": ("dpo", {}, {**dpo(reference="none", margin=0.4), "normalization": "tokens"}),
    "to the base": ("dpo", {}, dpo(reference="base")),
    "all that differ": ("dpo", {}, ALL),
    "by gaps": ("dpo", ALL, pairs(pairs="all", weights="gap")),
    "agent-wise": ("dpo", {}, OF_AGENTS),
    "by own rewards": (
        "dpo", pairs(sides="agent", weights="gap"), pairs(sides="agent", weights="gap", judged_by="own")
    ),
    "over tokens": ("dpo", {}, {"normalization": "tokens"}),
    "pooled": ("dpo", OF_AGENTS, {"denominator": "pooled"}),
    "candidates": ("dpo", {}, {"credit": {"name": "preference-tree"}}),
    "beside entropy and KL": ("dpo", {}, {"entropy_coefficient": 0.1, "kl": {"coefficient": 0.3}}),
    "in turns": ("dpo", {}, {"schedule": {"name": "agent-by-agent"}}),
    "one minibatch": ("dpo", ALL, {"minibatches": 1}),
    "the best": ("rft", {}, {"credit": {"name": "best", "select": "best"}}),
    "each its own best": ("rft", {}, {"credit": {"name": "best", "select": "best", "judged_by": "own"}}),
}  # fmt: skip


@pytest.mark.parametrize("name", ["dpo", "rft"])
def test_a_step_is_the_dense_twins(name: str, model: Path) -> None:
    step(model, name, {})


@pytest.mark.slow
@pytest.mark.parametrize("option", some(OPTIONS, of=5))
def test_a_step_with_every_option_is_the_dense_twins_and_no_option_is_ignored(option: str, model: Path) -> None:
    name, start, changes = OPTIONS[option]
    right = step(model, name, {**start, **changes})
    assert differ(right, step(model, name, start)), "the option changes nothing, so the test cannot fail"


@pytest.mark.slow
@pytest.mark.parametrize(
    "option", [pytest.param({}, marks=BY_NIGHT), dpo(refresh=2)], ids=["from the start", "refreshed"]
)
def test_later_steps_compare_with_the_reference_that_was_kept(option: Table, model: Path) -> None:
    step(model, "dpo", option, count=3)


@pytest.mark.slow
def test_no_cut_into_micro_batches_changes_a_step(model: Path) -> None:
    """Of a few tokens each: the two sides of a pair never lie in one."""
    step(model, "dpo", {}, micro_batch=40)


@pytest.mark.slow
def test_agents_that_share_weights_are_one_policy_in_every_pair(model: Path) -> None:
    step(model, "dpo", {}, policies={name: POLICIES[name] for name in ("planner", "frozen")}, solver="planner")
