"""Which policies step, in which order, and what a schedule is where a recipe says no more than its name."""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import ValidationError

from marft.common import seeds
from marft.config.interfaces.credit import CreditInputs, Values
from marft.config.interfaces.schedule import Progress, UpdatePhase
from marft.trainer.update_schedules import A2PO, AgentByAgent, Sequential, Simultaneous, random_order, semi_greedy_order
from tests.episodes import make_action

START = Progress(0, 0)


def test_by_its_name_alone_a_schedule_is_the_published_one() -> None:
    assert AgentByAgent().interval == 256
    assert (Sequential().ratio_limit, Sequential().kl_limit) == (2.0, 0.0)
    assert (A2PO().ratio_limit, A2PO().first_clip) == (2.0, 0.5)
    assert UpdatePhase(("a",)) == UpdatePhase(("a",), clip_scale=1.0, kl_limit=0.0)
    assert Simultaneous().plan_phases(START, ("a", "b"), 0) == [UpdatePhase(("a", "b"))]


@pytest.mark.parametrize("schedule", [Sequential, A2PO])
def test_a_team_ratio_is_cut_to_a_band_around_1(schedule: type[Sequential | A2PO]) -> None:
    assert schedule.model_validate({"ratio_limit": 1.0}).ratio_limit == 1.0
    for limit in (0.99, 1.1e9):
        with pytest.raises(ValidationError):
            schedule.model_validate({"ratio_limit": limit})


class TestTheTurn:
    def test_begins_with_the_first_policy_and_is_counted_from_the_run_s_start(self) -> None:
        schedule = AgentByAgent(interval=10)
        assert schedule.state_dict() == {"turn": 0, "since": 0}
        turns = [
            schedule.plan_phases(Progress(0, steps), ("a", "b"), 0)[0].policies
            for steps in (0, 9, 10, 19, 20, 45, 50, 55)
        ]
        assert turns == [("a",), ("a",), ("b",), ("b",), ("a",), ("b",), ("b",), ("a",)]
        assert schedule.state_dict() == {"turn": 4, "since": 55}

    def test_is_taken_up_where_it_was(self) -> None:
        schedule = AgentByAgent(interval=10)
        schedule.load_state_dict({"turn": 3.0, "since": 40.0})
        turns = [schedule.plan_phases(Progress(0, steps), ("a", "b"), 0)[0].policies for steps in (49, 50)]
        assert turns == [("b",), ("a",)]


class TestTheOrder:
    def test_is_drawn_from_a_stream_of_the_step(self) -> None:
        names = [f"policy {n}" for n in range(9)]
        for seed, step in ((0, 0), (0, 1), (5, 0)):
            order = seeds.generator(seed, "update order", step).permutation(9)
            assert random_order(names, Progress(step, 0), seed) == [names[i] for i in order]

    def test_a_policy_without_advantages_comes_after_one_that_has_some(self) -> None:
        for step in range(8):
            assert semi_greedy_order(["a", "b"], Progress(step, 0, {"b": 0.1}), seed=0) == ["b", "a"]

    def test_each_phase_of_happo_has_its_limit_and_each_of_a2po_a_wider_clip(self) -> None:
        phases = Sequential(kl_limit=0.25).plan_phases(START, ("a", "b"), 0)
        assert [(phase.kl_limit, phase.clip_scale) for phase in phases] == [(0.25, 1.0)] * 2
        wider = A2PO(first_clip=0.25).plan_phases(START, ("a", "b", "c"), 0)
        assert [phase.clip_scale for phase in wider] == pytest.approx([0.5, 0.75, 1.0])
        assert sorted(phase.policies for phase in wider) == [("a",), ("b",), ("c",)]


class TestInputs:
    def test_costs_of_an_action_are_summed_and_there_may_be_none(self) -> None:
        costs = [np.array([0.5]), np.array([1.0, 2.0, 4.0])]
        inputs = CreditInputs((), "token", costs=costs)
        assert [inputs.action_kl_cost(0), inputs.action_kl_cost(1)] == [0.5, 7.0]
        assert CreditInputs((), "token").action_kl_cost(0) == 0.0

    @pytest.mark.parametrize(
        ("trained", "expected"), [(None, True), (("one", "two"), True), (("two",), False), ((), False)]
    )
    def test_every_policy_learns_unless_some_are_named(self, trained: tuple[str, ...] | None, expected: bool) -> None:
        assert CreditInputs((), "action", trained=trained).is_trained(make_action("a", policy="one")) == expected

    def test_an_episode_that_ended_has_no_value_at_its_end(self) -> None:
        values = Values([], [{}, {"b": 0.75, "a": 0.5}])
        assert [values.final_value(0), values.final_value(0, "a")] == [0.0, 0.0]
        assert [values.final_value(1), values.final_value(1, "a"), values.final_value(1, "b")] == [0.75, 0.5, 0.75]
        assert Values([]).final_value(3) == 0.0
