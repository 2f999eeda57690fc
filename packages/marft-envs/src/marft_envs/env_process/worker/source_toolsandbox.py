"""Source of ``tool_sandbox`` scenarios, by name."""

from __future__ import annotations

import inspect
import os
import time
from typing import Any

from .conversation import Conversation, ToolSandboxPackage, message_to_dict

WEB_MODULE = "rapid_api_search_tools"  # module with the tools that call a web service
KEY_VARIABLE = "RAPID_API_KEY"  # environment variable with the key of the service


class ScenarioSource:
    """All scenarios, and the running conversations."""

    def __init__(self, web: bool, seconds: float) -> None:
        if not web:
            os.environ.pop(
                KEY_VARIABLE, None
            )  # a call to the service then fails with a message that the key is missing
        self.sandbox = ToolSandboxPackage(seconds)
        self.scenarios = self.sandbox.load_scenarios()
        self.episodes: dict[str, Conversation] = {}

    def list_rows(self, request: dict[str, Any]) -> list[dict[str, Any]]:  # noqa: ARG002  there is one list
        """Return one row per scenario: its first messages, the user's goal and the base scenario.

        The base is the shortest scenario name that the scenario's own name begins with. The scenario is a variation
        of it.
        """
        return [self._row(name, scenario) for name, scenario in self.scenarios.items()]

    def _row(self, name: str, scenario: Any) -> dict[str, Any]:
        sandbox = self.sandbox
        sandbox.contexts.set_current_context(scenario.starting_context)
        instructions = [
            message.content
            for message in sandbox.visible_messages(sandbox.user)
            if message.sender == sandbox.roles.SYSTEM
        ]
        base = min((name_prefix for name_prefix in self.scenarios if f"{name}_".startswith(f"{name_prefix}_")), key=len)
        needed = set(self.scenarios[base].starting_context.tool_allow_list or ())
        return {
            "name": name,
            "base": base,
            "wants": instructions[-1] if instructions else "",
            "messages": [
                message_to_dict(message)
                for message in sandbox.visible_messages(sandbox.agent)
                if message.sender != sandbox.roles.SYSTEM
            ],
            "categories": [str(category.value).lower() for category in scenario.categories],
            "web": bool(needed & self._web_tools(scenario.starting_context.name_to_tool)),
        }

    def _web_tools(self, tools: dict[str, Any]) -> set[str]:
        modules = {name: inspect.getmodule(inspect.unwrap(tool)) for name, tool in tools.items()}
        return {name for name, module in modules.items() if module and module.__name__.endswith(WEB_MODULE)}

    async def start_episode(self, episode: str, request: dict[str, Any]) -> dict[str, Any]:
        """Start the scenario named in the request."""
        conversation = Conversation(self.sandbox, self.scenarios[request["name"]], request["seed"])
        self.episodes[episode] = conversation
        return conversation.start()

    async def send_text(self, episode: str, request: dict[str, Any]) -> dict[str, Any]:
        """Add a message from the agent or user, or end the conversation as the user."""
        conversation = self.episodes[episode]
        return (
            conversation.end_by_user()
            if request["ends"]
            else conversation.add_message(request["speaker"], request["text"], request["answered"])
        )

    def drop_episode(self, episode: str) -> None:
        """Drop a conversation."""
        self.episodes.pop(episode, None)


def open_source(settings: dict[str, Any]) -> ScenarioSource:
    """Return all scenarios in the package.

    Args:
        settings: ``web``, True if tools may call the web service with the key from the environment; ``seconds``,
            timeout of a tool call.
    """
    os.environ["TZ"] = "UTC"
    time.tzset()
    return ScenarioSource(settings["web"], settings["seconds"])
