"""Every preset trains; impossible combinations are refused; episodes are forked and replayed exactly."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file

from marft.algorithms import PRESETS
from marft.config import parse_recipe
from marft.forking import counterfactuals, crossed, tree
from marft.gathering import attempts_at, gather, training_tasks
from marft.runs.folder import RunFolder
from marft.stage import Stage
from marft.training import train
from tests.helpers import recipe, settings

LONG = ("--agents.actor.sampling.max_new_tokens", "32", "--agents.reasoner.sampling.max_new_tokens", "32")


def of(name: str, tmp_path: Path, *overrides: str, **changes: Any) -> Any:
    table = recipe("tiny", tmp_path, **{"rollout": {"tasks_per_step": 4, "samples_per_task": 4}, **changes})
    table["algorithm"] = {"name": name, "optimizer": {"learning_rate": 1e-3}}
    return parse_recipe(table, [*LONG, *overrides])


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_every_preset_trains_both_agents(name: str, tmp_path: Path) -> None:
    warmup = PRESETS[name].get("critic", {}).get("warmup_steps", 0)
    run = of(name, tmp_path, "--training.steps", str(warmup + 2), "--checkpoints.every", str(warmup + 2))
    folder = RunFolder.create(run)
    train(run, folder)
    last = folder.read_metrics()[-1]
    assert math.isfinite(last["policy_loss"])
    assert last["skipped_updates"] == 0
    for policy in ("reasoner", "actor"):
        file = folder.checkpoints / f"step_{warmup + 2:06d}" / "policies" / policy / "adapter_model.safetensors"
        assert any(t.abs().max() > 0 for key, t in load_file(file).items() if "lora_B" in key), policy


class TestRefusals:
    def problems(self, *overrides: str, name: str = "marft", samples: int = 4) -> str:
        table = recipe()
        table["algorithm"] = {"name": name}
        table["rollout"]["samples_per_task"] = samples
        with pytest.raises(ValueError, match="recipe:") as caught:
            parse_recipe(table, overrides)
        return str(caught.value)

    def test_a_credit_that_reads_values_needs_a_critic(self) -> None:
        assert "use critic.kind = 'centralised'" in self.problems("--algorithm.critic.kind", "none")

    def test_a_critic_that_nobody_reads_is_not_trained(self) -> None:
        text = self.problems("--algorithm.critic.kind", "centralised", name="grpo")
        assert "set critic.kind = 'none'" in text

    def test_groups_of_one_have_no_baseline(self) -> None:
        assert "use at least 2" in self.problems(name="grpo", samples=1)

    def test_the_samplers_correction_needs_the_learners_numbers(self) -> None:
        text = self.problems("--algorithm.sampler_correction.level", "geometric")
        assert "old_log_probs = 'learner'" in text

    def test_k1_in_the_loss_has_no_gradient(self) -> None:
        text = self.problems("--algorithm.kl.coefficient", "0.1", "--algorithm.kl.estimator", "k1")
        assert "place = 'reward'" in text

    def test_token_aggregations_are_refused_at_action_level(self) -> None:
        assert "level = 'token'" in self.problems("--algorithm.aggregation", "constant-length")


class TestForking:
    def test_a_fork_holds_what_was_recorded_and_then_goes_its_own_way(self, tmp_path: Path) -> None:
        run = of("coma", tmp_path)
        with Stage(run) as stage:
            attempts = attempts_at(run, training_tasks(run), 0, 0, 2)
            played = stage.play(attempts)
            forks = counterfactuals(stage.play, attempts, played, 2, ("reasoner", "actor"))
        by_name = {episode.name: episode for episode in played}
        assert len(forks) == 2 * sum(len(episode.actions) for episode in played)
        for fork in forks:
            assert fork.fork is not None
            assert fork.scored
            origin = by_name[fork.fork.origin]
            place = [a.id for a in origin.actions].index(fork.fork.at)
            for mine, recorded in zip(fork.actions[:place], origin.actions[:place], strict=True):
                assert mine.tokens.tolist() == recorded.tokens.tolist()
                assert mine.key == recorded.key
            assert fork.actions[place].prompt.tolist() == origin.actions[place].prompt.tolist()
            assert fork.actions[place].key != origin.actions[place].key
        assert any(f.actions[-1].text != by_name[f.fork.origin].actions[-1].text for f in forks if f.fork)

    def test_an_environment_that_does_otherwise_under_the_same_seed_loses_the_fork_alone(self, tmp_path: Path) -> None:
        run = of("coma", tmp_path, environment={"name": "tests.plugins:Forgetful"})
        with Stage(run) as stage:
            attempts = attempts_at(run, training_tasks(run), 0, 0, 1)
            played = stage.play(attempts)
            forks = counterfactuals(stage.play, attempts, played, 1, ("actor",))
        assert all(episode.scored for episode in played)
        assert {fork.status for fork in forks} == {"failed"}
        assert "another prompt than recorded" in forks[0].error

    def test_candidates_are_scored_before_one_is_carried_on(self, tmp_path: Path) -> None:
        run = of("at-grpo", tmp_path)
        with Stage(run) as stage:
            attempts = attempts_at(run, training_tasks(run), 0, 0, 1)[:2]
            came_to, scored = tree(stage.play, attempts, candidates=3, carry="best")
        assert len(scored) == 2 * 2 * 3  # attempts, agents, candidates
        for number, attempt in enumerate(attempts):
            mine = [e for e in scored if e.sample == attempt.sample]
            first = [e for e in mine if e.fork and e.fork.at == "0/reasoner/0"]
            then = [e for e in mine if e.fork and e.fork.at == "0/actor/0"]
            assert len({e.actions[0].prompt.tobytes() for e in first}) == 1
            assert len({e.actions[1].prompt.tobytes() for e in then}) == 1
            carried = then[0].actions[0]
            best = max(e.total_reward for e in first)
            assert any(e.actions[0].key == carried.key and e.total_reward == best for e in first)
            assert came_to[number].total_reward == max(e.total_reward for e in then)

    def test_a_tree_grows_over_several_steps(self, tmp_path: Path) -> None:
        run = of("at-grpo", tmp_path, environment={"name": "tests.plugins:Flaky", "steps": 2})
        with Stage(run) as stage:
            came_to, scored = tree(stage.play, attempts_at(run, training_tasks(run), 0, 0, 1)[:1], 2, "first")
        assert [(a.step, a.agent) for a in came_to[0].actions] == [
            (0, "reasoner"), (0, "actor"), (1, "reasoner"), (1, "actor"),
        ]  # fmt: skip
        assert len(scored) == 4 * 2
        assert {e.status for e in scored[:4]} == {"paused"}

    def test_every_tuple_of_samples_is_scored_once(self, tmp_path: Path) -> None:
        run = of(
            "magrpo", tmp_path, "--algorithm.credit.joint_mode", "cross", team={"organization": "tests.plugins:Apart"}
        )
        with Stage(run) as stage:
            attempts = attempts_at(run, training_tasks(run), 0, 0, 1)[:3]
            played = stage.play(attempts)
            more = crossed(stage.play, attempts, played)
        assert len(more) == 3 * 3 - 3
        pairs = {tuple(a.key.sample for a in e.actions) for e in [*played, *more]}
        assert len(pairs) == 9
        assert all(e.scored for e in more)

    def test_crossing_a_chain_is_refused(self, tmp_path: Path) -> None:
        run = of("magrpo", tmp_path, "--algorithm.credit.joint_mode", "cross", "--training.steps", "1")
        with pytest.raises(Exception, match="nobody sees anybody"):
            train(run, RunFolder.create(run))


class TestDynamicSampling:
    def test_all_equal_groups_are_drawn_again_and_not_for_ever(self, tmp_path: Path) -> None:
        run = of("dapo", tmp_path, environment={"name": "tests.plugins:Flaky"})  # always the same reward
        with Stage(run) as stage:
            experience = gather(stage, training_tasks(run), 0, 0, lambda _: None)
        assert experience.metrics["groups_discarded"] == 4 * 3
        assert experience.tasks_drawn == 4 * 3
        assert experience.evidence  # nothing to learn from, but the step can be counted

    def test_informative_groups_are_kept(self, tmp_path: Path) -> None:
        run = of("dapo", tmp_path)
        with Stage(run) as stage:
            experience = gather(stage, training_tasks(run), 0, 0, lambda _: None)
        for task in {e.task.id for e in experience.evidence}:
            assert len({e.total_reward for e in experience.evidence if e.task.id == task}) > 1


def test_baselines_survive_a_checkpoint(tmp_path: Path) -> None:
    run = of("rae", tmp_path, "--training.steps", "4", "--checkpoints.every", "2", "--checkpoints.keep_last", "9")
    straight = RunFolder.create(run)
    train(run, straight)
    half = of("rae", tmp_path, "--training.steps", "2", "--checkpoints.every", "2", "--name", "resumed")
    resumed = RunFolder.create(half)
    train(half, resumed)
    train(of("rae", tmp_path, "--training.steps", "4", "--name", "resumed"), resumed, resume=True)
    a, b = (folder.read_metrics()[-1] for folder in (straight, resumed))
    assert a["agents/actor/baseline"] == b["agents/actor/baseline"]
    assert a["policy_loss"] == b["policy_loss"]


def test_the_order_of_turns_is_drawn_anew(tmp_path: Path) -> None:
    from marft.learning.interfaces import Progress
    from marft.learning.schedules import A2PO, Sequential

    orders = {tuple(p.policies[0] for p in Sequential().plan(Progress(s, 0), ("a", "b", "c"), 0)) for s in range(30)}
    assert len(orders) == 6
    widths = [phase.clip_scale for phase in A2PO(first_clip=0.5).plan(Progress(0, 0), ("a", "b"), 0)]
    np.testing.assert_allclose(widths, [0.75, 1.0])


def test_settings_of_a_preset_are_overridden_field_by_field() -> None:
    run = settings("tiny", "runs", "--algorithm.name", "grpo", "--algorithm.credit.scale", "false",
                   "--algorithm.critic", "{ kind = 'none' }")  # fmt: skip
    assert run.algorithm.credit.name == "grpo"
    assert run.algorithm.credit.scale is False  # type: ignore[attr-defined]
    assert run.algorithm.kl.coefficient == 0.04
