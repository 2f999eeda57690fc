"""An HTTP server on a thread of its own, which ends at once, or when what it has begun is answered."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import Any, Literal

import h11
from starlette.types import ASGIApp
from uvicorn import Config, Server
from uvicorn.protocols.http.h11_impl import H11Protocol

from marft.agents.loop_threads import LoopThread

BACKLOG = 2048
HEADER_SECONDS = 30.0  # for the head of a request to come
CLOSE_SECONDS = 5.0


class Listener:
    """Listens. Close it.

    Args:
        host: where it listens; port 0 is any that is free.
        what: listens, for the message where it cannot.
        grace: seconds for what was begun to be answered once it ends.
        lifespan: whether the app is told that it begins and ends.

    Raises:
        ValueError: it cannot listen there.
    """

    def __init__(
        self, app: ASGIApp, host: str, port: int, what: str, grace: int | None = None, lifespan: bool = False
    ) -> None:
        self._socket = _listening(host, port, what)
        name, self.port = self._socket.getsockname()[:2]
        self.address = f"http://{f'[{name}]' if ':' in name else name}:{self.port}"
        self._thread = LoopThread()
        events: Literal["on", "off"] = "on" if lifespan else "off"
        config = Config(
            app, http=_Patient, ws="none", lifespan=events, interface="asgi3", log_config=None, log_level="critical",
            access_log=False, proxy_headers=False, server_header=False, timeout_graceful_shutdown=grace,
        )  # fmt: skip
        self._server = Server(config)
        self._serving = asyncio.run_coroutine_threadsafe(self._server.serve([self._socket]), self._thread.loop)

    async def ended(self) -> None:
        """Until it has ended by itself."""
        await asyncio.wait([asyncio.wrap_future(self._serving)])

    async def finish(self) -> None:
        """Take nothing new, and wait until what was begun is answered, or the grace is over."""
        self._server.should_exit = True
        await asyncio.wrap_future(self._serving)

    def cut(self) -> None:
        """End without any more grace."""
        self._server.force_exit = self._server.should_exit = True

    def close(self) -> None:
        """End: connections are cut."""
        self.cut()
        with suppress(TimeoutError):
            self._serving.result(CLOSE_SECONDS)
        self._socket.close()
        self._thread.stop()


def refuse_taken(host: str, port: int, what: str) -> None:
    """See that ``what`` could listen somewhere, before it does anything that takes long.

    Raises:
        ValueError: it could not.
    """
    _listening(host, port, what).close()


def _listening(host: str, port: int, what: str) -> socket.socket:
    """A socket that says which protocol it is of: else asyncio leaves it to the kernel to hold small answers back."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        raise ValueError(f"{what} cannot listen on {host} port {port}: {error.strerror}") from error
    return listening


class _Patient(H11Protocol):
    """HTTP over a connection whose client has so long to send the head of a request, or the rest of one that is
    answered already, and no longer."""

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
        if self.conn.their_state is not h11.IDLE and self.conn.our_state is not h11.DONE:
            self._stop_waiting()
        elif self._late is None:
            self._late = self.loop.call_later(HEADER_SECONDS, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._late:
            self._late.cancel()
            self._late = None
