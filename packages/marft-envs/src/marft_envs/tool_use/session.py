"""Session for a conversation: the team acts and uses tools, and the user replies until the user ends it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from marft.common.texts import MAX_ERROR_LENGTH, single_line, truncate
from marft.common.types import Action, JointAction, Observation, Step
from marft_envs.tool_use.checkers import Checker, TaskProgress
from marft_envs.tool_use.toolbox import RecordedCall, ToolCallRecorder, write_tool_names
from marft_envs.tool_use.users import STOP, User

USER = "user"  # role of the agent that plays the user
CONFIRM_WORDS = {"yes", "confirm", "confirmed", "agree", "agreed", "ok", "okay", "sure"}
REFUSE_WORDS = {"no", "not", "don't", "never", "wait"}


class ToolUseSession:
    """Single attempt at a task.

    Args:
        toolbox: object whose methods are the tools.
        tools: names of the task's tools.
        checker: checker of the conversation.
        user: simulated user.
        rules: extra text in the first observation, by role.
        max_turns: maximum user turns; then the episode is truncated.
        reference: names of the tools in the reference calls.
        all_or_nothing: True for a reward of 1 or 0 per task, False for a fraction by parts.
        needs_confirmation: True to refuse writes until the user agrees.
        user_prompt: prompt of the agent that plays the user; "" for a simulated user.
        end_markers: markers with which the user ends the conversation.
        ending_tools: names of tools that end the conversation at once. The team's message in that turn is not
            delivered.
    """

    def __init__(
        self,
        toolbox: Any,
        tools: Sequence[str],
        checker: Checker,
        user: User,
        *,
        rules: Mapping[str, str],
        max_turns: int,
        reference: Sequence[str],
        all_or_nothing: bool,
        needs_confirmation: bool,
        user_prompt: str = "",
        end_markers: Sequence[str] = (STOP,),
        ending_tools: Sequence[str] = (),
    ) -> None:
        self.tools, self.checker, self.user = tuple(tools), checker, user
        self.rules, self.max_turns, self.all_or_nothing, self.user_prompt = (
            rules,
            max_turns,
            all_or_nothing,
            user_prompt,
        )
        self.tool_object, self.end_markers = toolbox, end_markers
        self.toolbox = ToolCallRecorder(toolbox, lambda: self.confirmed or not needs_confirmation, ending_tools)
        self.confirmed = user.confirmed and not user_prompt
        self.turns, self.last_progress = 0, 0.0
        self.reference, self.write_tools = tuple(reference), write_tool_names(type(toolbox))
        self._reported_calls = 0  # calls already reported

    async def reset(self) -> Observation:
        """Return the user's first message, with the rules or the user's prompt for their roles."""
        views = {**self.rules, **({USER: self.user_prompt} if self.user_prompt else {})}
        return Observation(f"User: {single_line(self.user.first_message())}", views)

    async def step(self, actions: JointAction) -> Step:
        """Deliver the team's message to the user, after its tool calls."""
        right_tools = self._right_tools()
        message = "" if self.toolbox.ended else _answer_text(actions)
        self.turns += 1
        answer = STOP if self.toolbox.ended else self._user_answer(actions, message)
        is_over, at_limit = any(ending in answer for ending in self.end_markers), self.turns >= self.max_turns
        verdict = self.checker.check_turn(message)
        solved = is_over and self.user.is_satisfied and verdict.solved
        observation = Observation(f"User: {shorten_message(answer)}", self._agent_reports(actions, message))
        return Step(
            observation,
            self._reward(verdict, is_over or at_limit, solved),
            terminated=is_over,
            truncated=at_limit and not is_over,
            success=solved if is_over or at_limit else None,
            info={
                "progress": verdict.completed,
                "right_tools": right_tools,
                "allowed_tools": self._allowed_tools(actions),
                "measures": self._metrics(),
            },
        )

    async def close(self) -> None:
        """No-op: the session holds no resources."""

    def _user_answer(self, actions: JointAction, message: str) -> str:
        if not self.user_prompt:
            answer = self.user.reply(message)
            self.confirmed = self.user.confirmed
            return answer
        user_action = last_action(actions, USER)
        answer = user_action.text.strip() if user_action else ""
        self.confirmed = is_confirmation(answer)
        return answer

    def _reward(self, verdict: TaskProgress, at_end: bool, solved: bool) -> float:
        """Return the reward for a step.

        With ``all_or_nothing``, the reward is 1 at the end of a solved task. Else it is the step's increase in the
        completed fraction. If a wrong change was made and the task ends unsolved, the last step takes the total back.
        """
        if self.all_or_nothing:
            return float(solved)
        increase, self.last_progress = verdict.completed - self.last_progress, verdict.completed
        return increase - verdict.completed if at_end and not solved and verdict.has_wrong_change else increase

    def _right_tools(self) -> list[str]:
        """Return the tools in the reference: readers, and writers after the user's agreement."""
        return sorted({name for name in self.reference if name not in self.write_tools or self.confirmed})

    def _allowed_tools(self, actions: JointAction) -> dict[str, list[str]]:
        """Return the allowed tools by agent: every tool for the agent that answers the user, none for the rest."""
        answering_agent = actions.answer.agent if actions.answer else ""
        return {action.agent: list(self.tools) if action.agent == answering_agent else [] for action in actions.actions}

    def _metrics(self) -> dict[str, float]:
        return {
            "user_turns": float(self.turns),
            "tool_calls": float(len(self.toolbox.calls)),
            "policy_violations": float(len(self.tool_object.violations) + self.toolbox.unconfirmed_writes),
        }

    def _agent_reports(self, actions: JointAction, message: str) -> dict[str, str]:
        """Return a report with calls and message, for agents that did not answer the user."""
        calls, self._reported_calls = self.toolbox.calls[self._reported_calls :], len(self.toolbox.calls)
        answering_agent = actions.answer.agent if actions.answer else ""
        report = "\n".join([*map(_format_call, calls), f"Agent: {shorten_message(message)}"])
        return {action.agent: report for action in actions.actions if action.agent not in (answering_agent, USER)}


def shorten_message(text: str) -> str:
    """Return a message on a single line, shortened to a maximum length."""
    return truncate(single_line(text), MAX_ERROR_LENGTH)


def last_action(actions: JointAction, role: str) -> Action | None:
    """Return an agent's last action in a step; None if absent."""
    return next((action for action in reversed(actions.actions) if action.agent == role), None)


def is_confirmation(text: str) -> bool:
    """Return True if a user's message expresses agreement."""
    words = set(re.findall(r"[\w']+", text.lower()))
    return bool(CONFIRM_WORDS & words) and not REFUSE_WORDS & words


def _answer_text(actions: JointAction) -> str:
    return actions.answer.message.strip() if actions.answer and actions.answer.agent != USER else ""


def _format_call(call: RecordedCall) -> str:
    values = ", ".join(map(str, call.arguments.values()))
    return shorten_message(f"{call.name}({values}){f': {call.error}' if call.error else ''}")
