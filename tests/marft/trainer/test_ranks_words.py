"""What ranks say to each other arrives, and what one failed of is told from what it heard of another's end."""

from __future__ import annotations

import socket

import pytest
import torch

from marft.common.errors import RunError
from marft.common.processes.connection import BlockingConnection
from marft.common.processes.messages import LENGTHS, Completed
from marft.trainer.ranks.messages import LoadState, is_peer_error, serialize_failure

CLOSED = "[gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:3489"


def test_messages_arrive_in_order_and_tensors_by_value() -> None:
    ours, theirs = (BlockingConnection(end, [LoadState, Completed]) for end in socket.socketpair())
    weights = torch.arange(3.0)
    ours.send(LoadState({"actor": {"a": weights}}, {}, {}, {"credit/mean": 0.5}))
    ours.send(Completed(7))
    weights.zero_()
    adopt = theirs.receive()
    assert adopt.policies["actor"]["a"].tolist() == [0.0, 1.0, 2.0]
    assert adopt.component_state == {"credit/mean": 0.5}
    assert theirs.receive(1.0) == Completed(7)


def test_who_is_waited_for_in_vain_is_late_and_who_has_gone_is_gone() -> None:
    ours, theirs = (BlockingConnection(end, [LoadState, Completed]) for end in socket.socketpair())
    with pytest.raises(TimeoutError):
        ours.receive(0.01)
    theirs.send(Completed(1))
    theirs.close()
    assert ours.receive(1.0) == Completed(1), "what was said before is heard"
    with pytest.raises(EOFError):
        ours.receive(1.0)
    with pytest.raises(OSError, match="Broken pipe"):
        ours.send(Completed(2))


def test_who_takes_nothing_is_not_waited_for_longer_than_the_patience_lasts() -> None:
    """A rank that is stopped reads nothing, and a step's episodes are more than a connection holds."""
    (ours, theirs), large = socket.socketpair(), LoadState({}, {}, {"w": torch.zeros(2**20)}, {})
    line = BlockingConnection(ours, [], timeout_seconds=0.05)
    with pytest.raises(BlockingIOError):
        line.send(large)
    assert is_peer_error(BlockingIOError())
    theirs.close()


def test_who_goes_in_the_middle_of_a_message_is_gone() -> None:
    ours, theirs = socket.socketpair()
    theirs.sendall(LENGTHS.pack(9, 5) + b"half")
    theirs.close()
    with pytest.raises(EOFError):
        BlockingConnection(ours, []).receive(1.0)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (RuntimeError(CLOSED), "gone"),
        (RuntimeError("NCCL communicator was aborted"), "gone"),
        (ConnectionResetError("reset"), "gone"),
        (RuntimeError("CUDA out of memory"), "fault"),
        (RunError("the Connection of a user"), "run"),
        (KeyError("Connection"), "fault"),
    ],
)
def test_an_error_of_ones_own_is_told_from_anothers_end(error: Exception, kind: str) -> None:
    assert serialize_failure(error).kind == kind
    assert is_peer_error(error) == (kind == "gone")
