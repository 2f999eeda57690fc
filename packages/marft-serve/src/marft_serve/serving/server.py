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
from marft_serve.gateway.listening import Listener, refuse_taken
from marft_serve.serving.app import App, Limits
from marft_serve.serving.asking import Asking
from marft_serve.serving.loading import loaded
from marft_serve.serving.observers import Beside, Nothing
from marft_serve.serving.offered import write_tools
from marft_serve.serving.offering import Also, Place
from marft_serve.serving.recording import Recorder
from marft_serve.serving.settings import Served

WHAT = "marft serve"


def serve(
    served: Served, place: Place, limits: Limits, *, also: Also, grace: int = 30,
    record: Path | None = None, ready: Callable[[str, tuple[str, ...]], None] = lambda *_: None,
    begin: Callable[[], Beside] = Nothing,
) -> None:  # fmt: skip
    """Serve a team until SIGTERM or SIGINT, then finish pending requests for up to ``grace`` seconds.

    Args:
        served: the team.
        place: listening address and access rules.
        limits: limits for requests.
        also: additional protocols.
        grace: seconds for pending requests after a signal.
        record: folder for recorded sessions; None to record nothing.
        ready: callback with the URL and the models once the server accepts requests.
        begin: function that starts a sidecar, called once the team is loaded.

    Raises:
        ValueError: the team cannot be loaded, or the server cannot listen on this host and port.
    """
    place.check()
    also.check()
    if also.mcp != "stdio":
        refuse_taken(place.host, place.port, WHAT)
    with ExitStack() as closing, loaded(served) as rollouts:
        apps: list[App] = []
        recorder = None
        if record is not None:
            recorder = Recorder(record, lambda count: apps[0].measured.unrecorded.inc(count))
            closing.callback(recorder.close)
            write_tools(record, served.run.tools, rollouts.game.tools)
        asking = Asking(rollouts.game, served.run.name, recorder.add if recorder else lambda _: None)
        told, beside = _Told(), begin()
        closing.callback(beside.close)
        with told.heeded():
            opened = partial(_opened, served=served, place=place, grace=grace, also=also)
            app = partial(App, asking, token=place.token, limits=limits, busy=beside.busy, host=place.host)
            names = [urlsplit(also.address).hostname or ""] if also.address else []
            rollouts.wait_for(_until_told(asking, partial(app, names=names), ready, apps, told, opened))


class _Told:
    """Handler for SIGTERM and SIGINT: graceful shutdown at the first signal, immediate at the second."""

    def __init__(self) -> None:
        self.times = 0
        self.act: Callable[[int], None] = lambda _: None

    def __call__(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self.times += 1
        self.act(self.times)

    @contextmanager
    def heeded(self) -> Iterator[None]:
        """Install the handler; restore the previous handlers at the end."""
        before = {number: signal.signal(number, self) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


async def _until_told(
    asking: Asking, made: Callable[..., App], ready: Callable[[str, tuple[str, ...]], None], apps: list[App],
    told: _Told, opened: Callable[[App], Listener | OverStandardStreams],
) -> None:  # fmt: skip
    loop, over = asyncio.get_running_loop(), asyncio.Event()
    app = made(loop=loop)
    apps.append(app)
    listener = opened(app)

    def act(times: int) -> None:
        """Start the shutdown; abort it at the second signal."""
        if times > 1:
            listener.cut()
        loop.call_soon_threadsafe(over.set)

    try:
        told.act = act
        if told.times:  # a signal arrived while the models were loaded
            over.set()
        ready(listener.address, asking.models)
        waiting = [asyncio.ensure_future(one) for one in (listener.ended(), over.wait())]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for one in waiting:
            one.cancel()
        await listener.finish()
    finally:
        listener.close()


def _opened(app: App, served: Served, place: Place, grace: int, also: Also) -> Listener | OverStandardStreams:
    if also.a2a:
        from marft_serve.serving.a2a import agent_routes  # needs an extra

        app.asgi.routes.extend(agent_routes(app, served, also.address))
    if not also.mcp:
        return Listener(app.asgi, place.host, place.port, WHAT, grace)
    from marft_serve.serving.mcp import beside, team_server  # needs an extra

    if also.mcp == "stdio":
        return OverStandardStreams(team_server(app))
    return Listener(beside(app, team_server(app)), place.host, place.port, WHAT, grace, lifespan=True)


class OverStandardStreams:
    """MCP server over standard input and output, on a separate thread, until its input ends."""

    address = "standard input"

    def __init__(self, server: Any) -> None:
        self._thread = LoopThread()
        self._serving = asyncio.run_coroutine_threadsafe(server.run_stdio_async(), self._thread.loop)

    async def ended(self) -> None:
        """Wait for the end of the input."""
        await asyncio.wait([asyncio.wrap_future(self._serving)])

    async def finish(self) -> None:
        """Stop the server."""
        self._serving.cancel()

    def cut(self) -> None:
        """Stop the server."""
        self._serving.cancel()

    def close(self) -> None:
        """Stop the server and its thread."""
        self._serving.cancel()
        self._thread.stop()
