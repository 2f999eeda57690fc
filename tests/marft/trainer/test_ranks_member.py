"""What a rank does around a step: it takes the first one's learning rates, and refuses to differ from the others."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from marft.common.errors import RunError
from marft.config import RunSettings
from marft.config.interfaces.schedule import Progress
from marft.models.policy_registry import PolicyRegistry
from marft.trainer.non_finite_guard import NonFiniteGuard
from marft.trainer.optimizers import optimizer_tensors
from marft.trainer.ranks.interface import SingleRank
from marft.trainer.ranks.messages import StartRank, TrainStep
from marft.trainer.ranks.rank_worker import RankWorker, _load_worker, shard_models, split_cpu_threads
from tests.learners import episodes, recipe
from tests.marft.trainer import test_ranks
from tests.marft.trainer.test_optimizers import optimizer, values


class Idle(RankWorker):
    """A rank that holds one policy and one weight of the critic's, and notes what it does."""

    def __init__(self, group: Any, policy: Tensor, critic: Tensor) -> None:
        self.did: list[str] = []
        optimizer = SimpleNamespace(parameters={"w": policy}, learning_rate=1.0)
        self.run: Any = SimpleNamespace(
            threads=1, trained_policies=(), models={}, engine=SimpleNamespace(separate_weights=False)
        )
        self.group = group
        self.models: Any = SimpleNamespace(
            release_weights=lambda: self.did.append("let go"), gather_weights=lambda **_: self.did.append("gather")
        )
        value_head = SimpleNamespace(parameters=lambda: {"w": critic})
        self.learner: Any = SimpleNamespace(optimizers={"actor": optimizer}, critic=value_head)

        def learn(*_: object) -> dict[str, float]:
            self.did.append(f"learn at {optimizer.learning_rate}")
            return {}

        self.guard: Any = SimpleNamespace(learn=learn)


@pytest.mark.parametrize("moved", [0, 1, 2])
def test_ranks_whose_weights_differ_by_one_bit_are_refused_on_each(moved: int) -> None:
    """The last rank's policy (1) or critic (2) is the next number there is."""

    def said(group: Any) -> str:
        weights = [torch.ones(3), torch.ones(2)]
        if moved and group.rank == 2:
            weights[moved - 1][1] = torch.nextafter(torch.tensor(1.0), torch.tensor(2.0))
        try:
            Idle(group, *weights)._check_drift(Progress(4, 0))
        except RunError as error:
            return str(error).partition(",")[0]
        return ""

    refusal = "step 5: ranks have come to different weights"
    assert test_ranks.together(3, said) == [refusal if moved else ""] * 3


def test_a_rank_learns_at_the_first_ones_rates_on_its_parts_alone_and_is_looked_at_before_it_gathers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    member = Idle(SimpleNamespace(rank=1, device=torch.device("cpu")), torch.ones(1), torch.ones(1))
    monkeypatch.setattr(Idle, "_send_policies", lambda self: self.did.append("hand over"))
    monkeypatch.setattr(Idle, "_check_drift", lambda self, _: self.did.append("look"))
    member.learn(TrainStep([], Progress(0, 0), {"actor": 0.25}))
    assert member.did == ["let go", "learn at 0.25", "hand over", "look", "gather"]


class Apart(SingleRank):
    """A rank whose words to another lie in a box until they are read."""

    device = torch.device("cpu")

    def __init__(self, rank: int, box: list[object]) -> None:
        self.rank, self.box = rank, box

    def send(self, what: object, rank: int) -> None:
        self.box.append((self.rank, rank, what))

    def receive(self, rank: int) -> Any:
        sender, receiver, what = self.box.pop()  # type: ignore[misc]
        assert (sender, receiver) == (rank, 0)
        return what


def made(run: RunSettings, rank: int = 0, box: list[object] | None = None) -> RankWorker:
    return RankWorker(run, PolicyRegistry(run), cast(Any, Apart(rank, [] if box is None else box)))


def held(member: RankWorker) -> dict[str, Tensor]:
    return test_ranks.weights(member.learner) | dict(member.learner.optimizer_state())


