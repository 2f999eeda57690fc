"""Process of another rank: it executes the first rank's messages until the connection closes."""

from __future__ import annotations

import os
import pickle
import socket
from collections.abc import Sequence
from pathlib import Path

from marft.common.processes.python_command import python_command
from marft.config.run import RunSettings
from marft.models.policy_registry import PolicyRegistry
from marft.trainer.ranks.devices import select_device
from marft.trainer.ranks.messages import (
    GatherOptimizer,
    LoadCheckpoint,
    LoadState,
    OperationDone,
    RankConnection,
    RankFailure,
    StartRank,
    TrainStep,
)
from marft.trainer.ranks.rank_worker import RankWorker, build_placement, open_group


def rank_command(descriptor: int) -> Sequence[str]:
    """Return the command for a rank, with this process's Python and module search path.

    Args:
        descriptor: file descriptor of the rank's end of the connection.
    """
    return python_command("marft.trainer.ranks.program", descriptor)


def main(descriptor: int) -> None:
    """Follow the first rank over a socket until the connection closes.

    Args:
        descriptor: file descriptor of the socket; child processes do not inherit it.
    """
    os.set_inheritable(descriptor, False)
    connection = RankConnection(socket.socket(fileno=descriptor))
    try:
        _serve(connection)
    except EOFError:  # the run has ended, or has stopped this rank
        return
    except Exception as error:  # noqa: BLE001  every error is reported to the run
        connection.send(RankFailure.from_error(error))


def _serve(connection: RankConnection) -> None:
    begin = connection.receive()
    run, models = _load_worker(begin)
    connection.send(OperationDone(os.getpid()))
    worker = RankWorker(run, models, open_group(run, begin.init_method, begin.rank, models.device))
    connection.send(OperationDone(os.getpid()))
    while True:
        _handle_message(worker, connection.receive())
        connection.send(OperationDone(os.getpid()))


def _load_worker(begin: StartRank) -> tuple[RunSettings, PolicyRegistry]:
    from transformers.utils import logging

    logging.set_verbosity(begin.log_level)
    logging.disable_progress_bar()
    run: RunSettings = pickle.loads(begin.run)
    run = run.model_copy(update={"device": select_device(run, begin.rank)})
    remote_bases = {name for name, ranks in build_placement(run).items() if begin.rank not in ranks}
    return run, PolicyRegistry(
        run, remote_models=remote_bases, keep_on_cpu=run.training.shard, skip_forward_check=run.training.shard
    )


def _handle_message(worker: RankWorker, message: object) -> None:
    if isinstance(message, TrainStep):
        worker.learn(message)
    elif isinstance(message, LoadCheckpoint):
        worker.load(Path(message.path), message.is_resume)
        worker.gather()
    elif isinstance(message, LoadState):
        worker.load_state(message)
    else:
        assert isinstance(message, GatherOptimizer)
        worker.learner.optimizer_state()
