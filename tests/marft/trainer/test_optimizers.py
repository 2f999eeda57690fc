"""One policy's optimizer: AdamW as its settings say, its rate over a run, and going back to what was."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import pytest
import torch

from marft.config.algorithm import OptimizerSettings
from marft.models.half_precision import MasterWeights
from marft.models.policy_registry import Policy
from marft.trainer import optimizers
from marft.trainer.optimizers import PolicyOptimizer, learning_rate_factor, optimizer_tensors, restore_optimizer
from marft.trainer.trust_region import BACKTRACK_STEPS, backtrack_update

Named = dict[str, torch.nn.Parameter]


def parameters() -> Named:
    """One's name begins like another's, and one's is as long."""
    numbers = {"c": [5.0, 6.0], "a": [1.0, -2.0], "a.b": [3.0]}
    return {name: torch.nn.Parameter(torch.tensor(row)) for name, row in numbers.items()}


def optimizer(
    named: Named | None = None, rate: float = 0.1, steps: int = 10, **changes: float | str
) -> PolicyOptimizer:
    return PolicyOptimizer(named or parameters(), OptimizerSettings.model_validate(changes), rate, steps)


def step(mine: PolicyOptimizer, *gradients: float) -> float:
    for parameter in mine.parameters.values():
        parameter.grad = torch.tensor(gradients[: len(parameter)])
    return mine.step()


def values(mine: PolicyOptimizer) -> list[list[float]]:
    return [parameter.tolist() for parameter in mine.parameters.values()]


def test_a_step_is_adamws_by_plain_arithmetic() -> None:
    """Every setting counts: both betas, epsilon inside the quotient, decay of the weights apart from the gradient, and the
    clip before all of it."""
    settings = {"beta1": 0.6, "beta2": 0.7, "epsilon": 0.05, "weight_decay": 0.3, "max_gradient_norm": 0.5}
    named = {"p": torch.nn.Parameter(torch.tensor([1.0, -2.0]))}
    mine = optimizer(named, **settings)  # type: ignore[arg-type]
    weights, first, second = [1.0, -2.0], [0.0, 0.0], [0.0, 0.0]
    for t, gradient in enumerate(((3.0, 4.0), (0.1, -0.2)), 1):
        norm = math.hypot(*gradient)
        assert step(mine, *gradient) == pytest.approx(norm)
        for i, g in enumerate(gradient):
            cut = g * min(1.0, 0.5 / norm)
            first[i] = 0.6 * first[i] + 0.4 * cut
            second[i] = 0.7 * second[i] + 0.3 * cut**2
            weights[i] -= 0.1 * 0.3 * weights[i]
            weights[i] -= 0.1 * (first[i] / (1 - 0.6**t)) / (math.sqrt(second[i] / (1 - 0.7**t)) + 0.05)
    assert named["p"].tolist() == pytest.approx(weights, rel=1e-5)


def test_the_rate_is_the_policys_own_times_the_schedules() -> None:
    mine = optimizer(rate=0.2, steps=6, warmup_steps=2, schedule="linear", min_lr_ratio=0.5)
    assert mine.optimizer.param_groups[0]["lr"] == 0.2  # until a step begins
    for at, fraction in enumerate((0.5, 1.0, 1.0, 0.875, 0.75, 0.625)):
        assert mine.begin_step(at) == pytest.approx(0.2 * fraction)
        assert mine.optimizer.param_groups[0]["lr"] == pytest.approx(0.2 * fraction)


@pytest.mark.parametrize(
    ("schedule", "final", "expected"),
    [
        ("constant", 0.0, [0.25, 0.5, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0]),
        ("linear", 0.0, [0.25, 0.5, 0.75, 1.0, 1.0, 0.75, 0.5, 0.25]),
        ("linear", 0.2, [0.25, 0.5, 0.75, 1.0, 1.0, 0.8, 0.6, 0.4]),
        ("cosine", 0.0, [0.25, 0.5, 0.75, 1.0, 1.0, (2 + math.sqrt(2)) / 4, 0.5, (2 - math.sqrt(2)) / 4]),
        ("cosine", 0.2, [0.25, 0.5, 0.75, 1.0, 1.0, 0.2 + 0.2 * (2 + math.sqrt(2)), 0.6, 0.2 + 0.2 * (2 - math.sqrt(2))]),
    ],
)  # fmt: skip
def test_rates_rise_in_a_line_and_fall_as_the_schedule_says(schedule: str, final: float, expected: list[float]) -> None:
    settings = OptimizerSettings.model_validate(
        {"schedule": schedule, "warmup_steps": 4, "min_lr_ratio": final, "learning_rate": 1.0}
    )
    assert [learning_rate_factor(settings, step, 8) for step in range(8)] == pytest.approx(expected)


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_a_run_that_ends_within_its_warm_up_has_a_rate(schedule: str) -> None:
    """It divides by the steps after the warm-up, of which there are none."""
    settings = OptimizerSettings.model_validate({"schedule": schedule, "warmup_steps": 3})
    assert [learning_rate_factor(settings, step, 3) for step in range(4)] == pytest.approx([1 / 3, 2 / 3, 1.0, 1.0])


