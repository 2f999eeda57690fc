"""Player of a shadow: the second team answers recorded requests without side effects.

Its tools are stubs: they return the recorded results of the served team, or an error.

A shadow's recipe contains stubs instead of its tools before any connection. So no server is started, no function is
called, and no program runs.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from pydantic import Field

from marft.agents.game import Attempt, Game
from marft.agents.play import play
from marft.agents.prompt_messages import parse_arguments
from marft.agents.tools.functions import Functions, FunctionSource
from marft.agents.tools.python import Python, PythonSource
from marft.common.errors import UserError
from marft.common.types import Episode, Task, Tool, ToolCall
from marft.config.interfaces.tools import StatelessSource, ToolProvider, ToolSource
from marft.config.load import parse_recipe
from marft.config.plugins import Plugin, import_object
from marft.config.run import RunSettings
from marft_lab.shadow.effects import block_effects
from marft_lab.shadow.settings import ShadowSettings
from marft_serve.serving.loader import load_team
from marft_serve.serving.recorder import compute_digest
from marft_serve.serving.settings import ServedTeam
from marft_serve.serving.team_handler import RequestEnvironment
from marft_serve.traces.replayer import call_key

STUB = "marft_lab.shadow.player:StubTools"
REFUSAL = (
    "this team is a shadow of one that is served: {tool} is not called, and the session that it plays again "
    "has no answer to this call"
)
STREAM = "shadow"
WaitFor = Callable[[Coroutine[object, object, Episode]], Episode]
TICK_SECONDS = 0.5
NO_TIMEOUT = 1e9  # seconds; the session's own environment takes no time, unless the process is suspended


class NoRecordedResultError(Exception):
    """Error of a shadow's tool call without a recorded result."""


class RecordedError(Exception):
    """Recorded error of a served team's tool call."""


class StubTools(ToolProvider):
    """Stub for a recipe's tool source, with the tools' definitions and no effect."""

    offered: tuple[dict[str, Any], ...] = Field(default=(), description="name, description and parameters of each tool")

    def connect(self) -> ToolSource:
        """Return tools without results; a session replaces them by its recorded results."""
        return ReplaySource([Tool(**tool) for tool in self.offered], ())


class ReplaySource(StatelessSource):
    """Tools with recorded results: equal calls return the session's results in order, and then the last result again.

    Args:
        definitions: definitions of the tools.
        calls: recorded calls of the session.
    """

    def __init__(self, definitions: Sequence[Tool], calls: Sequence[ToolCall]) -> None:
        self.definitions, self.answered, self.refused = definitions, 0, 0
        self._answers: dict[str, list[ToolCall]] = defaultdict(list)
        for call in calls:
            self._answers[call_key(call.name, parse_arguments(call.arguments))].append(call)

    @property
    def tools(self) -> Sequence[Tool]:
        """Definitions of the tools."""
        return self.definitions

    async def call(self, tool: str, arguments: Mapping[str, object]) -> str:
        """Return a call's recorded result.

        Raises:
            NoRecordedResultError: no recorded result.
            RecordedError: the recorded call failed.
        """
        answers = self._answers.get(call_key(tool, arguments), [])
        if not answers:
            self.refused += 1
            raise NoRecordedResultError(REFUSAL.format(tool=tool))
        self.answered += 1
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if answer.error:
            raise RecordedError(answer.output)
        return answer.output


def build_replays(sources: Mapping[str, ToolSource], session: Episode) -> dict[str, ReplaySource]:
    """Return a team's tool sources, with skills, as replays of a session."""
    calls = [call for action in session.actions for call in action.calls]
    return {name: ReplaySource(source.tools, calls) for name, source in sources.items()}


def with_stub_tools(run: RunSettings, known_tools: Mapping[str, Sequence[Tool]]) -> RunSettings:
    """Return a shadow's recipe, with stubs for all tools.

    Args:
        run: recipe of the team.
        known_tools: tools of served teams, by the digest of their source.

    Raises:
        UserError: the tools of a source are only known to its server, or the team is a program.
    """
    if run.team.writes_prompts:
        raise UserError(
            f"team: the organization {run.team.name!r} is a program of its own, and what that does to the world nobody "
            "can hold back; it cannot be a shadow"
        )
    tools = {
        name: {"name": STUB, "offered": [_tool_definition(tool) for tool in _find_tools(name, plugin, known_tools)]}
        for name, plugin in run.tools.items()
    }
    return parse_recipe({**run.model_dump(mode="json", exclude_none=True), "tools": tools}, (), run.name)