def same(found: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> bool:
    return found.keys() == right.keys() and all(torch.equal(found[name], right[name]) for name in right)


def test_a_rank_that_takes_the_place_of_a_lost_one_has_all_that_the_first_one_has(tmp_path: Path) -> None:
    """Weights, moments, the critic, and whose turn it is."""
    run = recipe(tmp_path, "mappo", "--algorithm.schedule", "{ name = 'agent-by-agent', interval = 9 }")
    first, second = made(run), made(run)
    for step in range(2):
        first.guard.learn(episodes(2, seed=step), Progress(step, 24 * step))
    assert not same(held(second), held(first))
    second.load_state(pickle.loads(pickle.dumps(first.state())))
    assert same(held(second), held(first))
    assert second.learner.state_dict() == first.learner.state_dict() == {"schedule/turn": 1.0, "schedule/since": 24.0}


def test_everything_that_learns_together_learns_in_the_group_that_was_joined_last(tmp_path: Path) -> None:
    member = made(recipe(tmp_path, "marft"))
    assert member.guard.ranks is member.group
    member.set_ranks(other := cast(Any, Apart(0, [])))
    learner = member.learner
    assert learner.critic is not None
    found = (member.group, member.guard.ranks, learner.ranks, learner.diagnostics.ranks, learner.critic.ranks)
    assert all(ranks is other for ranks in found)


TWO_MODELS = ("--models.other.path", "tiny", "--policies.actor.model", "other", "--training.ranks", "3")
PLACED = (*TWO_MODELS, "--models.base.ranks", "[0]", "--models.other.ranks", "[1, 2]")


def test_what_others_have_learned_the_first_rank_is_given_by_one_of_them_and_puts_its_moments_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = recipe(tmp_path, "grpo", *PLACED, "--training.offload_optimizer", "true")
    box: list[object] = []
    first, second, third = members = [made(run, 0, box) for _ in range(3)]
    second.guard.learn(episodes(2), Progress(0, 0))
    for rank, member in enumerate(members):
        member.group.rank = rank
    reasoner = first.learner.optimizers["reasoner"].snapshot().parameters.values()
    moved: list[torch.device] = []
    monkeypatch.setattr("marft.trainer.optimizers.move_moments", lambda _, device: moved.append(device))
    third._send_policies()
    assert not box
    second._send_policies()
    assert not moved
    first._send_policies()
    right, found = (member.learner.optimizers["actor"] for member in (second, first))
    assert same(found.parameters, right.parameters)
    moments = [optimizer_tensors(one.optimizer, one.parameters) for one in (found, right)]
    assert moments[0]
    assert same(*moments)
    assert set(moved) == {torch.device("cpu")}
    moved.clear()
    first.learner.load_optimizer_state(second.learner.optimizer_state())
    assert set(moved) == {torch.device("cpu")}, "what a checkpoint brings is put away, too"
    after = first.learner.optimizers["reasoner"].snapshot().parameters.values()
    assert all(torch.equal(*pair) for pair in zip(reasoner, after, strict=True))


@pytest.mark.parametrize(("rank", "elsewhere"), [(0, {"other"}), (1, {"base"}), (2, {"base"})])
def test_a_rank_loads_the_models_that_it_learns_on_and_only_knows_of_others(
    rank: int, elsewhere: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[object] = []
    monkeypatch.setattr(
        "marft.trainer.ranks.rank_worker.PolicyRegistry", lambda _, **how: found.append(how["remote_models"])
    )
    run = recipe(tmp_path, "grpo", *PLACED)
    _load_worker(StartRank(pickle.dumps(run), "", rank, 40))
    assert found == [elsewhere]


def test_all_ranks_compute_as_the_first_has_found_that_its_models_can(tmp_path: Path) -> None:
    def taken(member: test_ranks.Member) -> Any:
        took: list[object] = []
        models = SimpleNamespace(
            forward_modes=lambda: f"of {member.rank}",
            set_forward_modes=took.append,
            shard=lambda of: took.append("in parts"),
        )
        shard_models(
            cast(Any, models), cast(Any, SimpleNamespace(rank=member.rank, gather=member.gather, mesh_of=None))
        )
        return took

    assert test_ranks.together(3, taken) == [["in parts"], ["of 0", "in parts"], ["of 0", "in parts"]]


@pytest.mark.parametrize("goes_on", [True, False])
@pytest.mark.parametrize("rank", [0, 1])
def test_every_rank_loads_what_a_run_goes_on_with_or_its_weights_and_critic_alone(
    rank: int, goes_on: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    did: list[str] = []
    for name in ("read_record", "load_checkpoint", "load_policies", "load_critic"):
        monkeypatch.setattr(f"marft.trainer.ranks.rank_worker.{name}", lambda *_, name=name: did.append(name))
    member = Idle(SimpleNamespace(rank=rank), torch.ones(1), torch.ones(1))
    member.load(tmp_path, goes_on)
    assert did == (["read_record", "load_checkpoint"] if goes_on else ["load_policies", "load_critic"])


@pytest.mark.parametrize(("threads", "device", "has"), [(0, "cpu", 2), (5, "cpu", 8), (0, "cuda", 8)])
def test_ranks_on_one_processor_share_its_cores_while_they_learn_unless_the_recipe_says_how_many(
    threads: int, device: str, has: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads_now = [8]
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads_now[-1])
    monkeypatch.setattr(torch, "set_num_threads", threads_now.append)
    run, group = SimpleNamespace(threads=threads), SimpleNamespace(count=3, device=torch.device(device))
    with split_cpu_threads(cast(Any, run), cast(Any, group)):
        assert threads_now[-1] == has
    assert threads_now[-1] == 8


def test_a_step_that_does_not_stay_finite_on_one_rank_is_undone_on_all() -> None:
    def undone(member: test_ranks.Member) -> Any:
        mine = optimizer()

        def learn(*_: object) -> dict[str, float]:
            with torch.no_grad():
                next(iter(mine.parameters.values())).fill_(float("nan") if member.rank == 1 else 7.0)
            return {}

        learner = SimpleNamespace(optimizers={"actor": mine}, critic=None, learn=learn)
        before = values(mine)
        metrics = NonFiniteGuard(cast(Any, learner), member).learn([], Progress(0, 0))
        return metrics, values(mine) == before

    assert test_ranks.together(2, undone) == [({"reverted_steps": 1.0}, True)] * 2