class TestASnapshot:
    def test_is_a_copy_and_is_restored_moments_and_all(self) -> None:
        mine = optimizer()
        step(mine, 1.0, 2.0)
        kept, then = mine.snapshot(), values(mine)
        moments = {name: tensor.tolist() for name, tensor in kept.moments.items()}
        assert set(moments) == {f"{p}.{key}" for p in ("a", "a.b", "c") for key in ("step", "exp_avg", "exp_avg_sq")}
        assert not any(tensor.requires_grad for tensor in (*kept.parameters.values(), *kept.moments.values()))
        for _ in range(2):  # what was put back the first time has been moved since
            step(mine, -3.0, 1.0)
            assert values(mine) != then
            mine.restore(kept)
            assert values(mine) == then
            assert {name: t.tolist() for name, t in mine.snapshot().moments.items()} == moments

    def test_from_before_the_first_step_leaves_no_moments(self) -> None:
        mine = optimizer()
        kept = mine.snapshot()
        step(mine, 1.0, 2.0)
        mine.restore(kept)
        assert not mine.optimizer.state

    def test_the_way_between_two_is_a_line_and_moments_stay(self) -> None:
        mine = optimizer()
        before = mine.snapshot()
        step(mine, 1.0, 2.0)
        after, moments = mine.snapshot(), {n: t.tolist() for n, t in mine.snapshot().moments.items()}
        mine.interpolate(before, after, 0.25)
        for now, a, b in zip(
            mine.parameters.values(), before.parameters.values(), after.parameters.values(), strict=True
        ):
            assert now.tolist() == pytest.approx((0.75 * a + 0.25 * b).tolist())
        assert {n: t.tolist() for n, t in mine.snapshot().moments.items()} == moments


def test_moments_go_to_the_parameter_of_that_very_name_and_nothing_else_does() -> None:
    mine, other = optimizer(), optimizer()
    for number, parameter in enumerate(mine.parameters.values(), 1):
        parameter.grad = torch.full_like(parameter, number)
    mine.step()
    saved = optimizer_tensors(mine.optimizer, mine.parameters)
    restore_optimizer(other.optimizer, other.parameters, {**saved, "a.max_exp_avg_sq": torch.ones(2)})
    for parameter in other.parameters.values():
        assert set(other.optimizer.state[parameter]) == {"step", "exp_avg", "exp_avg_sq"}
    restored = optimizer_tensors(other.optimizer, other.parameters)
    assert restored.keys() == saved.keys()
    assert all(torch.equal(restored[name], tensor) for name, tensor in saved.items())
    assert not {t.data_ptr() for t in restored.values()} & {t.data_ptr() for t in saved.values()}


def test_the_count_of_steps_stays_in_the_hosts_memory_and_moments_go_where_the_parameter_is() -> None:
    mine = optimizer({"p": torch.nn.Parameter(torch.ones(2))})
    step(mine, 1.0, 2.0)
    saved = optimizer_tensors(mine.optimizer, mine.parameters)
    elsewhere = {"p": torch.nn.Parameter(torch.ones(2, device="meta"))}
    other = torch.optim.AdamW(elsewhere.values())
    restore_optimizer(other, elsewhere, saved)
    places = {key: tensor.device.type for key, tensor in other.state[elsewhere["p"]].items()}
    assert places == {"step": "cpu", "exp_avg": "meta", "exp_avg_sq": "meta"}


def test_a_model_in_half_precision_follows_its_masters_whatever_moves_them() -> None:
    weight = torch.nn.Parameter(torch.ones(2, dtype=torch.bfloat16))
    masters = MasterWeights({"p": weight})
    mine = PolicyOptimizer(masters.parameters, OptimizerSettings(), 0.5, 10, masters)
    mine.load_parameters({"p": torch.tensor([3.0, 4.0])})
    assert weight.tolist() == [3.0, 4.0]
    step(mine, 1.0, -1.0)
    stepped = weight.tolist()
    assert stepped == masters.parameters["p"].bfloat16().tolist() != [3.0, 4.0]
    mine.load_state({"p.master": torch.tensor([5.0, 6.0])})
    assert weight.tolist() == [5.0, 6.0]
    assert mine.state().keys() == {"p.master"}
    assert not mine.state()["p.master"].requires_grad


def test_a_policys_optimizer_has_its_parameters_masters_and_settings() -> None:
    settings, masters = OptimizerSettings(), MasterWeights({"p": torch.nn.Parameter(torch.ones(2))})
    policy = cast(Policy, SimpleNamespace(parameters=lambda: masters.parameters, master_weights=masters))
    mine = PolicyOptimizer.from_policy(policy, settings, 0.5, 7, offload=True)
    assert (mine.parameters, mine.settings, mine.learning_rate, mine.steps) == (masters.parameters, settings, 0.5, 7)
    assert mine.master_weights is masters
    assert mine.offload is True


