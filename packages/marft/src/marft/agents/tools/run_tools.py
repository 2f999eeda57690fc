"""Tools and skills for a run's agents: connected tool sources and loaded skills."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from dataclasses import replace

from marft.agents.agents import ToolUse
from marft.agents.tools.functions import SessionSource
from marft.agents.tools.skills import Skill, SkillSource, read_skill
from marft.common.errors import UserError
from marft.common.types import AgentProfile, Tool
from marft.config.agents import AgentSettings
from marft.config.interfaces.tools import ToolProvider, ToolSource
from marft.config.recipe_checks import ENVIRONMENT_TOOLS
from marft.config.run import RunSettings


class RunTools:
    """Tool sources and skills of a recipe; call :meth:`close` at the end.

    Raises:
        UserError: a tool source is not available, or an environment offers no tools.
    """

    def __init__(self, run: RunSettings) -> None:
        self.sources: dict[str, ToolSource] = {}
        self.skills: dict[str, Skill] = {}
        self._tools: dict[str, list[Tool]] = {}
        self._exit_stack = ExitStack()
        try:
            for name, plugin in run.tools.items():
                self._add(name, _connect(name, plugin))
            if any(ENVIRONMENT_TOOLS in agent.tools for agent in run.agents):
                self._add(ENVIRONMENT_TOOLS, _session_source(run))
            for folder in dict.fromkeys(folder for agent in run.agents for folder in agent.skills):
                self.skills[folder] = read_skill(folder)
                self._add(_skill_name(folder), SkillSource(self.skills[folder]))
        except BaseException:
            self.close()
            raise

    def _add(self, name: str, source: ToolSource) -> None:
        self.sources[name] = source
        self._exit_stack.callback(source.close)
        self._tools[name] = list(source.tools)

    def attach_tools(self, agent: AgentSettings) -> tuple[AgentProfile, ToolUse]:
        """Return an agent's profile with skills and tools added, and its tool limits.

        Raises:
            UserError: two tools have the same name, or a source's own time limit exceeds the agent's timeout.
        """
        names = [*agent.tools, *map(_skill_name, agent.skills)]
        named_tools = [(tool, name) for name in names for tool in self._tools[name]]
        sources = {tool.name: name for tool, name in named_tools}
        twice = sorted(name for name, count in Counter(tool.name for tool, _ in named_tools).items() if count > 1)
        if twice:
            raise UserError(f"agents.{agent.role}.tools: two tools are called {', '.join(twice)}; leave one out")
        for name in names:
            if self.sources[name].max_seconds > agent.tool_use.timeout_seconds:
                raise UserError(
                    f"agents.{agent.role}.tool_use.timeout_seconds: a call of {name!r} may take "
                    f"{self.sources[name].max_seconds:g} s by its own limits; allow for that, or lower them"
                )
        texts = [agent.instructions, *(self.skills[folder].profile for folder in agent.skills)]
        profile = replace(
            agent.profile,
            instructions="\n\n".join(text for text in texts if text),
            tools=tuple(tool for tool, _ in named_tools),
        )
        use = agent.tool_use
        return profile, ToolUse(sources, use.max_rounds, use.max_calls, use.timeout_seconds, use.max_output_tokens)

    def close(self) -> None:
        """Close every tool source."""
        self._exit_stack.close()


def _session_source(run: RunSettings) -> SessionSource:
    session = run.environment.tool_class
    if session is None:
        raise UserError(
            f"agents.….tools: environment {run.environment.name!r} brings no tools; give its class "
            "session: ClassVar[type] = … and mark methods of that one with @tool (marft.config.interfaces.environment)"
        )
    return SessionSource(session)


def _skill_name(folder: str) -> str:
    return f"skill {folder}"


def _connect(name: str, plugin: ToolProvider) -> ToolSource:
    try:
        return plugin.connect()
    except ValueError as error:
        raise UserError(f"tools.{name}: {error}") from error
