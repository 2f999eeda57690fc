"""Process of another rank: it executes the first rank's messages until the connection closes."""

from __future__ import annotations

import os
import pickle
import socket
from collections.abc import Sequence
from pathlib import Path

from marft.common.processes.python_here import python_here
from marft.config.run import RunSettings
from marft.models.pool import Models
from marft.trainer.ranks.devices import device_of
from marft.trainer.ranks.member import Member, group_of, placed
from marft.trainer.ranks.words import Adopt, Begin, Done, Failed, Learn, Line, Load, Tell


def rank_command(descriptor: int) -> Sequence[str]:
    """Return the command for a rank, with this process's Python and module search path.

    Args:
        descriptor: file descriptor of the rank's end of the connection.
    """
    return python_here("marft.trainer.ranks.program", descriptor)


def main(descriptor: int) -> None:
    """Follow the first rank over a socket until the connection closes.

    Args:
        descriptor: file descriptor of the socket; child processes do not inherit it.
    """
    os.set_inheritable(descriptor, False)
    line = Line(socket.socket(fileno=descriptor))
    try:
        _follow(line)
    except EOFError:  # the run has ended, or has stopped this rank
        return
    except Exception as error:  # noqa: BLE001  every error is reported to the run
        line.send(Failed.of(error))


def _follow(line: Line) -> None:
    begin = line.receive()
    run, models = _loaded(begin)
    line.send(Done(os.getpid()))
    member = Member(run, models, group_of(run, begin.meeting, begin.rank, models.device))
    line.send(Done(os.getpid()))
    while True:
        _heed(member, line.receive())
        line.send(Done(os.getpid()))


def _loaded(begin: Begin) -> tuple[RunSettings, Models]:
    from transformers.utils import logging

    logging.set_verbosity(begin.verbosity)
    logging.disable_progress_bar()
    run: RunSettings = pickle.loads(begin.run)
    run = run.model_copy(update={"device": device_of(run, begin.rank)})
    elsewhere = {name for name, ranks in placed(run).items() if begin.rank not in ranks}
    return run, Models(run, elsewhere=elsewhere, for_parts=run.training.shard, settled=run.training.shard)


def _heed(member: Member, message: object) -> None:
    if isinstance(message, Learn):
        member.learn(message)
    elif isinstance(message, Load):
        member.load(Path(message.path), message.goes_on)
        member.gather()
    elif isinstance(message, Adopt):
        member.adopt(message)
    else:
        assert isinstance(message, Tell)
        member.learner.optimizer_state()
