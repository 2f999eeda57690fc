"""Rank worker: operations of every rank, and the process of a rank other than the first.

The process executes the first rank's messages until the connection closes.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import torch
from torch import Tensor

from marft.common.errors import RunError, UserError
from marft.common.log import receive_logs, write_line
from marft.common.processes.child_process import python_command
from marft.common.processes.connection import BlockingConnection
from marft.common.processes.messages import Completed, Ready
from marft.common.processes.pickling import unpickle_value
from marft.common.types import Episode
from marft.config.interfaces.schedule import Progress
from marft.config.run import RunSettings
from marft.config.secrets import redacted
from marft.models.dtensors import full_tensor, is_sharded
from marft.models.policy_registry import PolicyRegistry
from marft.runs.checkpoints import load_checkpoint, load_critic, load_policies
from marft.runs.state import read_record
from marft.trainer.learner import Learner
from marft.trainer.learner_backend import PlayAgain, refuse_new_episodes
from marft.trainer.learner_metrics import CreditCallback
from marft.trainer.non_finite_guard import NonFiniteGuard
from marft.trainer.optimizers import optimizer_tensors, restore_optimizer
from marft.trainer.ranks.devices import select_device
from marft.trainer.ranks.group import RankGroup
from marft.trainer.ranks.messages import (
    TO_RANK,
    VALUES,
    GatherOptimizer,
    LoadCheckpoint,
    LoadState,
    NewEpisodes,
    StartRank,
    TrainStep,
    serialize_failure,
)


def rank_command(descriptor: int) -> Sequence[str]:
    """Return the command for a rank, with this process's Python and module search path.

    Args:
        descriptor: file descriptor of the rank's end of the connection.
    """
    return python_command("marft.trainer.ranks.rank_worker", descriptor)


def main(descriptor: int) -> None:
    """Follow the first rank over a socket until the connection closes.

    Args:
        descriptor: file descriptor of the socket; child processes do not inherit it.
    """
    os.set_inheritable(descriptor, False)
    connection = BlockingConnection(socket.socket(fileno=descriptor), TO_RANK, VALUES)
    try:
        with receive_logs(redacted(write_line), logging.WARNING):
            _serve(connection)
    except EOFError:  # the run has ended, or has stopped this rank
        return
    except Exception as error:  # noqa: BLE001  every error is reported to the run
        connection.send(serialize_failure(error))


def _serve(connection: BlockingConnection) -> None:
    start_message = connection.receive()
    run, models = _load_worker(start_message)
    connection.send(Ready(os.getpid()))
    worker = RankWorker(run, models, open_group(run, start_message.init_method, start_message.rank, models.device))
    for number in count():
        connection.send(Completed(number))
        _handle_message(worker, connection)


def _load_worker(start_message: StartRank) -> tuple[RunSettings, PolicyRegistry]:
    from transformers.utils import logging

    logging.set_verbosity(start_message.log_level)
    logging.disable_progress_bar()
    run: RunSettings = unpickle_value(start_message.run)
    run = run.model_copy(update={"device": select_device(run, start_message.rank)})
    remote_bases = {name for name, ranks in ranks_by_base_model(run).items() if start_message.rank not in ranks}
    return run, PolicyRegistry(
        run, remote_models=remote_bases, keep_on_cpu=run.training.shard, skip_forward_check=run.training.shard
    )


def _handle_message(worker: RankWorker, connection: BlockingConnection) -> None:
    def wait_for_episodes() -> Sequence[Episode]:
        played = connection.receive()
        assert isinstance(played, NewEpisodes)
        return played.episodes

    message = connection.receive()
    if isinstance(message, TrainStep):
        worker.learn(message, play_again=wait_for_episodes)
    elif isinstance(message, LoadCheckpoint):
        worker.load(Path(message.path), message.is_resume)
        worker.gather()
    elif isinstance(message, LoadState):
        worker.load_state(message)
    else:
        assert isinstance(message, GatherOptimizer)
        worker.learner.optimizer_state()


def ranks_by_base_model(run: RunSettings) -> dict[str, tuple[int, ...]]:
    """Return the ranks of each base model that only some ranks train."""
    return {name: model.ranks for name, model in run.models.items() if model.ranks}


def open_group(run: RunSettings, init_method: str, rank: int, device: torch.device) -> RankGroup:
    """Form the rank group at a rendezvous address.

    Raises:
        RuntimeError: a rank did not arrive in time.
    """
    settings = run.training
    return RankGroup(init_method, rank, settings.ranks, device, settings.rank_timeout_seconds, ranks_by_base_model(run))


class RankWorker:
    """Rank with its models, its learner, and its rank group.

    Between steps of a sharded run, the first rank holds the full weights, for sampling and saving. With a separate
    engine the full weights are in host memory. The other ranks keep their shards. All ranks must call the same methods
    together.
    """

    def __init__(self, run: RunSettings, models: PolicyRegistry, group: RankGroup) -> None:
        self.run, self.models, self.group = run, models, group
        if run.training.shard:
            shard_models(models, group)
        self.learner = Learner(run, models, group)
        self.guard = NonFiniteGuard(self.learner, group)
        self.gather()

    def set_ranks(self, group: RankGroup) -> None:
        """Replace the rank group; only for unsharded runs."""
        assert not self.run.training.shard
        self.group = self.guard.ranks = group
        self.learner.set_ranks(group)

    def load(self, path: Path, is_resume: bool) -> None:
        """Load a checkpoint: weights and critic, or the full state to resume.

        Args:
            path: folder of the checkpoint.
            is_resume: True to load the full state.

        Raises:
            UserError: the checkpoint does not exist on this machine.
        """
        if not path.is_dir():
            raise UserError(
                f"there is no checkpoint {path.absolute()} on node {socket.gethostname()}, where a rank is: have the "
                "run's folder (--output) on a file system that all nodes have, or give it training.ranks = 1"
            )
        if is_resume:
            load_checkpoint(read_record(path), self.models, self.learner)
        else:
            load_policies(path, self.models, self.learner.optimizers)
            load_critic(path, self.learner)

    def learn(
        self,
        message: TrainStep,
        on_credit: CreditCallback = lambda _: None,
        play_again: PlayAgain = refuse_new_episodes,
    ) -> dict[str, float]:
        """Run one training step → metrics.

        Args:
            message: episodes and progress.
            on_credit: callback for the credit of each action.
            play_again: function that plays the step's tasks again, or waits for the first rank to do it.

        Raises:
            RunError: weights differ between ranks, or several steps in a row were reverted.
        """
        self.models.release_weights()
        for name, optimizer in self.learner.optimizers.items():
            optimizer.learning_rate = message.rates[name]

        def publish_and_play() -> Sequence[Episode]:
            self._send_policies()
            self.gather()
            episodes = play_again()
            self.models.release_weights()
            return episodes

        with split_cpu_threads(self.run, self.group):
            metrics = self.guard.learn(message.episodes, message.progress, on_credit, publish_and_play)
        self._send_policies()
        self._check_drift(message.progress)
        self.gather()
        return metrics

    def _send_policies(self) -> None:
        """Send policies that the first rank does not train to the first rank."""
        for policy in self.run.trained_policies:
            ranks = ranks_by_base_model(self.run).get(self.models.policies[policy].base, (0,))
            if 0 in ranks:
                continue
            if self.group.rank in ranks:
                state = self._read_policy_state(policy)  # unsharded: a collective over the policy's ranks
                if self.group.rank == ranks[0]:
                    self.group.send(state, 0)
            elif self.group.rank == 0:
                parameters, moments = self.group.receive(ranks[0])
                optimizer = self.learner.optimizers[policy]
                optimizer.load_parameters(parameters)
                restore_optimizer(optimizer.optimizer, optimizer.parameters, moments)
                optimizer.offload_moments()

    def _read_policy_state(self, policy: str) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        optimizer = self.learner.optimizers[policy]
        moments = optimizer_tensors(optimizer.optimizer, optimizer.parameters)
        return _copy_to_host(optimizer.parameters), _copy_to_host(moments)

    def gather(self) -> None:
        """Collect all shards on the first rank."""
        self.models.gather_weights(keep=self.group.rank == 0, to_cpu=self.run.engine.separate_weights)

    def state(self) -> LoadState:
        """Return the full state of an unsharded run."""
        learner = self.learner
        policies = {name: _copy_to_host(optimizer.parameters) for name, optimizer in learner.optimizers.items()}
        critic = _copy_to_host(learner.critic.state_dict()) if learner.critic else {}
        return LoadState(policies, critic, _copy_to_host(learner.optimizer_state()), learner.state_dict())

    def load_state(self, state: LoadState) -> None:
        """Load the state from :meth:`state`."""
        for policy, optimizer in self.learner.optimizers.items():
            optimizer.load_parameters(state.policies[policy])
        if self.learner.critic:
            fits = self.learner.critic.load_state_dict(state.critic)
            assert fits, "of the same recipe"
        self.learner.load_optimizer_state(state.optimizers)
        self.learner.load_state_dict(state.component_state)

    def _check_drift(self, progress: Progress) -> None:
        """Check for bitwise equal weights across ranks.

        All ranks apply the same gradient sums to the same weights.

        Raises:
            RunError: weights differ between ranks.
        """
        digests = self.group.gather(self._compute_digests())
        if any(
            rank_digests.get(name, digest) != digest for name, digest in digests[0].items() for rank_digests in digests
        ):
            raise RunError(
                f"step {progress.step + 1}: ranks have come to different weights, which must be the same to the bit: "
                "their devices are not alike. Go on with  --resume --training.ranks 1"
            )

    def _compute_digests(self) -> dict[str, list[int]]:
        """Return a digest of each unsharded tensor, by policy and for the critic: the sum of its bits."""
        by_part = {name: optimizer.parameters for name, optimizer in self.learner.optimizers.items()}
        by_part |= {"critic/": self.learner.critic.parameters()} if self.learner.critic else {}
        sums = {
            name: [p.detach().view(torch.int32).sum(dtype=torch.int64) for p in tensors.values() if not is_sharded(p)]
            for name, tensors in by_part.items()
        }
        return {name: torch.stack(tensor_sums).tolist() for name, tensor_sums in sums.items() if tensor_sums}


def shard_models(models: PolicyRegistry, group: RankGroup) -> None:
    """Shard all weights over the ranks, with the first rank's choice of forward functions.

    Raises:
        UserError: a model cannot be sharded.
    """
    forwards = group.gather(models.forward_modes())[0]
    if group.rank:
        models.set_forward_modes(forwards)
    models.shard(group.mesh_of)


@contextmanager
def split_cpu_threads(run: RunSettings, group: RankGroup) -> Iterator[None]:
    """Divide the CPU threads equally between ranks inside the context, unless the recipe sets ``threads``."""
    before = torch.get_num_threads()
    if not run.threads and group.device.type == "cpu":
        torch.set_num_threads(max(1, before // group.count))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _copy_to_host(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: full_tensor(tensor.detach()).cpu() for name, tensor in tensors.items()}
