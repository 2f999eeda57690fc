"""``marft serve``: load the models, run the server, and shut down."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any
from urllib.parse import urlsplit

from marft.agents.loop_threads import LoopThread
from marft_serve.gateway.listener import Listener, check_port_available
from marft_serve.serving.app import App, Limits
from marft_serve.serving.loader import load_team
from marft_serve.serving.options import ListenOptions, ProtocolOptions
from marft_serve.serving.recorder import Recorder
from marft_serve.serving.settings import ServedTeam
from marft_serve.serving.sidecars import NoSidecar, Sidecar
from marft_serve.serving.team_handler import TeamHandler
from marft_serve.serving.tool_definitions import write_tools

SERVER_LABEL = "marft serve"


def run_server(
    served_team: ServedTeam,
    listen_options: ListenOptions,
    limits: Limits,
    *,
    protocol_options: ProtocolOptions,
    grace: int = 30,
    record: Path | None = None,
    ready: Callable[[str, tuple[str, ...]], None] = lambda *_: None,
    begin: Callable[[], Sidecar] = NoSidecar,
) -> None:
    """Serve a team until SIGTERM or SIGINT, then finish pending requests for up to ``grace`` seconds.

    Args:
        served_team: the team.
        listen_options: listening address and access rules.
        limits: limits for requests.
        protocol_options: additional protocols.
        grace: seconds for pending requests after a signal.
        record: folder for recorded sessions; None to record nothing.
        ready: callback with the URL and the models once the server accepts requests.
        begin: function that starts a sidecar, called once the team is loaded.

    Raises:
        ValueError: the team cannot be loaded, or the server cannot listen on this host and port.
    """
    listen_options.check()
    protocol_options.check()
    if protocol_options.mcp != "stdio":
        check_port_available(listen_options.host, listen_options.port, SERVER_LABEL)
    with ExitStack() as stack, load_team(served_team) as rollouts:
        apps: list[App] = []
        recorder = None
        if record is not None:
            recorder = Recorder(record, lambda count: apps[0].metrics.unrecorded.inc(count))
            stack.callback(recorder.close)
            write_tools(record, served_team.run.tools, rollouts.game.tools)
        handler = TeamHandler(rollouts.game, served_team.run.name, recorder.add_episode if recorder else lambda _: None)
        signal_handler, sidecar = _SignalHandler(), begin()
        stack.callback(sidecar.close)
        with signal_handler.installed():
            open_listener = partial(
                _open_listener,
                served_team=served_team,
                listen_options=listen_options,
                grace=grace,
                protocol_options=protocol_options,
            )
            app = partial(
                App,
                handler,
                token=listen_options.token,
                limits=limits,
                on_load_change=sidecar.busy,
                host=listen_options.host,
            )
            names = [urlsplit(protocol_options.address).hostname or ""] if protocol_options.address else []
            rollouts.wait_for(
                _run_until_signal(handler, partial(app, names=names), ready, apps, signal_handler, open_listener)
            )


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
    handler: TeamHandler,
    build_app: Callable[..., App],
    ready: Callable[[str, tuple[str, ...]], None],
    apps: list[App],
    signal_handler: _SignalHandler,
    open_listener: Callable[[App], Listener | StdioServer],
) -> None:
    loop, stopping = asyncio.get_running_loop(), asyncio.Event()
    app = build_app(loop=loop)
    apps.append(app)
    listener = open_listener(app)

    def on_signal(signal_count: int) -> None:
        """Start the shutdown; abort it at the second signal."""
        if signal_count > 1:
            listener.force_stop()
        loop.call_soon_threadsafe(stopping.set)

    try:
        signal_handler.on_signal = on_signal
        if signal_handler.signal_count:  # a signal arrived while the models were loaded
            stopping.set()
        ready(listener.address, handler.models)
        tasks = [asyncio.ensure_future(waiter) for waiter in (listener.wait_until_stopped(), stopping.wait())]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for waiter in tasks:
            waiter.cancel()
        await listener.finish()
    finally:
        listener.close()


def _open_listener(
    app: App, served_team: ServedTeam, listen_options: ListenOptions, grace: int, protocol_options: ProtocolOptions
) -> Listener | StdioServer:
    if protocol_options.a2a:
        from marft_serve.serving.a2a import build_agent_routes  # needs an extra

        app.asgi.routes.extend(build_agent_routes(app, served_team, protocol_options.address))
    if not protocol_options.mcp:
        return Listener(app.asgi, listen_options.host, listen_options.port, SERVER_LABEL, grace)
    from marft_serve.serving.mcp import build_team_server, combine_apps  # needs an extra

    if protocol_options.mcp == "stdio":
        return StdioServer(build_team_server(app))
    return Listener(
        combine_apps(app, build_team_server(app)),
        listen_options.host,
        listen_options.port,
        SERVER_LABEL,
        grace,
        lifespan=True,
    )


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
