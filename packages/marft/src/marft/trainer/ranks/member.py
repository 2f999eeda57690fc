"""Rank worker: operations of every rank, the first rank included."""

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
    """Return the ranks of each base model that only some ranks train."""
    return {name: model.ranks for name, model in run.models.items() if model.ranks}


def group_of(run: RunSettings, meeting: str, rank: int, device: torch.device) -> Group:
    """Form the rank group at a rendezvous address.

    Raises:
        RuntimeError: a rank did not arrive in time.
    """
    settings = run.training
    return Group(meeting, rank, settings.ranks, device, settings.rank_patience_seconds, placed(run))


def nobody(_: str) -> None:
    """Ignore a warning; default callback."""


class Member:
    """Rank with its models, its learner, and its rank group.

    Between steps of a sharded run, the first rank holds the full weights, for sampling and saving. With a separate
    engine the full weights are in host memory. The other ranks keep their shards. All ranks must call the same methods
    together.
    """

    def __init__(self, run: RunSettings, models: Models, group: Group) -> None:
        self.run, self.models, self.group = run, models, group
        if run.training.shard:
            put_in_parts(models, group)
        self.learner = Learner(run, models, group)
        self.careful = Careful(self.learner, nobody, group)
        self.gather()

    def noting(self, note: Callable[[str], None]) -> None:
        """Set the callback for warnings, for example about reverted steps."""
        self.careful = Careful(self.learner, note, self.group)

    def join(self, group: Group) -> None:
        """Replace the rank group; only for unsharded runs."""
        assert not self.run.training.shard
        self.group = self.careful.ranks = group
        self.learner.join(group)

    def load(self, path: Path, goes_on: bool) -> None:
        """Load a checkpoint: weights and critic, or the full state to resume.

        Args:
            path: folder of the checkpoint.
            goes_on: True to load the full state.

        Raises:
            ValueError: the checkpoint does not exist on this machine.
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
        """Run one training step → metrics.

        Raises:
            RunError: weights differ between ranks, or several steps in a row were reverted.
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
        """Send policies that the first rank does not train to the first rank."""
        for policy in self.run.trained_policies:
            ranks = placed(self.run).get(self.models.policies[policy].base, (0,))
            if 0 in ranks:
                continue
            if self.group.rank in ranks:
                state = self._state_of(policy)  # unsharded: a collective over the policy's ranks
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
        """Collect all shards on the first rank."""
        self.models.gather(keep=self.group.rank == 0, on_host=self.run.engine.apart)

    def state(self) -> Adopt:
        """Return the full state of an unsharded run."""
        learner = self.learner
        policies = {name: _host(it.parameters) for name, it in learner.optimizers.items()}
        critic = _host(learner.critic.state_dict()) if learner.critic else {}
        return Adopt(policies, critic, _host(learner.optimizer_state()), learner.state_dict())

    def adopt(self, state: Adopt) -> None:
        """Load the state from :meth:`state`."""
        for policy in self.learner.optimizers:
            self._take(policy, state.policies[policy])
        if self.learner.critic:
            fits = self.learner.critic.load_state_dict(state.critic)
            assert fits, "of the same recipe"
        self.learner.load_optimizer_state(state.optimizers)
        self.learner.load_state_dict(state.parts)

    def _refuse_drift(self, progress: Progress) -> None:
        """Check for bitwise equal weights across ranks.

        All ranks apply the same gradient sums to the same weights.

        Raises:
            RunError: weights differ between ranks.
        """
        found = self.group.gather(self._digests())
        if any(of_rank.get(name, digest) != digest for name, digest in found[0].items() for of_rank in found):
            raise RunError(
                f"step {progress.step + 1}: ranks have come to different weights, which must be the same to the bit: "
                "their devices are not alike. Go on with  --resume --training.ranks 1"
            )

    def _digests(self) -> dict[str, list[int]]:
        """Return a digest of each unsharded tensor, by policy and for the critic: the sum of its bits."""
        held = {name: optimizer.parameters for name, optimizer in self.learner.optimizers.items()}
        held |= {"critic/": self.learner.critic.parameters()} if self.learner.critic else {}
        sums = {
            name: [p.detach().view(torch.int32).sum(dtype=torch.int64) for p in tensors.values() if not in_parts(p)]
            for name, tensors in held.items()
        }
        return {name: torch.stack(of_tensors).tolist() for name, of_tensors in sums.items() if of_tensors}


def put_in_parts(models: Models, group: Group) -> None:
    """Shard all weights over the ranks, with the first rank's choice of forward functions.

    Raises:
        ValueError: a model cannot be sharded.
    """
    forwards = group.gather(models.forwards())[0]
    if group.rank:
        models.take_forwards(forwards)
    models.shard(group.mesh_of)


@contextmanager
def sharing_cores(run: RunSettings, group: Group) -> Iterator[None]:
    """Divide the CPU threads equally between ranks inside the context, unless the recipe sets ``threads``."""
    before = torch.get_num_threads()
    if not run.threads and group.device.type == "cpu":
        torch.set_num_threads(max(1, before // group.count))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _host(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: whole(tensor.detach()).cpu() for name, tensor in tensors.items()}
