"""The team's side in a ToolSandbox conversation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

from marft.common.types import JointAction, Observation, Step
from marft_envs.env_process.formatting import TOOLS_TEMPLATE, clean_metrics, format_tool
from marft_envs.env_process.process import EnvProcess, EnvProcessError, finite_number

USER = "user"  # role of the agent that plays the user
END_TEXT = "end_conversation"  # text with which a user ends the conversation, as instructed by the package
ROLE_PREFIXES = {"user": "User: ", "agent": "Agent: ", "execution_environment": "Tool: "}
EPISODE_COUNTER = count()  # episode counter of this process


class ToolSandboxSession:
    """One scenario.

    Args:
        process: the environment process.
        name: name of the scenario.
        seed: seed of the scenario.
        serves: roles that serve an agent as user; () for a user that leaves after the first message to it.
        success_threshold: minimum similarity for success.
        timeout: timeout of a request, in seconds.
    """

    def __init__(
        self, process: EnvProcess, name: str, seed: int, serves: Sequence[str], success_threshold: float, timeout: float
    ) -> None:
        self.process, self.name, self.seed = process, name, seed
        self.serves, self.success_threshold, self.timeout = tuple(serves), success_threshold, timeout
        self.key = f"{next(EPISODE_COUNTER)}"
        self.turn = "agent"
        self._user_prompt = ""
        self._pending_views: dict[
            str, str
        ] = {}  # by role: the agent's last message to the user, not yet shown to the role
        self._running: Any = None

    async def reset(self) -> Observation:
        """Start the scenario and return the user's request and the available tools."""
        self._running = self.process.get_running()
        reply = await self._request({"do": "begin", "name": self.name, "seed": self.seed})
        self._user_prompt = str(reply.get("brief", ""))
        tools = "\n".join(map(format_tool, reply.get("tools") or ()))
        return self._build_observation(reply, TOOLS_TEMPLATE.format(tools) if tools else "")

    async def step(self, actions: JointAction) -> Step:
        """Send the team's calls or message to the process, or the user's message."""
        action = actions.for_role(USER) if self.turn == "user" else actions.answer
        text = action.message if action else ""
        ends = self.turn == "user" and END_TEXT in text
        message = {"do": "say", "speaker": self.turn, "text": text, "answered": bool(self.serves), "ends": ends}
        reply = await self._request(message)
        if "done" in reply:
            return self._final_step(reply["done"])
        if self.turn == "agent" and action:
            other_agents = [item.agent for item in actions.actions if item.agent != action.agent]
            self._pending_views = dict.fromkeys(other_agents, f"Agent: {text}")
        observation = self._build_observation(reply)
        views: dict[str, str] = {}
        if self.turn == "agent":
            views, self._pending_views = self._pending_views, {}
        return Step(Observation(observation.text, views, observation.turn), 0.0)

    async def close(self) -> None:
        """Drop the conversation in the process."""
        if self._running is not None:
            self._running.send_only({"do": "drop", "episode": self.key})

    def _final_step(self, outcome: object) -> Step:
        if not isinstance(outcome, dict):
            raise EnvProcessError(f"toolsandbox gave {outcome!r:.100}, which is no score")
        reward = finite_number(outcome, "reward")
        ended = outcome.get("ended") is True
        return Step(
            Observation(""),
            reward,
            terminated=ended,
            truncated=not ended,
            success=reward >= self.success_threshold,
            info={"measures": clean_metrics(outcome.get("metrics"))},
        )

    async def _request(self, message: Mapping[str, Any]) -> dict[str, Any]:
        answer: dict[str, Any] = await self._running.request_async({**message, "episode": self.key}, self.timeout)
        return answer

    def _build_observation(self, reply: Mapping[str, Any], extra: str = "") -> Observation:
        messages, turn = reply.get("messages"), reply.get("turn")
        if not isinstance(messages, list) or turn not in ("agent", "user"):
            raise EnvProcessError(f"toolsandbox gave {messages!r:.100} to {turn!r:.20}, which nobody can read")
        self.turn = turn
        lines = [f"{ROLE_PREFIXES.get(message['role'], '')}{message['content']}" for message in messages]
        if turn == "user" and self._user_prompt:
            lines, self._user_prompt = [self._user_prompt, *lines], ""
        roles = () if not self.serves else (USER,) if turn == "user" else self.serves
        return Observation("\n\n".join(part for part in ("\n".join(lines), extra) if part), turn=roles)
