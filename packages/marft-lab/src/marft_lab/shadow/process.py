"""Shadow process beside ``marft serve``, with low priority for CPU time and memory."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

REFUSED = 2  # exit status of a permanent failure; a restart would not help
OOM_SCORE = "1000"  # OOM score adjustment: the kernel kills this process first


def main(descriptor: int) -> None:
    """Play the sessions recorded by a server.

    Args:
        descriptor: file descriptor of a socket. The process receives its task as a JSON line, sends its process ID, and
            then sends one byte per finished session.
    """
    os.set_inheritable(descriptor, False)
    server = socket.socket(fileno=descriptor)
    with server.makefile("r", encoding="utf-8") as lines:
        request: dict[str, Any] = json.loads(lines.readline())
    server.sendall(f"{os.getpid()}\n".encode())
    lower_priority(request.pop("priority"))
    signal.signal(signal.SIGTERM, _exit_on_signal)
    try:
        _run_shadow(request, server)
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        raise SystemExit(REFUSED) from None


def _exit_on_signal(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
    """Exit on SIGTERM; the interrupted session may repeat after a restart.

    Raises:
        SystemExit: always.
    """
    raise SystemExit(128 + number)


def lower_priority(priority: str) -> None:
    """Lower the process's priority for CPU time, and raise its OOM score.

    Args:
        priority: ``idle``, ``low`` or ``normal``.
    """
    if priority == "idle":
        with suppress(OSError, AttributeError):  # not available on every platform
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    if priority != "normal":
        os.nice(19)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(OOM_SCORE, encoding="ascii")


def _run_shadow(fields: Mapping[str, object], server: socket.socket) -> None:
    from pydantic import TypeAdapter
    from transformers.utils import logging

    from marft_lab.shadow.setup import ShadowRequest, run_shadow

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    request = TypeAdapter(ShadowRequest).validate_python(fields)
    state = run_shadow(request, on_session=lambda *_: server.sendall(b"."))
    verdict = state.verdict
    sys.stderr.write(f"{verdict.word} after {verdict.sessions} sessions; see {request.output}\n")
