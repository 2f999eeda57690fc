"""Tool execution for the agents in one episode."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from marft.agents.engine import Sampler
from marft.agents.environment import Session
from marft.agents.loop_threads import LoopThread, LoopThreadPool, OverdueError, RaisedError
from marft.agents.open_tools import OpenTools
from marft.agents.planting import Plant, answered
from marft.agents.tool_sources import ToolSource, ToolUse
from marft.common.errors import EpisodeFailedError
from marft.common.texts import raised, storable
from marft.common.types import Task, ToolCall
from marft.config.settings import did_you_mean


class ToolBelt:
    """Tool executor for one episode.

    A stateful source has one session per episode, opened at its first use. A stateless source opens one session per
    call.
    """

    def __init__(
        self, sources: Mapping[str, ToolSource], threads: LoopThreadPool, engine: Sampler, task: Task, seed: int,
        plants: Sequence[Plant] = (),
    ) -> None:  # fmt: skip
        self.sources, self.threads, self.engine = sources, threads, engine
        self.task, self.seed, self.plants = task, seed, plants
        self._open: dict[str, OpenTools] = {}
        self._made = 0  # number of calls so far
        self._repeated: dict[str, int] = {}  # by source: index of the last recorded call that was replayed

    def join(self, session: Session, thread: LoopThread) -> None:
        """Add the tools of the environment's session; their calls alternate with its steps on one thread."""
        for name, source in self.sources.items():
            joined = source.joined(session)
            if joined is not None:
                self._open[name] = OpenTools(source, self.threads, self.task, self.seed, thread, joined)

    async def use(self, limits: ToolUse, calls: Sequence[ToolCall], clip: Callable[[str], str] = str) -> list[ToolCall]:
        """Execute the calls concurrently and return them with their outputs.

        Calls to a stateful source run one at a time. Calls beyond ``limits.calls`` become errors.

        Args:
            clip: truncates an output to the length shown to the agent. Injected texts follow the truncated output.
        """
        with self.engine.external_wait():
            made = list(await asyncio.gather(*(self._use(limits, call) for call in calls[: limits.calls])))
        made = [replace(call, output=clip(call.output)) for call in made]
        return answered(made, self.plants) + [
            _failed(call, f"too many calls in one turn: {limits.calls} were made") for call in calls[len(made) :]
        ]

    async def repeat(self, limits: ToolUse, calls: Sequence[ToolCall]) -> list[ToolCall]:
        """Execute recorded calls again for stateful sources; keep the outputs for stateless ones.

        Raises:
            EpisodeFailedError: agents used a source alternately, and the replay would change the order of calls.
        """
        again = [self._in_order(limits, call) for call in calls]
        asked = [replace(call, output="", error=False) for call, wanted in zip(calls, again, strict=True) if wanted]
        before = self._made
        made = iter(await self.use(limits, asked))
        self._made = max([before, *(call.index for call in calls)])  # new calls follow the recorded ones
        return [next(made) if wanted else call for call, wanted in zip(calls, again, strict=True)]

    def _in_order(self, limits: ToolUse, call: ToolCall) -> bool:
        """Return true if a recorded call needs another execution.

        Raises:
            EpisodeFailedError: a later recorded call to the same source was already replayed.
        """
        source = limits.sources.get(call.name)
        if source is None or not self.sources[source].stateful:
            return False
        if call.index < self._repeated.get(source, 0):
            raise EpisodeFailedError(
                "failed", f"agents used {source!r} in turns, which cannot be played again in order"
            )
        self._repeated[source] = call.index
        return True

    async def close(self) -> None:
        """Close all sessions."""
        await asyncio.gather(*(opened.close() for opened in self._open.values()))
        self._open.clear()

    async def _use(self, limits: ToolUse, call: ToolCall) -> ToolCall:
        self._made += 1
        call = replace(call, index=self._made)
        if not call.name:
            return call
        name = limits.sources.get(call.name)
        if name is None:
            return _failed(call, f"no tool is called {call.name!r}{did_you_mean(call.name, limits.sources)}")
        try:
            arguments = json.loads(call.arguments or "{}")
        except (ValueError, RecursionError) as error:
            return _failed(call, f"the arguments are no valid JSON: {error}")
        if not isinstance(arguments, dict):
            return _failed(call, "the arguments must be a JSON object")
        async with self.threads.slots(name, self.sources[name].at_once):
            opened = self._opened(name)
            try:
                return await _answered(opened, call, arguments, limits.seconds)
            finally:
                if name not in self._open:
                    await opened.close()

    def _opened(self, name: str) -> OpenTools:
        if name in self._open:
            return self._open[name]
        try:
            opened = OpenTools(self.sources[name], self.threads, self.task, self.seed)
        except ValueError as error:
            raise EpisodeFailedError("failed", str(error)) from error
        if self.sources[name].stateful:
            self._open[name] = opened
        return opened


async def _answered(opened: OpenTools, call: ToolCall, arguments: Mapping[str, object], seconds: float) -> ToolCall:
    began = time.perf_counter()
    try:
        output = await opened.call(call.name, arguments, seconds)
    except OverdueError:
        why = f"{call.name} took over {seconds:g} s"
    except RaisedError as error:
        why = error.said
    except RuntimeError as error:
        why = raised(error)
    else:
        return replace(call, output=output, seconds=time.perf_counter() - began)
    return replace(_failed(call, why), seconds=time.perf_counter() - began)


def _failed(call: ToolCall, why: str) -> ToolCall:
    return replace(call, output=storable(why), error=True)
