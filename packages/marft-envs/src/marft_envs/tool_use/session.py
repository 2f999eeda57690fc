"""Session for a conversation: the team acts and uses tools, and the user replies until the user ends it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from marft.common.texts import LONGEST, cut, one_line
from marft.common.types import Action, JointAction, Observation, Step
from marft_envs.tool_use.checking import Checker, Verdict
from marft_envs.tool_use.toolbox import Call, Ledger, writing
from marft_envs.tool_use.users import STOP, User

USER = "user"  # role of the agent that plays the user
AGREES = {"yes", "confirm", "confirmed", "agree", "agreed", "ok", "okay", "sure"}
REFUSES = {"no", "not", "don't", "never", "wait"}


class Conversation:
    """Single attempt at a task.

    Args:
        toolbox: object whose methods are the tools.
        tools: names of the task's tools.
        checker: checker of the conversation.
        user: simulated user.
        rules: extra text in the first observation, by role.
        most: maximum user turns; then the episode is truncated.
        reference: names of the tools in the reference calls.
        whole: True for a reward of 1 or 0 per task, False for a fraction by parts.
        asks: True to refuse writes until the user agrees.
        brief: prompt of the agent that plays the user; "" for a simulated user.
        endings: markers with which the user ends the conversation.
        last: names of tools that end the conversation at once. The team's message in that turn is not delivered.
    """

    def __init__(
        self, toolbox: Any, tools: Sequence[str], checker: Checker, user: User, *, rules: Mapping[str, str], most: int,
        reference: Sequence[str], whole: bool, asks: bool, brief: str = "",
        endings: Sequence[str] = (STOP,), last: Sequence[str] = (),
    ) -> None:  # fmt: skip
        self.tools, self.checker, self.user = tuple(tools), checker, user
        self.rules, self.most, self.whole, self.brief = rules, most, whole, brief
        self.world, self.endings = toolbox, endings
        self.toolbox = Ledger(toolbox, lambda: self.agreed or not asks, last)
        self.agreed = user.agreed and not brief
        self.turns, self.last = 0, 0.0
        self.reference, self.writes = tuple(reference), writing(type(toolbox))
        self._heard = 0  # calls already reported

    async def reset(self) -> Observation:
        """Return the user's first message, with the rules or the user's prompt for their roles."""
        views = {**self.rules, **({USER: self.brief} if self.brief else {})}
        return Observation(f"User: {one_line(self.user.opening())}", views)

    async def step(self, actions: JointAction) -> Step:
        """Deliver the team's message to the user, after its tool calls."""
        right = self._right_tools()
        said = "" if self.toolbox.ended else _said(actions)
        self.turns += 1
        answer = STOP if self.toolbox.ended else self._answered(actions, said)
        over, cut = any(ending in answer for ending in self.endings), self.turns >= self.most
        verdict = self.checker.after(said)
        solved = over and self.user.served and verdict.right
        observation = Observation(f"User: {shown(answer)}", self._reports(actions, said))
        return Step(
            observation, self._reward(verdict, over or cut, solved), terminated=over, truncated=cut and not over,
            success=solved if over or cut else None,
            info={
                "progress": verdict.done, "right_tools": right, "allowed_tools": self._allowed(actions),
                "measures": self._measures(),
            },
        )  # fmt: skip

    async def close(self) -> None:
        """No-op: the session holds no resources."""

    def _answered(self, actions: JointAction, said: str) -> str:
        if not self.brief:
            answer = self.user.answer(said)
            self.agreed = self.user.agreed
            return answer
        spoken = last_of(actions, USER)
        answer = spoken.text.strip() if spoken else ""
        self.agreed = agrees(answer)
        return answer

    def _reward(self, verdict: Verdict, at_end: bool, solved: bool) -> float:
        """Return the reward for a step.

        With ``whole``, the reward is 1 at the end of a solved task. Else it is the step's increase in the completed
        fraction. If a wrong change was made and the task ends unsolved, the last step takes the total back.
        """
        if self.whole:
            return float(solved)
        gained, self.last = verdict.done - self.last, verdict.done
        return gained - verdict.done if at_end and not solved and verdict.spoilt else gained

    def _right_tools(self) -> list[str]:
        """Return the tools in the reference: readers, and writers after the user's agreement."""
        return sorted({name for name in self.reference if name not in self.writes or self.agreed})

    def _allowed(self, actions: JointAction) -> dict[str, list[str]]:
        """Return the allowed tools by agent: every tool for the agent that answers the user, none for the rest."""
        answering = actions.answer.agent if actions.answer else ""
        return {action.agent: list(self.tools) if action.agent == answering else [] for action in actions.actions}

    def _measures(self) -> dict[str, float]:
        return {
            "user_turns": float(self.turns),
            "tool_calls": float(len(self.toolbox.calls)),
            "policy_violations": float(len(self.world.broken) + self.toolbox.unasked),
        }

    def _reports(self, actions: JointAction, said: str) -> dict[str, str]:
        """Return a report with calls and message, for agents that did not answer the user."""
        calls, self._heard = self.toolbox.calls[self._heard :], len(self.toolbox.calls)
        answering = actions.answer.agent if actions.answer else ""
        report = "\n".join([*map(_spoken, calls), f"Agent: {shown(said)}"])
        return {one.agent: report for one in actions.actions if one.agent not in (answering, USER)}


def shown(text: str) -> str:
    """Return a message on a single line, shortened to a maximum length."""
    return cut(one_line(text), LONGEST)


def last_of(actions: JointAction, role: str) -> Action | None:
    """Return an agent's last action in a step; None if absent."""
    return next((action for action in reversed(actions.actions) if action.agent == role), None)


def agrees(text: str) -> bool:
    """Return True if a user's message expresses agreement."""
    words = set(re.findall(r"[\w']+", text.lower()))
    return bool(AGREES & words) and not REFUSES & words


def _said(actions: JointAction) -> str:
    return actions.answer.message.strip() if actions.answer and actions.answer.agent != USER else ""


def _spoken(call: Call) -> str:
    values = ", ".join(map(str, call.arguments.values()))
    return shown(f"{call.name}({values}){f': {call.error}' if call.error else ''}")
