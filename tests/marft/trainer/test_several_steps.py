"""Several learner steps against the dense twin: what is carried on, what is undone, and which minibatches there are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerBase

from marft.config.algorithm import merge_tables
from tests.dense.report import Report
from tests.dense.trials import SMOOTH, STARTS, Table, algorithm, episodes_for, numbered, steps_of
from tests.dense.twins import Twins, assert_same, differ, recipe, save_small_model, snapshot
from tests.nights import BY_NIGHT, some


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, tiny_tokenizer: PreTrainedTokenizerBase) -> Path:
    return save_small_model(tmp_path_factory.mktemp("small"), tiny_tokenizer)


class TestSeveralSteps:
    """What is carried from one training step to the next: moments, rates, baselines, whose turn it is."""

    @pytest.mark.slow
    @pytest.mark.parametrize("name", some(["a2po", "marft", "rae", "cispo"], of=4))
    def test_moments_and_baselines_are_carried_on(self, name: str, model: Path) -> None:
        steps_of(Twins(recipe(model, algorithm(name, **SMOOTH))), 3)

    @pytest.mark.slow
    @pytest.mark.parametrize("schedule", some(["linear", "cosine"], of=2))
    def test_rates_rise_and_fall(self, schedule: str, model: Path) -> None:
        rates = {"schedule": schedule, "warmup_steps": 2, "min_lr_ratio": 0.1, **SMOOTH["optimizer"]}
        steps_of(Twins(recipe(model, algorithm("rloo", optimizer=rates), steps=5)), 5)

    @pytest.mark.slow
    @pytest.mark.parametrize(
        "option",
        [pytest.param({}, marks=BY_NIGHT), {"kl": {"coefficient": 0.3, "apply_to": "reward"}}],
        ids=["plain", "KL in the reward"],
    )
    @pytest.mark.parametrize("start", some(["token critic", "critic", "turns"]))
    def test_the_critic_warms_up_on_whole_returns_alone(self, start: str, option: Table, model: Path) -> None:
        """To Monte-Carlo returns, less the KL where it is in the reward; policies stand still, and their own warm-up
        begins afterwards."""
        waits = {"critic": {"warmup_steps": 2, "epochs": 2}, "optimizer": {"warmup_steps": 3, "epsilon": 1e-4},
                 "credit": {"lambda_critic": 0.2}}  # fmt: skip
        twins = Twins(recipe(model, algorithm(**merge_tables(merge_tables(STARTS[start], waits), option)), steps=6))
        before = snapshot(twins)
        warming = steps_of(twins, 2)
        assert {moved.owner for moved in warming.moved} == {"critic"}
        mine, right = twins.learn(episodes_for(twins, seed=2), 2)
        assert_same(twins, before, mine, right)
        rates = [rate for moved in mine.moved if moved.owner != "critic" for rate in moved.rates.values()]
        assert rates == pytest.approx([0.01 / 3] * len(rates))

    def test_the_turn_goes_round(self, model: Path) -> None:
        table = algorithm("gspo", schedule={"name": "agent-by-agent", "interval": 20}, **SMOOTH)
        whole = steps_of(Twins(recipe(model, table)), 5)  # 12 environment steps each
        assert list(dict.fromkeys(m.owner for m in whole.moved)) == ["planner", "solver"]


class TestTrustRegion:
    """HATRPO: an update counts only as far as its KL stays within the limit, and only where it is an improvement."""

    @pytest.mark.slow
    @pytest.mark.parametrize("limit", some([1e-3, 1e-2, 1e-4, 1e-9], of=4))
    def test_updates_are_scaled_back_or_undone(self, limit: float, model: Path) -> None:
        table = algorithm("hatrpo", schedule={"name": "sequential", "kl_limit": limit}, **SMOOTH)
        whole = steps_of(Twins(recipe(model, table)), 2, drift=0.0)
        assert whole.metrics["accepted_fraction"] < 1

    def test_an_update_that_makes_things_worse_is_undone(self, model: Path) -> None:
        """The moments of two steps carry a third one on that is paid for the opposite."""
        table = algorithm(
            "hatrpo", epochs=1, minibatches=1, schedule={"name": "sequential", "kl_limit": 10.0}, critic={"learning_rate": 1e-9},
            **SMOOTH,
        )  # fmt: skip
        twins = Twins(recipe(model, table))
        for step, pay in enumerate((10.0, 10.0, -10.0)):
            paid = [
                replace(
                    e, transitions=tuple(replace(t, reward=pay * t.reward, agent_rewards={}) for t in e.transitions)
                )
                for e in episodes_for(twins)
            ]
            start = snapshot(twins)
            mine, right = twins.learn(paid, step)
            assert_same(twins, start, mine, right)
            assert (mine.metrics["accepted_fraction"] < 1) == (pay < 0)


class TestMinibatches:
    """The order is data to the dense twin; here is what it must be like."""

    @staticmethod
    def gradients(model: Path, step: int, owner: str) -> list[Report]:
        """Of every minibatch, by epoch, with weights that do not move."""
        still = {"epochs": 3, "minibatches": 2}
        table = merge_tables(STARTS["critic"], {
            **still, "optimizer": {"learning_rate": 1e-12, "warmup_steps": 0}, "critic": {**still, "learning_rate": 1e-12},
        })  # fmt: skip
        twins = Twins(recipe(model, algorithm(**table)))
        episodes = [numbered(episode, 10 * seed) for seed in range(3) for episode in episodes_for(twins, seed=seed)]
        mine = [m for m in twins.learn_alone(episodes, step).moved if m.owner == owner]
        assert len(mine) == 6
        return [Report(mine[2 * epoch : 2 * epoch + 2]) for epoch in range(3)]

    @BY_NIGHT
    @pytest.mark.slow
    @pytest.mark.parametrize("owner", ["planner", "solver", "critic"])
    def test_every_epoch_of_every_step_has_its_own(self, owner: str, model: Path) -> None:
        seen = [report for step in (0, 1) for report in self.gradients(model, step, owner)]
        for i, one in enumerate(seen):
            for other in seen[:i]:
                assert differ(one, other)
                assert differ(one, Report(other.moved[::-1]))
