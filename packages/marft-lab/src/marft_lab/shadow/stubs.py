"""Stub tools without effects: they return the recorded results of the served team, or an error.

A shadow's recipe contains stubs instead of its tools before any connection. So no server is started, no function is
called, and no program runs.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from marft.agents.prompt_messages import parse_arguments
from marft.agents.tool_sources import StatelessSource, ToolSource
from marft.agents.tools.functions import Functions, FunctionSource
from marft.agents.tools.python import Python, PythonSource
from marft.common.types import Episode, Tool, ToolCall
from marft.config.load import parse_recipe
from marft.config.plugins import Plugin, import_object
from marft.config.run import RunSettings
from marft_serve.serving.tool_definitions import compute_digest

STUB = "marft_lab.shadow.stubs:StubTools"
REFUSAL = (
    "this team is a shadow of one that is served: {tool} is not called, and the session that it plays again "
    "has no answer to this call"
)


class NoRecordedResultError(Exception):
    """Error of a shadow's tool call without a recorded result."""


class RecordedError(Exception):
    """Recorded error of a served team's tool call."""


class StubTools(Plugin):
    """Stub for a recipe's tool source, with the tools' definitions and no effect."""

    offered: tuple[dict[str, Any], ...] = ()  # name, description and parameters of each tool

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
            self._answers[_call_key(call.name, parse_arguments(call.arguments))].append(call)

    @property
    def tools(self) -> Sequence[Tool]:
        """Definitions of the tools."""
        return self.definitions

    async def call(self, tool: str, arguments: Mapping[str, object]) -> str:
        """Return a call's recorded result.

        Raises:
            NothingDoneError: no recorded result.
            RecordedError: the recorded call failed.
        """
        answers = self._answers.get(_call_key(tool, arguments), [])
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
        ValueError: the tools of a source are only known to its server, or the team is a program.
    """
    if run.team.writes_prompts:
        raise ValueError(
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
        raise ValueError(
            f"tools.{name}: what tools it has is known from whoever offers them alone, and a shadow asks nobody. Serve "
            "a team with the same [tools] table and --record: then they stand in tools.json beside the sessions"
        )
    return known_tools[compute_digest(plugin)]


def _tool_definition(tool: Tool) -> dict[str, Any]:
    return {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}


def _call_key(tool: str, arguments: Mapping[str, object]) -> str:
    return f"{tool} {json.dumps(arguments, sort_keys=True, default=str)}"
