"""The team's side in a ToolSandbox conversation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

from marft.common.types import JointAction, Observation, Step
from marft_envs.apart.process import Apart, EnvironmentApartError, number_in
from marft_envs.apart.words import TOOLS, described, measures

USER = "user"  # role of the agent that plays the user
ENDS = "end_conversation"  # text with which a user ends the conversation, as instructed by the package
SPEAKERS = {"user": "User: ", "agent": "Agent: ", "execution_environment": "Tool: "}
NUMBERS = count()  # episode counter of this process


class Talk:
    """One scenario.

    Args:
        apart: the environment process.
        name: name of the scenario.
        seed: seed of the scenario.
        serves: roles that serve an agent as user; () for a user that leaves after the first message to it.
        solved_from: minimum similarity for success.
        patience: timeout of a request, in seconds.
    """

    def __init__(
        self, apart: Apart, name: str, seed: int, serves: Sequence[str], solved_from: float, patience: float
    ) -> None:
        self.apart, self.name, self.seed = apart, name, seed
        self.serves, self.solved_from, self.patience = tuple(serves), solved_from, patience
        self.key = f"{next(NUMBERS)}"
        self.turn = "agent"
        self._brief = ""
        self._missed: dict[str, str] = {}  # by role: the agent's last message to the user, not yet shown to the role
        self._running: Any = None

    async def reset(self) -> Observation:
        """Start the scenario and return the user's request and the available tools."""
        self._running = self.apart.current()
        shown = await self._ask({"do": "begin", "name": self.name, "seed": self.seed})
        self._brief = str(shown.get("brief", ""))
        tools = "\n".join(map(described, shown.get("tools") or ()))
        return self._observed(shown, TOOLS.format(tools) if tools else "")

    async def step(self, actions: JointAction) -> Step:
        """Send the team's calls or message to the process, or the user's message."""
        said = actions.of(USER) if self.turn == "user" else actions.answer
        text = said.message if said else ""
        ends = self.turn == "user" and ENDS in text
        question = {"do": "say", "speaker": self.turn, "text": text, "answered": bool(self.serves), "ends": ends}
        shown = await self._ask(question)
        if "done" in shown:
            return self._scored(shown["done"])
        if self.turn == "agent" and said:
            others = [one.agent for one in actions.actions if one.agent != said.agent]
            self._missed = dict.fromkeys(others, f"Agent: {text}")
        observation = self._observed(shown)
        views: dict[str, str] = {}
        if self.turn == "agent":
            views, self._missed = self._missed, {}
        return Step(Observation(observation.text, views, observation.turn), 0.0)

    async def close(self) -> None:
        """Drop the conversation in the process."""
        if self._running is not None:
            self._running.forget({"do": "drop", "episode": self.key})

    def _scored(self, done: object) -> Step:
        if not isinstance(done, dict):
            raise EnvironmentApartError(f"toolsandbox gave {done!r:.100}, which is no score")
        reward = number_in(done, "reward")
        ended = done.get("ended") is True
        return Step(
            Observation(""), reward, terminated=ended, truncated=not ended, success=reward >= self.solved_from,
            info={"measures": measures(done.get("metrics"))},
        )  # fmt: skip

    async def _ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        answer: dict[str, Any] = await self._running.asked({**question, "episode": self.key}, self.patience)
        return answer

    def _observed(self, shown: Mapping[str, Any], more: str = "") -> Observation:
        messages, turn = shown.get("messages"), shown.get("turn")
        if not isinstance(messages, list) or turn not in ("agent", "user"):
            raise EnvironmentApartError(f"toolsandbox gave {messages!r:.100} to {turn!r:.20}, which nobody can read")
        self.turn = turn
        lines = [f"{SPEAKERS.get(message['role'], '')}{message['content']}" for message in messages]
        if turn == "user" and self._brief:
            lines, self._brief = [self._brief, *lines], ""
        roles = () if not self.serves else (USER,) if turn == "user" else self.serves
        return Observation("\n\n".join(part for part in ("\n".join(lines), more) if part), turn=roles)
