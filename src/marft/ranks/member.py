"""What each rank does, the first one and those that follow it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from marft.config.run import RunSettings
from marft.errors import RunError
from marft.learning.interfaces import Progress
from marft.learning.learner import Learner
from marft.learning.ledger import Told
from marft.learning.undoing import Careful
from marft.models.parts import in_parts
from marft.models.pool import Models
from marft.ranks.group import Group
from marft.ranks.words import Adopt, Learn
from marft.runs.checkpoints import load_critic, load_policies, put_in_place, read_record


def nobody(_: str) -> None:
    """Whoever is told nothing."""


class Member:
    """A rank: its models, its learner, and the group that it learns in.

    Between steps the first rank holds everything gathered, to sample from and to save; the others hold parts, where
    weights are kept in parts. All of it but :meth:`adopted` is done by all ranks together.
    """

    def __init__(self, run: RunSettings, models: Models, group: Group) -> None:
        self.run, self.models, self.group = run, models, group
        if run.training.shard:
            models.shard(group.mesh())
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
        """Take weights from a checkpoint; where a run goes on from it, all that it goes on with."""
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
        for name, rate in message.rates.items():
            self.learner.optimizers[name].learning_rate = rate
        with sharing_cores(self.run, self.group):
            metrics = self.careful.learn(message.episodes, message.progress, told)
        self._refuse_drift(message.progress)
        self.gather()
        return metrics

    def gather(self) -> None:
        """Bring everything together on the first rank, where ranks hold parts."""
        self.models.gather(keep=self.group.rank == 0)

    def state(self) -> Adopt:
        """Everything that moves, as it is; nothing of it lies in parts."""
        learner = self.learner
        policies = {name: _host(it.parameters) for name, it in learner.optimizers.items()}
        critic = _host(learner.critic.state_dict()) if learner.critic else {}
        return Adopt(policies, critic, _host(learner.optimizer_state()), learner.state_dict())

    def adopt(self, state: Adopt) -> None:
        """Undo :meth:`state`."""
        with torch.no_grad():
            for policy, tensors in state.policies.items():
                for name, parameter in self.learner.optimizers[policy].parameters.items():
                    parameter.copy_(tensors[name])
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
        found = self.group.gather(self._digest())
        if any(digest != found[0] for digest in found):
            raise RunError(
                f"step {progress.step + 1}: ranks have come to different weights, which must be the same to the bit: "
                "their devices are not alike. Go on with  --resume --training.ranks 1"
            )

    def _digest(self) -> list[int]:
        """A number for each tensor that is held whole by all: the sum of its bits."""
        critic = self.learner.critic.parameters() if self.learner.critic else {}
        tensors = [*critic.values(), *(p for it in self.learner.optimizers.values() for p in it.parameters.values())]
        sums = [p.detach().view(torch.int32).sum(dtype=torch.int64) for p in tensors if not in_parts(p)]
        return [int(number) for number in torch.stack(sums).tolist()] if sums else []


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
    return {name: tensor.detach().cpu() for name, tensor in tensors.items()}
