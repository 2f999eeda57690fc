"""One conversation: the team acts and uses its tools, the user answers, until the user ends it."""

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
    """One attempt at a task.

    Args:
        toolbox: whose methods are the tools.
        tools: names of those that the task has.
        checker: says how it stands.
        user: who is served.
        rules: by role, what agents are shown beside the first message.
        most: turns of the user after which it is cut off.
        reference: names of the tools of the reference calls.
        whole: whether the reward is 1 for a solved task alone, and not a share for its parts.
        asks: whether what writes is refused before the user has agreed.
        brief: what the agent that plays the user is told; "" where the user is simulated here.
        endings: what ends the conversation where a user says it.
        last: names of the tools that end it at once; what is said in that turn reaches nobody.
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
        self._heard = 0  # calls that were reported

    async def reset(self) -> Observation:
        """What the user says first, and to those whom it concerns the rules, or who they are to be."""
        views = {**self.rules, **({USER: self.brief} if self.brief else {})}
        return Observation(f"User: {one_line(self.user.opening())}", views)

    async def step(self, actions: JointAction) -> Step:
        """Take what the team says to the user, after all that its tools have done."""
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
        """Nothing is held."""

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
        """1 for a solved task at its end; or, by parts, what a step adds to the share that is done, taken back at the
        end where something else was changed too."""
        if self.whole:
            return float(solved)
        gained, self.last = verdict.done - self.last, verdict.done
        return gained - verdict.done if at_end and not solved and verdict.spoilt else gained

    def _right_tools(self) -> list[str]:
        """Tools of the reference: those that read, and once the user has agreed those that write."""
        return sorted({name for name in self.reference if name not in self.writes or self.agreed})

    def _allowed(self, actions: JointAction) -> dict[str, list[str]]:
        """Who answers the user may use all tools, the others none."""
        answering = actions.answer.agent if actions.answer else ""
        return {action.agent: list(self.tools) if action.agent == answering else [] for action in actions.actions}

    def _measures(self) -> dict[str, float]:
        return {
            "user_turns": float(self.turns),
            "tool_calls": float(len(self.toolbox.calls)),
            "policy_violations": float(len(self.world.broken) + self.toolbox.unasked),
        }

    def _reports(self, actions: JointAction, said: str) -> dict[str, str]:
        """What those who did not answer the user are shown of what was done and said."""
        calls, self._heard = self.toolbox.calls[self._heard :], len(self.toolbox.calls)
        answering = actions.answer.agent if actions.answer else ""
        report = "\n".join([*map(_spoken, calls), f"Agent: {shown(said)}"])
        return {one.agent: report for one in actions.actions if one.agent not in (answering, USER)}


def shown(text: str) -> str:
    """What was said as others read it: on one line, and cut where it is endless."""
    return cut(one_line(text), LONGEST)


def last_of(actions: JointAction, role: str) -> Action | None:
    """The last action of an agent in a step."""
    return next((action for action in reversed(actions.actions) if action.agent == role), None)


def agrees(text: str) -> bool:
    """Whether a user's words agree to something."""
    words = set(re.findall(r"[\w']+", text.lower()))
    return bool(AGREES & words) and not REFUSES & words


def _said(actions: JointAction) -> str:
    return actions.answer.message.strip() if actions.answer and actions.answer.agent != USER else ""


def _spoken(call: Call) -> str:
    values = ", ".join(map(str, call.arguments.values()))
    return shown(f"{call.name}({values}){f': {call.error}' if call.error else ''}")
