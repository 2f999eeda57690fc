"""Tools without effects: they answer what the served team's were answered, or that nothing is done here.

A shadow's recipe names these in the place of its own, before anything is connected: no server is started, no function
called, no program run.
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
    """A call of a shadow to which there is no recorded answer."""


class RecordedError(Exception):
    """What a call of the served team failed of."""


class Stub(Plugin):
    """Stands where a recipe has a source of tools: it says what they are, and does nothing."""

    offered: tuple[dict[str, Any], ...] = ()  # names, descriptions and parameters of tools

    def connect(self) -> ToolSource:
        """Tools that answer nothing; a session has its own answers put in their place."""
        return Replayed([Tool(**tool) for tool in self.offered], ())


class Replayed(StatelessSource):
    """Tools that answer a call as they did where a session made the same: in its order, then the last answer again.

    Args:
        calls: of the session.
    """

    def __init__(self, offered: Sequence[Tool], calls: Sequence[ToolCall]) -> None:
        self.offered, self.answered, self.refused = offered, 0, 0
        self._answers: dict[str, list[ToolCall]] = defaultdict(list)
        for call in calls:
            self._answers[_key(call.name, arguments_of(call.arguments))].append(call)

    @property
    def tools(self) -> Sequence[Tool]:
        """What agents are told of them."""
        return self.offered

    async def call(self, tool: str, arguments: Mapping[str, object]) -> str:
        """The recorded answer.

        Raises:
            NothingDoneError: there is none.
            RecordedError: the call failed when it was recorded.
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
    """All of a team's sources of tools, its skills too, as they answer in a session."""
    calls = [call for action in session.actions for call in action.calls]
    return {name: Replayed(source.tools, calls) for name, source in sources.items()}


def stubbed(run: RunSettings, known: Mapping[str, Sequence[Tool]]) -> RunSettings:
    """The recipe of a shadow: no tool of it does anything.

    Args:
        known: tools that a served team was offered, by the digest of their source.

    Raises:
        ValueError: what tools a source has is known from its server alone; or the team is a program.
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
    """What a source offers, without a connection to it."""
    if isinstance(plugin, Functions):
        return FunctionSource(import_path(plugin.call)).tools  # signatures are read; nothing is called
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
