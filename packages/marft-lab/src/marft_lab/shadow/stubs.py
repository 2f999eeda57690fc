"""Stub tools without effects: they return the recorded results of the served team, or an error.

A shadow's recipe contains stubs instead of its tools before any connection. So no server is started, no function is
called, and no program runs.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from marft.agents.rendering import arguments_of
from marft.agents.tool_sources import StatelessSource, ToolSource
from marft.agents.tools.functions import Functions, FunctionSource
from marft.agents.tools.python import Python, PythonSource
from marft.common.types import Episode, Tool, ToolCall
from marft.config.load import parse_recipe
from marft.config.plugins import Plugin, import_path
from marft.config.run import RunSettings
from marft_serve.serving.offered import digest_of

STUB = "marft_lab.shadow.stubs:Stub"
REFUSAL = (
    "this team is a shadow of one that is served: {tool} is not called, and the session that it plays again "
    "has no answer to this call"
)


class NothingDoneError(Exception):
    """Error of a shadow's tool call without a recorded result."""


class RecordedError(Exception):
    """Recorded error of a served team's tool call."""


class Stub(Plugin):
    """Stub for a recipe's tool source, with the tools' definitions and no effect."""

    offered: tuple[dict[str, Any], ...] = ()  # name, description and parameters of each tool

    def connect(self) -> ToolSource:
        """Return tools without results; a session replaces them by its recorded results."""
        return Replayed([Tool(**tool) for tool in self.offered], ())


class Replayed(StatelessSource):
    """Tools with recorded results: equal calls return the session's results in order, and then the last result again.

    Args:
        offered: definitions of the tools.
        calls: recorded calls of the session.
    """

    def __init__(self, offered: Sequence[Tool], calls: Sequence[ToolCall]) -> None:
        self.offered, self.answered, self.refused = offered, 0, 0
        self._answers: dict[str, list[ToolCall]] = defaultdict(list)
        for call in calls:
            self._answers[_key(call.name, arguments_of(call.arguments))].append(call)

    @property
    def tools(self) -> Sequence[Tool]:
        """Definitions of the tools."""
        return self.offered

    async def call(self, tool: str, arguments: Mapping[str, object]) -> str:
        """Return a call's recorded result.

        Raises:
            NothingDoneError: no recorded result.
            RecordedError: the recorded call failed.
        """
        answers = self._answers.get(_key(tool, arguments), [])
        if not answers:
            self.refused += 1
            raise NothingDoneError(REFUSAL.format(tool=tool))
        self.answered += 1
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if answer.error:
            raise RecordedError(answer.output)
        return answer.output


def replayed(sources: Mapping[str, ToolSource], session: Episode) -> dict[str, Replayed]:
    """Return a team's tool sources, with skills, as replays of a session."""
    calls = [call for action in session.actions for call in action.calls]
    return {name: Replayed(source.tools, calls) for name, source in sources.items()}


def stubbed(run: RunSettings, known: Mapping[str, Sequence[Tool]]) -> RunSettings:
    """Return a shadow's recipe, with stubs for all tools.

    Args:
        run: recipe of the team.
        known: tools of served teams, by the digest of their source.

    Raises:
        ValueError: the tools of a source are only known to its server, or the team is a program.
    """
    if run.team.own_words:
        raise ValueError(
            f"team: the organization {run.team.name!r} is a program of its own, and what that does to the world nobody "
            "can hold back; it cannot be a shadow"
        )
    tools = {
        name: {"name": STUB, "offered": [_table(tool) for tool in _tools_of(name, plugin, known)]}
        for name, plugin in run.tools.items()
    }
    return parse_recipe({**run.model_dump(mode="json", exclude_none=True), "tools": tools}, (), run.name)


def _tools_of(name: str, plugin: Plugin, known: Mapping[str, Sequence[Tool]]) -> Sequence[Tool]:
    """Return the tools of a source without a connection to the source."""
    if isinstance(plugin, Functions):
        return FunctionSource(import_path(plugin.call)).tools  # reads signatures without calls
    if isinstance(plugin, Python):
        return PythonSource(plugin.limits).tools
    if digest_of(plugin) not in known:
        raise ValueError(
            f"tools.{name}: what tools it has is known from whoever offers them alone, and a shadow asks nobody. Serve "
            "a team with the same [tools] table and --record: then they stand in tools.json beside the sessions"
        )
    return known[digest_of(plugin)]


def _table(tool: Tool) -> dict[str, Any]:
    return {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}


def _key(tool: str, arguments: Mapping[str, object]) -> str:
    return f"{tool} {json.dumps(arguments, sort_keys=True, default=str)}"
