"""Source of ``tool_sandbox`` scenarios, by name."""

from __future__ import annotations

import inspect
import os
import time
from typing import Any

from .conversation import Conversation, Sandbox, plain

WEB = "rapid_api_search_tools"  # module with the tools that call a web service
KEY = "RAPID_API_KEY"  # environment variable with the key of the service


class Scenarios:
    """All scenarios, and the running conversations."""

    def __init__(self, web: bool, seconds: float) -> None:
        if not web:
            os.environ.pop(KEY, None)  # a call to the service then fails with a message that the key is missing
        self.sandbox = Sandbox(seconds)
        self.scenarios = self.sandbox.scenarios()
        self.episodes: dict[str, Conversation] = {}

    def rows(self, asked: dict[str, Any]) -> list[dict[str, Any]]:  # noqa: ARG002  there is one list
        """Return one row per scenario: its first messages, the user's goal and the base scenario.

        The base is the shortest scenario name that the scenario's own name begins with. The scenario is a variation
        of it.
        """
        return [self._row(name, scenario) for name, scenario in self.scenarios.items()]

    def _row(self, name: str, scenario: Any) -> dict[str, Any]:
        sandbox = self.sandbox
        sandbox.contexts.set_current_context(scenario.starting_context)
        told = [message.content for message in sandbox.seen(sandbox.user) if message.sender == sandbox.roles.SYSTEM]
        base = min((other for other in self.scenarios if f"{name}_".startswith(f"{other}_")), key=len)
        needed = set(self.scenarios[base].starting_context.tool_allow_list or ())
        return {
            "name": name, "base": base, "wants": told[-1] if told else "",
            "messages": [
                plain(message) for message in sandbox.seen(sandbox.agent) if message.sender != sandbox.roles.SYSTEM
            ],
            "categories": [str(category.value).lower() for category in scenario.categories],
            "web": bool(needed & self._from_web(scenario.starting_context.name_to_tool)),
        }  # fmt: skip

    def _from_web(self, tools: dict[str, Any]) -> set[str]:
        modules = {name: inspect.getmodule(inspect.unwrap(tool)) for name, tool in tools.items()}
        return {name for name, module in modules.items() if module and module.__name__.endswith(WEB)}

    async def begin(self, episode: str, asked: dict[str, Any]) -> dict[str, Any]:
        """Start the scenario named in the request."""
        played = Conversation(self.sandbox, self.scenarios[asked["name"]], asked["seed"])
        self.episodes[episode] = played
        return played.begin()

    async def say(self, episode: str, asked: dict[str, Any]) -> dict[str, Any]:
        """Add a message from the agent or user, or end the conversation as the user."""
        played = self.episodes[episode]
        return played.end() if asked["ends"] else played.say(asked["speaker"], asked["text"], asked["answered"])

    def drop(self, episode: str) -> None:
        """Drop a conversation."""
        self.episodes.pop(episode, None)


def open_source(given: dict[str, Any]) -> Scenarios:
    """Return all scenarios in the package.

    Args:
        given: ``web``, True if tools may call the web service with the key from the environment; ``seconds``, timeout
            of a tool call.
    """
    os.environ["TZ"] = "UTC"
    time.tzset()
    return Scenarios(given["web"], given["seconds"])