@pytest.mark.parametrize("names", [(), ("exp_avg",), ("exp_avg", "exp_avg_sq", "step")])
def test_moments_that_there_are_move_and_the_count_of_steps_does_not(names: tuple[str, ...]) -> None:
    state = {name: torch.ones(2) for name in names}
    optimizers.move_moments(state, torch.device("meta"))
    assert {name: tensor.device.type for name, tensor in state.items()} == {
        name: "cpu" if name == "step" else "meta" for name in names
    }


def test_a_gradient_is_gone_before_the_next_one_is_added_up() -> None:
    mine = optimizer()
    step(mine, 1.0, 2.0)
    mine.zero_grad()
    assert all(parameter.grad is None for parameter in mine.parameters.values())


class TestAcceptance:
    """An update of +8 and −8: which fraction of it is kept."""

    @staticmethod
    def moved() -> tuple[dict[str, PolicyOptimizer], dict[str, list[list[float]]], Callable[..., float]]:
        mine = {name: optimizer({"p": torch.nn.Parameter(torch.zeros(1))}) for name in ("one", "two")}
        before = {name: policy.snapshot() for name, policy in mine.items()}
        for sign, policy in zip((1.0, -1.0), mine.values(), strict=True):
            step(policy, sign)
            policy.parameters["p"].data.fill_(sign * 8.0)
        at: dict[str, list[list[float]]] = {name: [] for name in mine}

        def accepted(good_at: int) -> float:
            """At the how many-th look the change is good."""

            def is_good() -> bool:
                for name, policy in mine.items():
                    at[name].append(policy.parameters["p"].tolist())
                return len(at["one"]) == good_at

            return backtrack_update(mine, before, is_good)

        return mine, at, accepted

    @pytest.mark.parametrize("looks", range(1, 7))
    def test_it_is_halved_until_it_is_good(self, looks: int) -> None:
        mine, at, accepted = self.moved()
        kept = accepted(looks)
        assert kept == 0.5 ** (looks - 1)
        assert at["one"] == [[8.0 * 0.5**n] for n in range(looks)]
        assert at["two"] == [[-8.0 * 0.5**n] for n in range(looks)]
        assert [values(policy) for policy in mine.values()] == [[[8.0 * kept]], [[-8.0 * kept]]]
        assert all(policy.optimizer.state for policy in mine.values())

    def test_it_is_undone_after_five_halvings_moments_and_all(self) -> None:
        mine, at, accepted = self.moved()
        assert accepted(good_at=99) == 0.0
        assert len(at["one"]) == BACKTRACK_STEPS + 1 == 6
        assert [values(policy) for policy in mine.values()] == [[[0.0]], [[0.0]]]
        assert not any(policy.optimizer.state for policy in mine.values())


def test_moments_that_lie_elsewhere_come_for_a_step_alone_and_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host is another device in float64 here, which holds what float32 holds: whoever stepped there would differ."""
    moved: list[str] = []

    def move(state: dict[str, torch.Tensor], device: torch.device) -> None:
        away = device is optimizers.HOST
        moved.append("away" if away else "here")
        for key in ("exp_avg", "exp_avg_sq"):
            if key in state:
                state[key] = state[key].double() if away else state[key].float()

    monkeypatch.setattr(optimizers, "move_moments", move)
    plain = optimizer()
    away = PolicyOptimizer(parameters(), OptimizerSettings(), 0.1, 10, offload=True)
    for gradients in ((0.5, -1.0), (2.0, 0.25), (0.0, 1.0)):
        assert step(plain, *gradients) == step(away, *gradients)
        kept = optimizer_tensors(away.optimizer, away.parameters)
        assert all(tensor.dtype == torch.float64 for name, tensor in kept.items() if "exp_avg" in name)
        for name, tensor in optimizer_tensors(plain.optimizer, plain.parameters).items():
            assert torch.equal(kept[name].to(tensor.dtype), tensor), name
    assert values(plain) == values(away)
    assert moved.count("here") == moved.count("away") - 3, "at the first step there was nothing to bring"


@pytest.mark.parametrize("offload", [False, True])
def test_moments_that_are_loaded_go_to_the_host_where_they_are_kept_there(
    offload: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, moved = optimizer(), list[torch.device]()
    step(plain, 0.5, -1.0)
    mine = PolicyOptimizer(parameters(), OptimizerSettings(), 0.1, 10, offload=offload)
    monkeypatch.setattr(optimizers, "move_moments", lambda _, device: moved.append(device))
    mine.load_state(plain.state())
    assert moved == [optimizers.HOST] * (3 if offload else 0)
