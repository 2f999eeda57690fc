"""Tools in the game: who offers them, and their use by the agents of one episode."""

from __future__ import annotations

import asyncio
import json
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from marft.config.settings import did_you_mean
from marft.game.engine import Engine
from marft.game.environment import Session
from marft.game.hosting import Host, HostThread
from marft.types import Task, Tool, ToolCall

CLOSE_SECONDS = 5.0


class ToolSession(Protocol):
    """The tools of one source in one episode. It lives on a thread of its own: a tool may block."""

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> str:
        """Use a tool → what the agent is shown. What is raised is shown to the agent as an error."""
        ...

    async def end(self) -> None:
        """The episode is over."""
        ...


class ToolSource(ABC):
    """Where tools come from: functions, a server, a sandbox. One for the whole run."""

    @property
    @abstractmethod
    def tools(self) -> Sequence[Tool]:
        """What agents are told of them."""

    @property
    def stateful(self) -> bool:
        """Whether what a call does depends on the calls before it: then an episode that is played again makes them
        all once more."""
        return True

    @abstractmethod
    def open(self, task: Task, seed: int) -> ToolSession:
        """The tools as one episode uses them."""

    def joined(self, session: Session) -> ToolSession | None:  # noqa: ARG002
        """The tools that an environment's own session brings, which live and end with it; None for all others."""
        return None

    def close(self) -> None:
        """The run is over."""
        return


class StatelessSource(ToolSource):
    """Tools of which every call stands alone."""

    @property
    def stateful(self) -> bool:
        """See :class:`ToolSource`."""
        return False

    def open(self, task: Task, seed: int) -> ToolSession:  # noqa: ARG002
        """See :class:`ToolSource`."""
        return self

    @abstractmethod
    async def call(self, tool: str, arguments: Mapping[str, Any]) -> str:
        """See :class:`ToolSession`."""

    async def end(self) -> None:
        """See :class:`ToolSession`."""


@dataclass(frozen=True, slots=True)
class ToolUse:
    """How an agent may use its tools.

    Args:
        sources: where each tool comes from, by the tool's name.
        rounds: how often in one action it may call tools and go on.
        seconds: for one call.
        output_tokens: of one answer that the agent reads; more is cut.
    """

    sources: Mapping[str, str] = field(default_factory=dict)
    rounds: int = 8
    seconds: float = 30.0
    output_tokens: int = 512


class ToolBelt:
    """The tools of one episode. A source with a state has one session, opened when first used; others one a call."""

    def __init__(self, sources: Mapping[str, ToolSource], host: Host, engine: Engine, task: Task, seed: int) -> None:
        self.sources, self.host, self.engine = sources, host, engine
        self.task, self.seed = task, seed
        self._open: dict[str, _Opened] = {}

    def join(self, session: Session, thread: HostThread) -> None:
        """Take in the tools that the environment's session brings: calls of them take turns with its steps."""
        for name, source in self.sources.items():
            joined = source.joined(session)
            if joined is not None:
                self._open[name] = _Opened(source, self, thread, joined)

    async def use(self, limits: ToolUse, calls: Sequence[ToolCall]) -> list[ToolCall]:
        """Make the calls, all at once but for those to a source with a state → the calls with their answers."""
        with self.engine.outside():
            return list(await asyncio.gather(*(self._use(limits, call) for call in calls)))

    async def repeat(self, limits: ToolUse, calls: Sequence[ToolCall]) -> list[ToolCall]:
        """Make recorded calls again where their source has a state; others keep their answers."""
        kept = [self._stateful(limits, call) for call in calls]
        made = iter(await self.use(limits, [call for call, again in zip(calls, kept, strict=True) if again]))
        return [next(made) if again else call for call, again in zip(calls, kept, strict=True)]

    def _stateful(self, limits: ToolUse, call: ToolCall) -> bool:
        source = limits.sources.get(call.name)
        return source is not None and self.sources[source].stateful

    async def close(self) -> None:
        """End every session."""
        await asyncio.gather(*(opened.close() for opened in self._open.values()))
        self._open.clear()

    async def _use(self, limits: ToolUse, call: ToolCall) -> ToolCall:
        began = time.perf_counter()
        if call.error and call.output:  # it could not be read
            return call
        source = limits.sources.get(call.name)
        if source is None:
            return _failed(call, f"no tool is called {call.name!r}{did_you_mean(call.name, limits.sources)}", began)
        try:
            arguments = json.loads(call.arguments or "{}")
        except (ValueError, RecursionError) as error:
            return _failed(call, f"the arguments are no valid JSON: {error}", began)
        if not isinstance(arguments, dict):
            return _failed(call, "the arguments must be a JSON object", began)
        try:
            output = await self._call(source, call.name, arguments, limits.seconds)
        except Exception as error:  # noqa: BLE001  somebody else's code; the agent is told
            late = isinstance(error, TimeoutError) and time.perf_counter() - began >= limits.seconds
            why = f"{call.name} took over {limits.seconds:g} s" if late else _told(error)
            return _failed(call, why, began)
        return replace(call, output=_clean(output), seconds=time.perf_counter() - began)

    async def _call(self, name: str, tool: str, arguments: Mapping[str, Any], seconds: float) -> str:
        source = self.sources[name]
        if source.stateful:
            if name not in self._open:
                self._open[name] = _Opened(source, self)
            return await self._open[name].call(tool, arguments, seconds)
        opened = _Opened(source, self)
        try:
            return await opened.call(tool, arguments, seconds)
        finally:
            await opened.close()


class _Opened:
    """A session and the thread that it lives on, its own or the environment's; one call at a time."""

    def __init__(
        self, source: ToolSource, belt: ToolBelt, thread: HostThread | None = None, session: ToolSession | None = None
    ) -> None:
        self.source, self.belt = source, belt
        self.thread = thread or belt.host.acquire()
        self.own = thread is None
        self.session = session
        self.turn = asyncio.Lock()
        self.hangs = False

    async def call(self, tool: str, arguments: Mapping[str, Any], seconds: float) -> str:
        async with self.turn:
            if self.hangs:
                raise RuntimeError("an earlier call still hangs")
            try:
                if self.session is None:
                    self.session = await self.thread.call(
                        self.source.open, self.belt.task, self.belt.seed, timeout=seconds
                    )
                return await self.thread.call(self.session.call, tool, arguments, timeout=seconds)
            except (TimeoutError, asyncio.CancelledError):
                self.hangs = not await self.thread.responsive()
                raise

    async def close(self) -> None:
        if not self.own:
            return
        if self.session is not None and not self.hangs:
            try:
                end: Any = self.session.end
                await self.thread.call(end, timeout=CLOSE_SECONDS)
            except TimeoutError:
                self.hangs = True
            except Exception:  # noqa: BLE001  somebody else's code; the episode's outcome stands
                self.session = None
        await self.belt.host.release(self.thread, suspect=self.hangs)


def _failed(call: ToolCall, why: str, began: float) -> ToolCall:
    return replace(call, output=_clean(why), error=True, seconds=time.perf_counter() - began)


def _told(error: Exception) -> str:
    """What was raised, in words, also where the error cannot say it."""
    return "".join(traceback.format_exception_only(error)).strip()


def _clean(text: str) -> str:
    """A text that can be stored: tools may return half characters."""
    return text.encode("utf-8", "replace").decode()
