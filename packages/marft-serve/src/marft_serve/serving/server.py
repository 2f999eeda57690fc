"""``marft serve``: load the models, run the server, and shut down."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any

from starlette.types import ASGIApp

from marft.agents.loop_threads import LoopThread
from marft_serve.gateway.listener import Listener, check_port_available
from marft_serve.serving.app import App
from marft_serve.serving.loader import load_team
from marft_serve.serving.options import NoSidecar, ServeOptions, Sidecar
from marft_serve.serving.recorder import Recorder, write_tools
from marft_serve.serving.settings import ServedTeam
from marft_serve.serving.team_handler import TeamHandler

SERVER_LABEL = "marft serve"


def run_server(
    served_team: ServedTeam,
    options: ServeOptions,
    ready: Callable[[str, tuple[str, ...]], None] = lambda *_: None,
    begin: Callable[[], Sidecar] = NoSidecar,
) -> None:
    """Serve a team until SIGTERM or SIGINT, then finish pending requests for up to ``grace`` seconds.

    Args:
        served_team: the team.
        options: options for the server.
        ready: callback with the URL and the models once the server accepts requests.
        begin: function that starts a sidecar, called once the team is loaded.

    Raises:
        ValueError: the team cannot be loaded, or the server cannot listen on this host and port.
    """
    options.check()
    if options.mcp != "stdio":
        check_port_available(options.host, options.port, SERVER_LABEL)
    with ExitStack() as stack, load_team(served_team) as rollouts:
        recorder = None
        if options.record is not None:
            recorder = Recorder(options.record)
            stack.callback(recorder.close)
            write_tools(options.record, served_team.run.tools, rollouts.game.tools)
        handler = TeamHandler(rollouts.game, served_team.run.name, recorder.add_episode if recorder else lambda _: None)
        signal_handler, sidecar = _SignalHandler(), begin()
        stack.callback(sidecar.close)

        async def serve() -> None:
            """Run the server on the engine's event loop."""
            app = App(handler, asyncio.get_running_loop(), options, sidecar.set_active_requests)
            if recorder:
                recorder.on_dropped = app.metrics.unrecorded.inc
            await _run_until_signal(
                _open_listener(app, served_team), signal_handler, lambda url: ready(url, handler.models)
            )

        with signal_handler.installed():
            rollouts.wait_for(serve())


class _SignalHandler:
    """Handler for SIGTERM and SIGINT: graceful shutdown at the first signal, immediate at the second."""

    def __init__(self) -> None:
        self.signal_count = 0
        self.on_signal: Callable[[int], None] = lambda _: None

    def __call__(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self.signal_count += 1
        self.on_signal(self.signal_count)

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Install the handler; restore the previous handlers at the end."""
        previous = {number: signal.signal(number, self) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)


async def _run_until_signal(
    listener: Listener | StdioServer, signal_handler: _SignalHandler, ready: Callable[[str], None]
) -> None:
    loop, stopping = asyncio.get_running_loop(), asyncio.Event()

    def on_signal(signal_count: int) -> None:
        """Start the shutdown; abort it at the second signal."""
        if signal_count > 1:
            listener.force_stop()
        loop.call_soon_threadsafe(stopping.set)

    try:
        signal_handler.on_signal = on_signal
        if signal_handler.signal_count:  # a signal arrived while the models were loaded
            stopping.set()
        ready(listener.address)
        tasks = [asyncio.ensure_future(waiter) for waiter in (listener.wait_until_stopped(), stopping.wait())]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for waiter in tasks:
            waiter.cancel()
        await listener.finish()
    finally:
        listener.close()


def _open_listener(app: App, served_team: ServedTeam) -> Listener | StdioServer:
    options = app.options
    asgi: ASGIApp = app.asgi
    if options.a2a:
        from marft_serve.serving.a2a import build_agent_routes  # needs an extra

        app.asgi.routes.extend(build_agent_routes(app, served_team, options.public_url))
    if options.mcp:
        from marft_serve.serving.mcp import build_team_server, combine_apps  # needs an extra

        server = build_team_server(app)
        if options.mcp == "stdio":
            return StdioServer(server)
        asgi = combine_apps(app, server)
    return Listener(asgi, options.host, options.port, SERVER_LABEL, options.grace_seconds, lifespan=bool(options.mcp))


class StdioServer:
    """MCP server over standard input and output, on a separate thread, until its input ends."""

    address = "standard input"

    def __init__(self, server: Any) -> None:
        self._thread = LoopThread()
        self._server_future = asyncio.run_coroutine_threadsafe(server.run_stdio_async(), self._thread.loop)

    async def wait_until_stopped(self) -> None:
        """Wait for the end of the input."""
        await asyncio.wait([asyncio.wrap_future(self._server_future)])

    async def finish(self) -> None:
        """Stop the server."""
        self._server_future.cancel()

    def force_stop(self) -> None:
        """Stop the server."""
        self._server_future.cancel()

    def close(self) -> None:
        """Stop the server and its thread."""
        self._server_future.cancel()
        self._thread.stop()