def _find_tools(name: str, plugin: Plugin, known_tools: Mapping[str, Sequence[Tool]]) -> Sequence[Tool]:
    """Return the tools of a source without a connection to the source."""
    if isinstance(plugin, Functions):
        return FunctionSource(import_object(plugin.call)).tools  # reads signatures without calls
    if isinstance(plugin, Python):
        return PythonSource(plugin.limits).tools
    if compute_digest(plugin) not in known_tools:
        raise UserError(
            f"tools.{name}: what tools it has is known from whoever offers them alone, and a shadow asks nobody. Serve "
            "a team with the same [tools] table and --record: then they stand in tools.json beside the sessions"
        )
    return known_tools[compute_digest(plugin)]


def _tool_definition(tool: Tool) -> dict[str, object]:
    return {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}


@dataclass(frozen=True, slots=True, eq=False)
class ShadowResult:
    """Result of a session played by the shadow.

    Args:
        episode: episode; ``answer`` is "" without an answer, with the reason in ``error``.
        answered: tool calls with a recorded result.
        refused: tool calls without a recorded result.
        effects: rejected side effects.
    """

    episode: Episode
    answered: int
    refused: int
    effects: int


def to_shadow_team(served: ServedTeam, known_tools: Mapping[str, Sequence[Tool]]) -> ServedTeam:
    """Return a team as a shadow, with stub tools.

    Args:
        served: team.
        known_tools: tools of served teams, by the digest of their source.

    Raises:
        UserError: the team's effects cannot be blocked, or a model behind an endpoint is not allowed.
    """
    remote = sorted(name for name in served.run.models if served.run.is_remote(name))
    if remote and not ShadowSettings.from_run(served.run).allow_endpoints:
        raise UserError(
            f"models.{remote[0]}: it is behind an endpoint, and asking it costs what it costs; say so: "
            "--shadow.allow_endpoints true"
        )
    return replace(served, run=with_stub_tools(served.run, known_tools))


class ShadowPlayer:
    """Session player that loads a team (:func:`to_shadow_team`); call :meth:`close` at the end.

    The random streams of a session depend on its name, and sessions are played separately. So results do not depend on
    the order of the sessions or on interrupts.
    """

    def __init__(self, served: ServedTeam) -> None:
        self.settings = ShadowSettings.from_run(served.run)
        self._resources = ExitStack()
        self._rollouts = self._resources.enter_context(load_team(served))

    def play(self, session: Episode) -> ShadowResult:
        """Play a session with the team."""
        return play_session(self._rollouts.game, self._rollouts.wait_for, self.settings, session)

    def close(self) -> None:
        """Close the team's rollouts."""
        self._resources.close()


def play_session(game: Game, wait_for: WaitFor, settings: ShadowSettings, session: Episode) -> ShadowResult:
    """Play a client's request with a team; every failure of the team gives an episode without an answer.

    Args:
        game: game of the team; its environment and tools are replaced.
        wait_for: function that runs a coroutine with the team's engine.
        settings: settings of the shadow.
        session: recorded session.
    """
    task = Task(session.task.id, session.task.prompt)
    question, tools = RequestEnvironment(task.prompt), build_replays(game.tools, session)
    game = replace(game, environment=question, tools=tools, timeout=NO_TIMEOUT)
    with block_effects(network=settings.allow_endpoints) as effects:
        try:
            episode = wait_for(_play_with_timeout(settings.timeout_seconds, play(game, Attempt(task, STREAM))))
        except TimeoutError:
            error = f"it took over {settings.timeout_seconds:g} s"
            episode = Episode(task, STREAM, 0, (), "timed_out", error=error)
    answer = question.answer.id if question.answer is not None and episode.is_scored else ""
    return ShadowResult(
        episode=replace(episode, answer=answer, transitions=()),
        answered=sum(source.answered for source in tools.values()),
        refused=sum(source.refused for source in tools.values()),
        effects=effects.total(),
    )


async def _play_with_timeout(seconds: float, coroutine: Coroutine[object, object, Episode]) -> Episode:
    """Await an episode with a timeout; the clock stops while the process is suspended.

    Raises:
        TimeoutError: the episode exceeded the timeout.
    """
    task, remaining = asyncio.ensure_future(coroutine), seconds
    try:
        while not task.done():
            if remaining <= 0:
                raise TimeoutError
            await asyncio.wait({task}, timeout=min(TICK_SECONDS, remaining))
            remaining -= TICK_SECONDS
        return task.result()
    finally:
        task.cancel()
