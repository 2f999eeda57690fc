"""HTTP server on a separate thread; stops immediately, or after the pending requests."""

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
from marft.common.errors import UserError

BACKLOG = 2048
HEADER_SECONDS = 30.0  # timeout for the head of a request
CLOSE_SECONDS = 5.0


class Listener:
    """HTTP server on a separate thread. Call :meth:`close` at the end.

    Args:
        app: the ASGI application.
        host: host to listen on.
        port: port to listen on; 0 selects a free port.
        label: name of the server in error messages.
        grace: seconds that pending requests may take after the server stops; None for no limit.
        lifespan: True to send lifespan events to the app.

    Raises:
        UserError: the server cannot listen on this host and port.
    """

    def __init__(
        self, app: ASGIApp, host: str, port: int, label: str, grace: int | None = None, lifespan: bool = False
    ) -> None:
        self._socket = _open_socket(host, port, label)
        name, self.port = self._socket.getsockname()[:2]
        self.address = f"http://{f'[{name}]' if ':' in name else name}:{self.port}"
        self._thread = LoopThread()
        events: Literal["on", "off"] = "on" if lifespan else "off"
        config = Config(
            app,
            http=_TimeoutProtocol,
            ws="none",
            lifespan=events,
            interface="asgi3",
            log_config=None,
            log_level="critical",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=grace,
        )
        self._server = Server(config)
        self._server_future = asyncio.run_coroutine_threadsafe(self._server.serve([self._socket]), self._thread.loop)

    async def wait_until_stopped(self) -> None:
        """Wait until the server stops by itself."""
        await asyncio.wait([asyncio.wrap_future(self._server_future)])

    async def finish(self) -> None:
        """Stop accepting requests; wait until pending requests finish or the grace period ends."""
        self._server.should_exit = True
        await asyncio.wrap_future(self._server_future)

    def force_stop(self) -> None:
        """Stop without a grace period."""
        self._server.force_exit = self._server.should_exit = True

    def close(self) -> None:
        """Stop the server and cut open connections."""
        self.force_stop()
        with suppress(TimeoutError):
            self._server_future.result(CLOSE_SECONDS)
        self._socket.close()
        self._thread.stop()


def check_port_available(host: str, port: int, label: str) -> None:
    """Check early that the server can listen on a host and port.

    Raises:
        UserError: it cannot.
    """
    _open_socket(host, port, label).close()


def _open_socket(host: str, port: int, label: str) -> socket.socket:
    """Open a listening socket with an explicit TCP protocol; without it, asyncio does not set TCP_NODELAY."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener_socket = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener_socket.bind((host, port))
        listener_socket.listen(BACKLOG)
    except OSError as error:
        listener_socket.close()
        raise UserError(f"{label} cannot listen on {host} port {port}: {error.strerror}") from error
    return listener_socket


class _TimeoutProtocol(H11Protocol):
    """HTTP connection with a timeout for the head of the next request, or the rest of an answered request."""

    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._start_head_timer()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._start_head_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._cancel_head_timer()

    def _start_head_timer(self) -> None:
        if self.conn.their_state is not h11.IDLE and self.conn.our_state is not h11.DONE:
            self._cancel_head_timer()
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(HEADER_SECONDS, self.transport.close)

    def _cancel_head_timer(self) -> None:
        if self._head_timer:
            self._head_timer.cancel()
            self._head_timer = None
