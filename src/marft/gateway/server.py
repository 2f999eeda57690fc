"""The gateway's server: one a process, on a thread of its own, as long as the episodes that use it are played."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from contextlib import suppress
from typing import Any

import h11
from uvicorn import Config, Server
from uvicorn.protocols.http.h11_impl import H11Protocol

from marft.game.loop_threads import LoopThread
from marft.gateway.app import App, Bounds
from marft.gateway.refusals import closed, unknown
from marft.gateway.session import Session

BACKLOG = 2048
CLOSED = 10_000  # secrets of episodes that are over, which are told so
HEADER_SECONDS = 30.0  # for the head of a request to come
CLOSE_SECONDS = 5.0


class Gateway:
    """Listens, and leads clients to their sessions. Close it.

    Args:
        host: where it listens; port 0 is any that is free.

    Raises:
        ValueError: it cannot listen there.
    """

    def __init__(self, host: str, port: int, bounds: Bounds) -> None:
        self._socket = _listening(host, port)
        name, self.port = self._socket.getsockname()[:2]
        self.address = f"http://{f'[{name}]' if ':' in name else name}:{self.port}"
        self.overdue = 0
        self._sessions: dict[str, Session] = {}
        self._closed: deque[str] = deque(maxlen=CLOSED)
        self._thread = LoopThread()
        config = Config(
            App(self._session, bounds).asgi, http=_Patient, ws="none", lifespan="off", interface="asgi3",
            log_config=None, log_level="critical", access_log=False, proxy_headers=False, server_header=False,
        )  # fmt: skip
        self._server = Server(config)
        self._serving = asyncio.run_coroutine_threadsafe(self._server.serve([self._socket]), self._thread.loop)

    def open(self, session: Session) -> str:
        """Lead clients to a session → its address."""
        self._sessions[session.secret] = session
        return f"{self.address}/e/{session.secret}"

    def leave(self, session: Session) -> None:
        """The session's step is over: nothing is reached by its secret any more."""
        if self._sessions.pop(session.secret, None):
            self._closed.append(session.secret)

    def forget(self, session: Session) -> None:
        """The session's episode is over."""
        self.leave(session)
        self.overdue += session.overdue

    def counts(self) -> dict[str, float]:
        """What was lost, by the name of a metric."""
        return {"gateway/overdue": float(self.overdue)}

    def close(self) -> None:
        """End: connections are cut."""
        self._server.force_exit = self._server.should_exit = True
        with suppress(TimeoutError):
            self._serving.result(CLOSE_SECONDS)
        self._socket.close()
        self._thread.stop()

    def _session(self, secret: str) -> Session:
        session = self._sessions.get(secret)
        if session is None:
            raise closed() if secret in self._closed else unknown()
        return session


def _listening(host: str, port: int) -> socket.socket:
    """A socket that says which protocol it is of: else asyncio leaves it to the kernel to hold small answers back."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        raise ValueError(f"team: the gateway cannot listen on {host} port {port}: {error.strerror}") from error
    return listening


class _Patient(H11Protocol):
    """HTTP over a connection whose client has so long to send the head of a request, and no longer."""

    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop_waiting()

    def _await_head(self) -> None:
        if self.conn.their_state is not h11.IDLE:
            self._stop_waiting()
        elif self._late is None:
            self._late = self.loop.call_later(HEADER_SECONDS, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._late:
            self._late.cancel()
            self._late = None
