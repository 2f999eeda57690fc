"""No step that does not stay finite is kept."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from safetensors.torch import load_file

from marft.common.errors import RunError
from marft.config.algorithm import OptimizerSettings
from marft.config.interfaces.schedule import Progress
from marft.models.half_precision import MasterWeights
from marft.models.policy_registry import PolicyRegistry
from marft.rollout.local_runner import LocalRolloutRunner
from marft.runs.checkpoints import CheckpointManager
from marft.runs.metrics_log import LogDigest
from marft.runs.run_folder import RunFolder
from marft.runs.state import State
from marft.trainer.learner import Learner
from marft.trainer.non_finite_guard import MAX_CONSECUTIVE, NonFiniteGuard, Snapshot, find_non_finite, suggest_fix
from marft.trainer.optimizers import PolicyOptimizer, optimizer_tensors
from marft.trainer.train import train
from tests.helpers import settings
from tests.nights import BY_NIGHT
from tests.runs import Listening


class TestUndoing:
    @staticmethod
    def poisoned(monkeypatch: pytest.MonkeyPatch, poison: Callable[[Learner], Any], steps: tuple[int, ...]) -> None:
        learn = Learner.learn

        def wrong(self: Learner, episodes: Any, progress: Any, *told: Any) -> dict[str, float]:
            metrics = learn(self, episodes, progress, *told)
            if progress.step in steps:
                with torch.no_grad():
                    poison(self)
            return metrics

        monkeypatch.setattr(Learner, "learn", wrong)

    @staticmethod
    def policy(learner: Learner) -> None:
        list(learner.optimizers["actor"].parameters.values())[-1][0, 0] = float("nan")

    @staticmethod
    def critic(learner: Learner) -> None:
        assert learner.critic is not None
        next(iter(learner.critic.parameters().values()))[0] = float("inf")

    @staticmethod
    def state_key(learner: Learner) -> None:
        optimizer = learner.optimizers["reasoner"].optimizer
        next(iter(optimizer.state.values()))["exp_avg_sq"].fill_(float("inf"))

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("poison", "advice"),
        [(policy, "lower policies.actor.learning_rate"), (critic, "lower algorithm.critic.learning_rate (now 0.001)"), pytest.param(state_key, "lower policies.reasoner.learning_rate", marks=BY_NIGHT)],
    )  # fmt: skip
    @pytest.mark.parametrize("at", [pytest.param(0, marks=BY_NIGHT), 1])
    def test_a_step_that_does_not_stay_finite_is_undone_counted_and_explained(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, poison: Any, advice: str, at: int
    ) -> None:
        """Such a step once went into the checkpoint, which then was the newest whole one."""
        self.poisoned(monkeypatch, getattr(poison, "__func__", poison), (at,))
        run, observer = settings("tiny", tmp_path, "--algorithm.entropy_coefficient", "0.1"), Listening()
        folder = RunFolder.create(run)
        train(run, folder, callbacks=[observer])
        (note,) = observer.notes
        assert note.startswith(f"step {at + 1}: ")
        assert advice in note
        assert [row["reverted_steps"] for row in folder.read_metrics()] == [float(at == 0), float(at == 1)]
        for file in folder.checkpoints.rglob("*.safetensors"):
            assert all(tensor.isfinite().all() for tensor in load_file(file).values()), file
        if at == 1:  # nothing of the undone step is left, moments and all
            one, two = (folder.checkpoints / f"step_00000{n}" for n in (1, 2))
            for file in one.rglob("*.safetensors"):
                assert file.read_bytes() == (two / file.relative_to(one)).read_bytes()

    @BY_NIGHT
    @pytest.mark.slow
    def test_a_run_of_nothing_but_undone_steps_stops_and_says_what_to_change(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.poisoned(monkeypatch, self.policy, tuple(range(100)))
        run = settings("tiny", tmp_path, "--training.steps", "9")
        with pytest.raises(RunError, match=rf"the {MAX_CONSECUTIVE}th in a row.*lower policies.actor.learning_rate"):
            train(run, RunFolder.create(run))

    def test_what_was_before_comes_back_to_the_bit_and_a_healthy_step_is_not_touched(self) -> None:
        run = settings("tiny", "runs", "--algorithm.entropy_coefficient", "0.1")
        with LocalRolloutRunner(run) as rollouts:
            learner = Learner(run, rollouts.models)
            (before := Snapshot(learner)).take()
            optimizer = learner.optimizers["actor"]
            values = optimizer.snapshot().parameters.values()
            for parameter in optimizer.parameters.values():
                parameter.grad = torch.ones_like(parameter)
            optimizer.step()
            assert find_non_finite(learner) == []
            assert any(
                not torch.equal(a, b) for a, b in zip(values, optimizer.snapshot().parameters.values(), strict=True)
            )
            before.restore()
            assert all(torch.equal(a, b) for a, b in zip(values, optimizer.snapshot().parameters.values(), strict=True))
            assert not optimizer.optimizer.state

    @pytest.mark.parametrize("train", ["lora", "full"])
    def test_what_is_kept_for_undoing_takes_no_new_memory_and_is_nobody_elses(self, train: str) -> None:
        run = settings("tiny", "runs", "--policies.actor.train", train)
        learner = Learner(run, PolicyRegistry(run))
        optimizer = learner.optimizers["actor"]

        def step() -> None:
            for parameter in optimizer.parameters.values():
                parameter.grad = torch.ones_like(parameter)
            optimizer.step()

        step()  # there are moments now
        (before := Snapshot(learner)).take()
        kept = {tensor.data_ptr() for part in before._copied for tensors in part for tensor in tensors.values()}
        moments = optimizer_tensors(optimizer.optimizer, optimizer.parameters)
        live = {tensor.data_ptr() for tensor in (*optimizer.parameters.values(), *moments.values())}
        step()
        before.take()
        assert kept == {tensor.data_ptr() for part in before._copied for tensors in part for tensor in tensors.values()}
        assert not kept & live
        second = optimizer.snapshot()
        for _ in range(2):  # undone twice: what was put back the first time has been moved since
            step()
            before.restore()
            now = optimizer.snapshot()
            assert all(map(torch.equal, now.parameters.values(), second.parameters.values()))
            assert now.moments.keys() == second.moments.keys() != set()
            assert all(torch.equal(now.moments[key], value) for key, value in second.moments.items())

    def test_a_model_in_half_precision_comes_back_with_its_masters(self) -> None:
        weight = torch.nn.Parameter(torch.ones(2, dtype=torch.bfloat16))
        masters, small = MasterWeights({"p": weight}), Small()
        small.optimizers["actor"] = PolicyOptimizer(masters.parameters, OptimizerSettings(), 0.25, 9, masters)
        (before := Snapshot(cast(Learner, small))).take()
        small.optimizers["actor"].load_parameters({"p": torch.full((2,), 3.0)})
        assert weight.tolist() == [3.0, 3.0]
        before.restore()
        assert weight.tolist() == [1.0, 1.0]

    def test_no_checkpoint_takes_what_is_not_finite(self, tmp_path: Path) -> None:
        run = settings("tiny", tmp_path)
        folder = RunFolder.create(run)
        with LocalRolloutRunner(run) as rollouts:
            learner = Learner(run, rollouts.models)
            with torch.no_grad():
                self.policy(learner)
            with pytest.raises(AssertionError, match="not finite"):
                CheckpointManager(folder, run.checkpoints).save(
                    State(1), run, rollouts.models, learner, LogDigest.from_content(b"")
                )
        assert not folder.checkpoints.exists()


class Small:
    """A learner of a few numbers, a policy and a critic; each step makes of them what it is told."""

    def __init__(self) -> None:
        self.optimizers = {
            "actor": PolicyOptimizer({"p": torch.nn.Parameter(torch.zeros(2))}, OptimizerSettings(), 0.25, 9)
        }
        value = torch.nn.Parameter(torch.zeros(1))
        self.critic = SimpleNamespace(parameters=lambda: {"v": value}, optimizer=torch.optim.Adam([value]))
        self.settings = SimpleNamespace(critic=SimpleNamespace(learning_rate=0.5))
        self.then: dict[str, float] = {}

    def learn(
        self, episodes: object, progress: Progress, on_credit: Callable[[list[Any]], None], *told: object
    ) -> dict[str, float]:
        on_credit([f"credits of step {progress.step}"])
        with torch.no_grad():
            for name, value in self.then.items():
                parameter = self.critic.parameters()["v"] if name == "v" else self.optimizers[name].parameters["p"]
                parameter.fill_(value)
        return {"reward": float(progress.step)}

    @property
    def values(self) -> list[float]:
        return [self.optimizers["actor"].parameters["p"][0].item(), self.critic.parameters()["v"].item()]


class TestCareful:
    NAN, INF = float("nan"), float("inf")

    def test_a_step_that_stays_finite_is_kept_and_is_nothing_to_note(self, caplog: pytest.LogCaptureFixture) -> None:
        small = Small()
        small.then = {"actor": 3e38, "v": -3e38}  # whose squares are not finite
        assert NonFiniteGuard(cast(Learner, small)).learn((), Progress(0, 0)) == {"reward": 0.0, "reverted_steps": 0.0}
        assert small.values == pytest.approx([3e38, -3e38])
        assert not caplog.records

    def test_all_that_is_broken_is_named_with_what_to_change(self, caplog: pytest.LogCaptureFixture) -> None:
        small = Small()
        careful = NonFiniteGuard(cast(Learner, small))
        small.then = {"actor": 2.0, "v": 3.0}
        careful.learn((), Progress(0, 0))
        small.then = {"actor": self.NAN, "v": -self.INF}
        assert careful.learn((), Progress(1, 0)) == {"reward": 1.0, "reverted_steps": 1.0}
        assert small.values == [2.0, 3.0]
        assert caplog.messages == [
            "step 2: policies.actor, critic did not stay finite, so the step was undone; lower policies.actor.learning_rate "
            "or algorithm.optimizer.learning_rate (now 0.25), algorithm.optimizer.max_gradient_norm (now 1) or weight_decay; "
            "lower algorithm.critic.learning_rate (now 0.5)"
        ]

    def test_the_fifth_in_a_row_stops_and_a_good_one_between_begins_anew(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        small = Small()
        careful = NonFiniteGuard(cast(Learner, small))
        for step in range(10):
            small.then = {"actor": 1.0 if step == 4 else self.NAN}
            if step < 9:
                assert careful.learn((), Progress(step, 0))["reverted_steps"] == float(step != 4)
                continue
            with pytest.raises(
                RunError, match=r"step 10: policies.actor did .* the 5th in a row. What was saved is whole"
            ):
                careful.learn((), Progress(step, 0))
        assert small.values == [1.0, 0.0]
        assert [text.split(":")[0] for text in caplog.messages] == [f"step {n}" for n in (1, 2, 3, 4, 6, 7, 8, 9)]

    def test_a_resumed_run_goes_on_counting(self) -> None:
        """A run that resumed after four undone steps once had five more."""
        small = Small()
        careful = NonFiniteGuard(cast(Learner, small))
        careful.resume([{"reverted_steps": 1.0}, {"reverted_steps": 0.0}, *[{"reverted_steps": 1.0}] * 4])
        small.then = {"actor": self.NAN}
        with pytest.raises(RunError, match="the 5th in a row"):
            careful.learn((), Progress(6, 0))
        for steps in ([], [{"reverted_steps": 1.0}] * 4 + [{"reverted_steps": 0.0}]):
            careful.resume(steps)
            assert careful.learn((), Progress(6, 0))["reverted_steps"] == 1.0

    @pytest.mark.parametrize(("step", "left"), [(4, 0.0), (3, 1.0), (5, 1.0)])
    def test_a_step_that_others_could_not_finish_is_reverted_if_it_has_begun_here(self, step: int, left: float) -> None:
        small = Small()
        small.then = {"actor": 1.0}
        careful = NonFiniteGuard(cast(Learner, small))
        careful.learn((), Progress(4, 0))
        careful.revert(step)
        assert small.values == [left, 0.0]

    @pytest.mark.parametrize("step", range(3))
    def test_there_is_nothing_to_revert_before_the_first_step(self, step: int) -> None:
        small = Small()
        NonFiniteGuard(cast(Learner, small)).revert(step)
        assert small.values == [0.0, 0.0]

    def test_the_credits_of_a_step_are_logged_unless_it_is_undone(self) -> None:
        small, logged = Small(), list[Any]()
        careful = NonFiniteGuard(cast(Learner, small))
        for step, value in enumerate((1.0, self.NAN, 2.0)):
            small.then = {"actor": value}
            careful.learn((), Progress(step, 0), logged.append)
        assert logged == [["credits of step 0"], ["credits of step 2"]]

    def test_a_policy_of_other_ranks_is_theirs_to_advise_on(self) -> None:
        small = cast(Learner, Small())
        assert suggest_fix(small, "policies.elsewhere") == ""
        assert suggest_fix(small, "policies.actor").startswith("lower policies.actor.learning_rate")

    def test_what_has_no_elements_is_finite(self) -> None:
        """A head of nothing, a layer that somebody cut away: their largest element is no number."""
        small = Small()
        small.optimizers["actor"] = PolicyOptimizer(
            {"none": torch.nn.Parameter(torch.zeros(0)), "p": torch.nn.Parameter(torch.zeros(1))},
            OptimizerSettings(),
            0.1,
            9,
        )
        assert find_non_finite(cast(Learner, small)) == []
