"""What each rank does, the first one and those that follow it."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from marft.common.errors import RunError
from marft.config.run import RunSettings
from marft.models.parts import in_parts, whole
from marft.models.pool import Models
from marft.runs.checkpoints import load_critic, load_policies, put_in_place, read_record
from marft.trainer.interfaces import Progress
from marft.trainer.learner import Learner
from marft.trainer.ledger import Told
from marft.trainer.optimizers import optimizer_tensors, restore_optimizer
from marft.trainer.ranks.group import Group
from marft.trainer.ranks.words import Adopt, Learn
from marft.trainer.undoing import Careful


def placed(run: RunSettings) -> dict[str, tuple[int, ...]]:
    """The ranks that learn on a base model, of models that not all ranks learn on."""
    return {name: model.ranks for name, model in run.models.items() if model.ranks}


def group_of(run: RunSettings, meeting: str, rank: int, device: torch.device) -> Group:
    """All ranks of a run, met at a place.

    Raises:
        RuntimeError: one did not come.
    """
    settings = run.training
    return Group(meeting, rank, settings.ranks, device, settings.rank_patience_seconds, placed(run))


def nobody(_: str) -> None:
    """Whoever is told nothing."""


class Member:
    """A rank: its models, its learner, and the group that it learns in.

    Between steps the first rank holds everything gathered, to sample from and to save, or in the host's memory where an
    engine apart samples; the others hold parts, where weights are kept in parts. What it does all ranks do together.
    """

    def __init__(self, run: RunSettings, models: Models, group: Group) -> None:
        self.run, self.models, self.group = run, models, group
        if run.training.shard:
            put_in_parts(models, group)
        self.learner = Learner(run, models, group)
        self.careful = Careful(self.learner, nobody, group)
        self.gather()

    def noting(self, note: Callable[[str], None]) -> None:
        """Have somebody told of steps that are undone, from here on."""
        self.careful = Careful(self.learner, note, self.group)

    def join(self, group: Group) -> None:
        """Learn in another group from here on; nothing is held in parts."""
        assert not self.run.training.shard
        self.group = self.careful.ranks = group
        self.learner.join(group)

    def load(self, path: Path, goes_on: bool) -> None:
        """Take weights from a checkpoint; where a run goes on from it, all that it goes on with.

        Raises:
            ValueError: it is not on this machine.
        """
        if not path.is_dir():
            raise ValueError(
                f"there is no checkpoint {path.absolute()} on node {socket.gethostname()}, where a rank is: have the "
                "run's folder (--output) on a file system that all nodes have, or give it training.ranks = 1"
            )
        if goes_on:
            put_in_place(read_record(path), self.models, self.learner)
        else:
            load_policies(path, self.models, self.learner.optimizers)
            load_critic(path, self.learner)

    def learn(self, message: Learn, told: Told = lambda _: None) -> dict[str, float]:
        """One training step → its metrics.

        Raises:
            RunError: ranks have drifted apart, or steps had to be undone again and again.
        """
        self.models.let_go()
        for name, optimizer in self.learner.optimizers.items():
            optimizer.learning_rate = message.rates[name]
        with sharing_cores(self.run, self.group):
            metrics = self.careful.learn(message.episodes, message.progress, told)
        self._hand_over()
        self._refuse_drift(message.progress)
        self.gather()
        return metrics

    def _hand_over(self) -> None:
        """Give the first rank what others have learned on models that it does not learn on."""
        for policy in self.run.trained_policies:
            ranks = placed(self.run).get(self.models.policies[policy].base, (0,))
            if 0 in ranks:
                continue
            if self.group.rank in ranks:
                state = self._state_of(policy)  # whole: all that hold parts make it together
                if self.group.rank == ranks[0]:
                    self.group.send(state, 0)
            elif self.group.rank == 0:
                parameters, moments = self.group.receive(ranks[0])
                self._take(policy, parameters)
                optimizer = self.learner.optimizers[policy]
                restore_optimizer(optimizer.optimizer, optimizer.parameters, moments)
                optimizer.put_away()

    def _state_of(self, policy: str) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        optimizer = self.learner.optimizers[policy]
        moments = optimizer_tensors(optimizer.optimizer, optimizer.parameters)
        return _host(optimizer.parameters), _host(moments)

    @torch.no_grad()
    def _take(self, policy: str, parameters: Mapping[str, Tensor]) -> None:
        for name, parameter in self.learner.optimizers[policy].parameters.items():
            parameter.copy_(parameters[name])
        self.learner.optimizers[policy].settle()

    def gather(self) -> None:
        """Bring everything together on the first rank, where ranks hold parts."""
        self.models.gather(keep=self.group.rank == 0, on_host=self.run.engine.apart)

    def state(self) -> Adopt:
        """Everything that moves, as it is; nothing of it lies in parts."""
        learner = self.learner
        policies = {name: _host(it.parameters) for name, it in learner.optimizers.items()}
        critic = _host(learner.critic.state_dict()) if learner.critic else {}
        return Adopt(policies, critic, _host(learner.optimizer_state()), learner.state_dict())

    def adopt(self, state: Adopt) -> None:
        """Undo :meth:`state`."""
        for policy in self.learner.optimizers:
            self._take(policy, state.policies[policy])
        if self.learner.critic:
            fits = self.learner.critic.load_state_dict(state.critic)
            assert fits, "of the same recipe"
        self.learner.load_optimizer_state(state.optimizers)
        self.learner.load_state_dict(state.parts)

    def _refuse_drift(self, progress: Progress) -> None:
        """All ranks step the same weights on the same sums, so that they stay the same to the bit.

        Raises:
            RunError: they are not.
        """
        found = self.group.gather(self._digests())
        if any(of_rank.get(name, digest) != digest for name, digest in found[0].items() for of_rank in found):
            raise RunError(
                f"step {progress.step + 1}: ranks have come to different weights, which must be the same to the bit: "
                "their devices are not alike. Go on with  --resume --training.ranks 1"
            )

    def _digests(self) -> dict[str, list[int]]:
        """Of each policy that is held here, and the critic: a number for each tensor that is whole, the sum of its
        bits."""
        held = {name: optimizer.parameters for name, optimizer in self.learner.optimizers.items()}
        held |= {"critic/": self.learner.critic.parameters()} if self.learner.critic else {}
        sums = {
            name: [p.detach().view(torch.int32).sum(dtype=torch.int64) for p in tensors.values() if not in_parts(p)]
            for name, tensors in held.items()
        }
        return {name: torch.stack(of_tensors).tolist() for name, of_tensors in sums.items() if of_tensors}


def put_in_parts(models: Models, group: Group) -> None:
    """Have the ranks hold a part of all weights each. Forwards are those that the first has found.

    Raises:
        ValueError: a model cannot lie in parts.
    """
    forwards = group.gather(models.forwards())[0]
    if group.rank:
        models.take_forwards(forwards)
    models.shard(group.mesh_of)


@contextmanager
def sharing_cores(run: RunSettings, group: Group) -> Iterator[None]:
    """Ranks that compute on one processor have an equal share of its cores each, where the recipe does not say."""
    before = torch.get_num_threads()
    if not run.threads and group.device.type == "cpu":
        torch.set_num_threads(max(1, before // group.count))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _host(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: whole(tensor.detach()).cpu() for name, tensor in tensors.items()}
