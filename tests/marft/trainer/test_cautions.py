"""What a run says once of log-probs that are not as exact as ratios would have them."""

from __future__ import annotations

from pathlib import Path

import pytest

from marft.common.log import receive_logs
from marft.config.algorithm import AlgorithmSettings
from marft.config.algorithms import PRESETS
from marft.config.recipe_checks import warn_idle_kl_stop
from marft.trainer.learner_metrics import ENGINE_TOLERANCE, PACKING_TOLERANCE, LogProbWarnings
from marft.trainer.update import PACKING_CHECK_INTERVAL
from tests.helpers import settings


def said(*steps: dict[str, float], **algorithm: object) -> list[str]:
    notes: list[str] = []
    cautions = LogProbWarnings(AlgorithmSettings.model_validate(algorithm))
    with receive_logs(notes.append):
        for step, metrics in enumerate(steps, 1):
            cautions.on_step_end(step, metrics)
    return notes


def engine(**roles: float) -> dict[str, float]:
    return {f"agents/{role}/log_prob_difference": value for role, value in roles.items()}


def test_a_step_that_measured_nothing_is_nothing_to_speak_of() -> None:
    assert said({}, {"log_prob_difference": 9.0, "agents/actor/log_prob_difference_max": 9.0, "reward": 1.0}) == []


@pytest.mark.parametrize(("off", "spoken"), [(1e-4, False), (1.9e-4, True), (0.0, False)])
def test_scores_that_differ_by_company_are_spoken_of_above_1e_4_nats(off: float, spoken: bool) -> None:
    notes = said({"packing_difference": off}, {"packing_difference": off})
    assert len(notes) == spoken
    assert PACKING_TOLERANCE == 1e-4
    assert all("in other company, by up to 0.0002 nats" in note for note in notes)


@pytest.mark.parametrize(("off", "spoken"), [(0.05, False), (0.051, True), (0.0, False)])
def test_an_engine_that_differs_is_spoken_of_above_a_twentieth(off: float, spoken: bool) -> None:
    assert len(said(engine(actor=off), engine(actor=off))) == spoken
    assert ENGINE_TOLERANCE == 0.05


@pytest.mark.parametrize(("level", "advice"), [("action", "geometric"), ("token", "token")])
def test_the_agent_that_differs_most_is_named_with_what_corrects_it(level: str, advice: str) -> None:
    (note,) = said(engine(planner=0.07, zelda=0.3, coder=0.1), level=level)
    assert note.startswith(
        "zelda: engine and learner differ by 0.3 nats a token on average, and rounding explains no more than 0.05:"
    )
    assert f"set algorithm.sampler_correction = {{ level = '{advice}' }}" in note


def test_each_is_spoken_of_once_and_one_does_not_hide_the_other() -> None:
    both = {"packing_difference": 1.0, **engine(actor=1.0)}
    assert len(said(both, both)) == 2
    assert len(said(engine(actor=1.0), {"packing_difference": 1.0}, both)) == 2


def test_where_the_sampler_is_corrected_only_packing_is() -> None:
    both = {"packing_difference": 1.0, **engine(actor=1.0)}
    (note,) = said(both, both, sampler_correction={"level": "geometric"})
    assert "company" in note


def test_comparisons_learn_the_same_from_whoever_sampled_so_only_packing_is() -> None:
    (note,) = said({"packing_difference": 1.0, **engine(actor=1.0)}, name="dpo")
    assert "company" in note


@pytest.mark.parametrize("policies", range(1, 17))
def test_policies_that_take_turns_each_have_their_packing_checked(policies: int) -> None:
    assert {check * PACKING_CHECK_INTERVAL % policies for check in range(policies)} == set(range(policies))


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_a_kl_stop_before_the_only_update_of_a_step_is_spoken_of(name: str, tmp_path: Path) -> None:
    def stop(*changes: str) -> list[str]:
        return list(warn_idle_kl_stop(settings("tiny", tmp_path, "--algorithm.name", name, *changes)))

    assert bool(stop()) == name.startswith("marft-paper")
    once = ("--algorithm.epochs", "1", "--algorithm.minibatches", "1", "--algorithm.kl_stop", "0.03")
    (said,) = stop(*once)
    assert said.startswith("algorithm.kl_stop = 0.03 cannot stop anything")
    assert stop(*once, "--algorithm.epochs", "2") == stop(*once, "--algorithm.minibatches", "2") == []
