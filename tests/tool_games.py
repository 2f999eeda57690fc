"""Games of one agent that calls tools."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from marft.agents.agents import Agent, ToolUse
from marft.agents.game import Attempt, Game
from marft.agents.play import play
from marft.agents.sandbox.runner import isolation_problem
from marft.agents.team import Team
from marft.agents.tools.functions import FunctionSource
from marft.common.types import ActionKey, AgentProfile, Episode, Task
from marft.config.interfaces.tools import ToolSource
from tests.fakes import FakeEngine, Script, ends, game

isolated = pytest.mark.skipif(bool(isolation_problem()), reason=f"no isolation here: {isolation_problem()}")


def call(name: str, **arguments: Any) -> str:
    return "CALL" + json.dumps({"name": name, "arguments": arguments})


def says(*turns: str) -> FakeEngine:
    """Says these, one a turn of an action."""

    def say(key: ActionKey, prompt: str) -> str:
        turn = int(key.stream.partition("+")[2] or 0)
        return turns[min(turn, len(turns) - 1)]

    return FakeEngine(say)


def with_tools(engine: FakeEngine, *found: Callable[..., Any] | ToolSource, script: Script | None = None, **limits: Any) -> Game:  # fmt: skip
    """A game of one agent that has these tools."""
    sources = {str(n): f if isinstance(f, ToolSource) else FunctionSource(f) for n, f in enumerate(found)}
    specs = [(tool, name) for name, source in sources.items() for tool in source.tools]
    agent = Agent(
        AgentProfile("a", "You are a.", answers=True, tools=tuple(tool for tool, _ in specs)), "a",
        tool_use=ToolUse({tool.name: name for tool, name in specs}, **{"seconds": 2.0, **limits}),
    )  # fmt: skip
    g = game(script or Script([ends()]), "a", engine=engine)
    return replace(g, team=Team((agent,), g.team.organization), tools=sources)


def run(g: Game, **changes: Any) -> Episode:
    return asyncio.run(play(g, Attempt(**{"task": Task("t0", "begin"), "stream": "train/0", **changes})))
