"""Every preset trains; impossible combinations are refused; episodes are forked and replayed exactly."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file

from marft.agents.game import Attempt
from marft.agents.organizations import Graph
from marft.agents.play import play_all
from marft.common.metrics import find_metric
from marft.common.types import Episode, JointAction, Observation, Step, Task
from marft.config import parse_recipe
from marft.config.algorithms import PRESETS
from marft.config.interfaces.credit import CreditInputs
from marft.config.interfaces.schedule import Progress
from marft.rollout.fork_plans import find_dependents, grow_tree, play_counterfactuals, play_missing
from marft.rollout.local_runner import LocalRolloutRunner
from marft.rollout.rollout_batch import collect_rollouts, load_training_tasks, sample_attempts
from marft.runs.episode_files import read_episodes
from marft.runs.run_folder import RunFolder
from marft.runs.state import State
from marft.trainer.credit.counterfactual import Counterfactual
from marft.trainer.train import train
from marft.trainer.update_schedules import AgentByAgent
from tests.fakes import FakeEngine, Script, ends, game
from tests.helpers import recipe, settings
from tests.nights import BY_NIGHT, some
from tests.plugins import Flaky

LONG = ("--agents.actor.sampling.max_new_tokens", "32", "--agents.reasoner.sampling.max_new_tokens", "32")


def of(name: str, tmp_path: Path, *overrides: str, **changes: Any) -> Any:
    table = recipe("tiny", tmp_path, **{"rollout": {"tasks_per_step": 4, "samples_per_task": 4}, **changes})
    table["algorithm"] = {"name": name, "optimizer": {"learning_rate": 1e-3}}
    return parse_recipe(table, [*LONG, *overrides])


@BY_NIGHT
@pytest.mark.slow
@pytest.mark.parametrize("name", some(sorted(PRESETS), of=8))
def test_every_preset_trains_both_agents(name: str, tmp_path: Path) -> None:
    warmup = PRESETS[name].get("critic", {}).get("warmup_steps", 0)
    run = of(name, tmp_path, "--training.steps", str(warmup + 2), "--checkpoints.every", str(warmup + 2))
    folder = RunFolder.create(run)
    train(run, folder)
    last = folder.read_metrics()[-1]
    assert math.isfinite(last["policy_loss"])
    assert last["skipped_updates"] == 0
    assert {name for name in last if name != "step" and find_metric(name) is None} == set()  # all in the catalogue
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
        assert "use critic.kind = 'centralized'" in self.problems("--algorithm.critic.kind", "none")

    def test_a_critic_that_nobody_reads_is_not_trained(self) -> None:
        text = self.problems("--algorithm.critic.kind", "centralized", name="grpo")
        assert "set critic.kind = 'none'" in text

    def test_groups_of_one_have_no_baseline(self) -> None:
        assert "use at least 2" in self.problems(name="grpo", samples=1)

    def test_a2po_needs_a_credit_that_traces(self) -> None:
        assert "use credit 'step-gae'" in self.problems("--algorithm.schedule", "{ name = 'a2po' }")

    def test_forks_and_corrections_between_policies_do_not_mix(self) -> None:
        text = self.problems("--algorithm.schedule", "{ name = 'sequential' }", name="coma")
        assert "use schedule 'simultaneous'" in text

    def test_a_warm_up_that_is_the_whole_run(self) -> None:
        text = self.problems("--algorithm.critic.warmup_steps", "5")
        assert "no policy would ever step" in text

    def test_a_band_that_lets_nothing_through_and_a_dual_clip_below_one(self) -> None:
        band = self.problems("--algorithm.sampler_correction", "{ mask_low = 3.0, mask_high = 2.0 }")
        assert "mask_low is not below mask_high" in band
        for too_low in ("0.5", "1.0"):
            assert "must be above 1" in self.problems("--algorithm.objective.dual_clip", too_low)

    def test_k1_in_the_loss_has_no_gradient(self) -> None:
        text = self.problems("--algorithm.kl.coefficient", "0.1", "--algorithm.kl.estimator", "k1")
        assert "apply_to = 'reward'" in text

    def test_token_aggregations_are_refused_at_action_level(self) -> None:
        assert "level = 'token'" in self.problems("--algorithm.aggregation", "constant-length")


class TestForking:
    @pytest.mark.slow
    def test_a_fork_holds_what_was_recorded_and_then_goes_its_own_way(self, tmp_path: Path) -> None:
        run = of("coma", tmp_path)
        with LocalRolloutRunner(run) as rollouts:
            attempts = sample_attempts(run, load_training_tasks(run), 0, 0, 2)
            played = rollouts.play(attempts)
            forks = play_counterfactuals(rollouts.play, attempts, played, 2, ("reasoner", "actor"))
        by_name = {episode.name: episode for episode in played}
        assert len(forks) == 2 * sum(len(episode.actions) for episode in played)
        for fork in forks:
            assert fork.fork is not None
            assert fork.is_scored
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
        with LocalRolloutRunner(run) as rollouts:
            attempts = sample_attempts(run, load_training_tasks(run), 0, 0, 1)
            played = rollouts.play(attempts)
            forks = play_counterfactuals(rollouts.play, attempts, played, 1, ("actor",))
        assert all(episode.is_scored for episode in played)
        assert {fork.status for fork in forks} == {"failed"}
        assert "shows something else than recorded" in forks[0].error

    @pytest.mark.slow
    def test_forks_at_the_first_action_are_checked_as_well_and_counted(self, tmp_path: Path) -> None:
        run = of("coma", tmp_path, "--training.steps", "1", environment={"name": "tests.plugins:Forgetful"})
        folder = RunFolder.create(run)
        train(run, folder)
        metrics = folder.read_metrics()[0]
        assert metrics["forks"] == metrics["forks_failed"] == 16 * 2 * 2
        recorded = read_episodes(folder.episodes / "step_000001.parquet")
        assert sum(episode.status == "failed" for episode in recorded) == 64

    def test_of_concurrent_actions_the_one_meant_is_sampled_anew(self) -> None:
        """c ends before a, so that d is asked for before b: forks go by name, never by place."""

        class Uneven(FakeEngine):
            async def sample(self, policy: str, prompt: Any, sampling: Any, key: Any) -> Any:
                for _ in range(40 if key.agent == "a" and key.stream == "train/0" else 1):
                    await asyncio.sleep(0)
                return await super().sample(policy, prompt, sampling, key)

        engine = Uneven(lambda key, prompt: f"{key.agent} {key.stream[-1]}")
        g = game(
            Script([ends()]), "a", "b", "c", "d", engine=engine, organization=Graph(visible={"b": ("a",), "d": ("c",)})
        )

        def play_many(attempts: Any) -> list[Episode]:
            return asyncio.run(play_all(g, attempts, 8))

        attempts = [Attempt(Task("t0", "begin"), "train/0")]
        played = play_many(attempts)
        assert [a.agent for a in played[0].actions] == ["a", "c", "d", "b"]
        forks = play_counterfactuals(play_many, attempts, played, 1, ("a", "b", "c", "d"))
        assert [fork.fork.at for fork in forks if fork.fork] == ["0/a/0", "0/c/0", "0/d/0", "0/b/0"]
        for fork in forks:
            assert fork.fork is not None
            fresh = {action.id for action in fork.actions if action.key.stream != "train/0"}
            assert fresh == find_dependents(played[0].actions, next(a for a in fork.actions if a.id == fork.fork.at))
        counterfactual = Counterfactual().assign(CreditInputs([*played, *forks], "action"))
        assert counterfactual.metrics["singleton_groups"] == 0

    def test_a_tree_settles_on_concurrent_actions_by_name(self) -> None:
        g = game(Script([ends()]), "a", "b", "c", "d", organization=Graph(visible={"b": ("a",), "d": ("c",)}))
        came_to, played = grow_tree(
            lambda attempts: asyncio.run(play_all(g, attempts, 8)), [Attempt(Task("t0", "begin"), "train/0")], 2, "first",
            lambda e: e.total_reward,
        )  # fmt: skip
        assert len(played) == 4 * 2
        assert {e.fork.at for e in played if e.fork} == {"0/a/0", "0/b/0", "0/c/0", "0/d/0"}
        settled = {a.id: a.key for a in came_to[0].actions}
        assert set(settled) == {"0/a/0", "0/b/0", "0/c/0", "0/d/0"}

    def test_candidates_are_scored_before_one_is_carried_on(self, tmp_path: Path) -> None:
        run = of("at-grpo", tmp_path)
        with LocalRolloutRunner(run) as rollouts:
            attempts = sample_attempts(run, load_training_tasks(run), 0, 0, 1)[:2]
            came_to, scored = grow_tree(rollouts.play, attempts, 3, "best", lambda e: e.total_reward)
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
        with LocalRolloutRunner(run) as rollouts:
            came_to, scored = grow_tree(
                rollouts.play,
                sample_attempts(run, load_training_tasks(run), 0, 0, 1)[:1],
                2,
                "first",
                lambda e: e.total_reward,
            )
        assert [(a.step, a.agent) for a in came_to[0].actions] == [
            (0, "reasoner"), (0, "actor"), (1, "reasoner"), (1, "actor"),
        ]  # fmt: skip
        assert len(scored) == 4 * 2
        assert {e.status for e in scored[:4]} == {"paused"}

    def test_every_tuple_of_samples_is_scored_once(self, tmp_path: Path) -> None:
        run = of(
            "magrpo", tmp_path, "--algorithm.credit.joint_mode", "cross", team={"organization": "tests.plugins:Apart"}
        )
        with LocalRolloutRunner(run) as rollouts:
            attempts = sample_attempts(run, load_training_tasks(run), 0, 0, 1)[:3]
            played = rollouts.play(attempts)
            more = play_missing(rollouts.play, attempts, played)
        assert len(more) == 3 * 3 - 3
        pairs = {tuple(a.key.sample for a in e.actions) for e in [*played, *more]}
        assert len(pairs) == 9
        assert all(e.is_scored for e in more)

    def test_crossing_a_chain_is_refused(self, tmp_path: Path) -> None:
        run = of("magrpo", tmp_path, "--algorithm.credit.joint_mode", "cross", "--training.steps", "1")
        with pytest.raises(Exception, match="nobody sees anybody"):
            train(run, RunFolder.create(run))


class TestDynamicSampling:
    def test_agents_own_rewards_tell_attempts_apart_too(self, tmp_path: Path) -> None:
        run = of(
            "dapo",
            tmp_path,
            "--training.steps",
            "1",
            environment={"name": "tests.marft.trainer.test_algorithms:OwnPay"},
        )
        folder = RunFolder.create(run)
        train(run, folder)
        metrics = folder.read_metrics()[0]
        assert metrics["groups_discarded"] == 0
        assert metrics["zero_advantage_fraction"] < 1.0

    @pytest.mark.slow
    def test_all_equal_groups_are_drawn_again_and_not_for_ever(self, tmp_path: Path) -> None:
        run = of("dapo", tmp_path, environment={"name": "tests.plugins:Flaky"})  # always the same reward
        with LocalRolloutRunner(run) as rollouts:
            collection = collect_rollouts(rollouts, load_training_tasks(run), State(), lambda _: None)
        assert collection.metrics["groups_discarded"] == 4 * 3
        assert collection.tasks_drawn == 4 * 3
        assert collection.training_episodes  # nothing to learn from, but the step can be counted

    def test_informative_groups_are_kept(self, tmp_path: Path) -> None:
        run = of("dapo", tmp_path)
        with LocalRolloutRunner(run) as rollouts:
            collection = collect_rollouts(rollouts, load_training_tasks(run), State(), lambda _: None)
        for task in {e.task.id for e in collection.training_episodes}:
            assert len({e.total_reward for e in collection.training_episodes if e.task.id == task}) > 1


@BY_NIGHT
@pytest.mark.slow
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
    from marft.config.interfaces.schedule import Progress
    from marft.trainer.update_schedules import A2PO, Sequential

    orders = {
        tuple(p.policies[0] for p in Sequential().plan_phases(Progress(s, 0), ("a", "b", "c"), 0)) for s in range(30)
    }
    assert len(orders) == 6
    widths = [phase.clip_scale for phase in A2PO(first_clip=0.5).plan_phases(Progress(0, 0), ("a", "b"), 0)]
    np.testing.assert_allclose(widths, [0.75, 1.0])


def test_settings_of_a_preset_are_overridden_field_by_field() -> None:
    run = settings("tiny", "runs", "--algorithm.name", "grpo", "--algorithm.credit.scale_rewards", "false",
                   "--algorithm.critic", "{ kind = 'none' }")  # fmt: skip
    assert run.algorithm.credit.name == "grpo"
    assert run.algorithm.credit.scale_rewards is False  # type: ignore[attr-defined]
    assert run.algorithm.kl.coefficient == 0.04


def test_a_task_that_comes_again_in_one_step_draws_other_tokens(tmp_path: Path) -> None:
    """A step that reaches from one pass over the tasks into the next may attempt a task twice."""
    run = of("rloo", tmp_path, "--rollout.tasks_per_step", "2", environment={"name": "tests.plugins:Flaky", "count": 3})
    for step in range(6):
        attempts = sample_attempts(run, load_training_tasks(run), step, 2 * step, 2)
        assert len({(a.stream, a.task.id, a.sample) for a in attempts}) == len(attempts)


@pytest.mark.parametrize("steps_at_once", [16, 256, 512, 1024])
def test_agent_by_agent_passes_nobody_over(steps_at_once: int) -> None:
    schedule, turns = AgentByAgent(interval=256), []
    for step in range(16):
        resumed = AgentByAgent(interval=256)
        resumed.load_state_dict(schedule.state_dict())
        schedule = resumed
        turns += [
            phase.policies[0] for phase in schedule.plan_phases(Progress(step, step * steps_at_once), ("a", "b"), 0)
        ]
    if steps_at_once >= 256:
        assert turns == ["a", "b"] * 8
    else:
        assert turns == ["a"] * 16  # 256 environment steps are up after this


class OwnPay(Flaky):
    """Only agents are paid, and differently."""

    def start(self, task: Task, seed: int) -> Any:
        session = super().start(task, seed)

        async def step(joint: JointAction) -> Step:
            mine = float(joint.actions[0].key.sample % 2)
            return Step(Observation("end"), 0.0, terminated=True, agent_rewards={"actor": mine})

        session.step = step  # type: ignore[method-assign]
        return session
