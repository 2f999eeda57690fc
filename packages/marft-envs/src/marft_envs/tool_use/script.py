"""Scripted policy for planner, agent, solver and user.

The solver does both the planner's and the agent's work.

    planner   Ask: order.   Check: cancel W482.          Do: cancel W482.
    agent     Which order?  look(W482) Cancel W482 …?    cancel(W482) Done, 39 for W482.

Mistakes imitate a weak model. It repeats the user's words, forgets the second of two requests, acts before the user
agrees, uses a wrong id, or reports an action that it did not take.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from marft.agents.prompt_messages import split_messages
from marft.common.types import ToolCall
from marft.envs.scripted_policy import PolicyInput, ScriptedPolicy, ScriptedReply
from marft_envs.tool_use.goals import Calls, Goal, Identity, contains_all
from marft_envs.tool_use.users import DEFAULT_PATIENCE, USER, make_scripted_user

QUESTIONS = {
    "email": "What is your e-mail?",
    "user": "What is your user id?",
    "order": "Which order?",
    "reservation": "Which reservation?",
    "item": "Which item?",
    "reason": "What is the reason?",
    "payment": "Which payment method?",
    "address": "What is the address?",
    "insurance": "What about the insurance?",
    "passenger": "Who is the passenger?",
}
GREETING = "How can I help?"
FURTHER_QUESTION = "Anything else?"
NOT_FOUND = "I cannot find that."
USER_LINE = re.compile(r"^User: (.*)$", re.MULTILINE)
AGENT_LINE = re.compile(r"^Agent: (.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Move:
    """Next move in a step: ask for slots, check and offer goals, execute goals, or close."""

    kind: str  # "Ask", "Check", "Do" or "Close"
    targets: tuple[str, ...] = ()  # slots or aims

    def __str__(self) -> str:
        return f"{self.kind}: {'; '.join(self.targets)}." if self.targets else f"{self.kind}."


class ConversationView:
    """Conversation from an agent's point of view."""

    def __init__(self, cue: PolicyInput) -> None:
        self.goals = [Goal(**goal) for goal in cue.task.data["goals"]]
        self.identity = Identity(**cue.task.data["identity"])
        self.batches: Sequence[Sequence[int]] = cue.task.data["batches"]
        user_messages = [str(message["content"]) for message in cue.messages if message["role"] == "user"]
        self.user_lines = [line for text in user_messages for line in USER_LINE.findall(text)]
        own_messages = [str(message["content"]) for message in cue.messages if message["role"] == "assistant"]
        self.agent_text = "\n".join(
            [*own_messages, *(line for text in user_messages for line in AGENT_LINE.findall(text))]
        )
        self.has_tool_results = any(message["role"] == "tool" for message in cue.messages)
        received = split_messages(user_messages[-1])[1] if user_messages else []
        plans = [message.text.partition("\n\n")[0] for message in received if message.role == "planner"]
        self.has_plan, self.plan = bool(plans), plans[-1] if plans else ""

    @property
    def open_goals(self) -> list[Goal]:
        """Return the goals stated so far and not yet settled."""
        batches = self.batches[: 1 + sum(line.startswith("Also:") for line in self.user_lines)]
        return [
            self.goals[index] for batch in batches for index in batch if self.goals[index].report not in self.agent_text
        ]

    def missing_slots(self) -> tuple[str, ...]:
        """Return the needed slots that the user has not stated."""
        user_text = "\n".join(self.user_lines)
        needed_facts = [(slot, self.identity.facts[slot]) for slot in self.identity.needs]
        needed_facts += [(slot, goal.facts[slot]) for goal in self.open_goals for slot in goal.withheld]
        return tuple(dict.fromkeys(slot for slot, fact in needed_facts if not contains_all(user_text, [fact])))

    def best_move(self) -> Move:
        """Return the best move."""
        missing, open_goals = self.missing_slots(), self.open_goals
        if missing:
            return Move("Ask", missing)
        offered_aims = [goal.aim for goal in open_goals if goal.offer and goal.offer in self.agent_text]
        if offered_aims and self.user_lines[-1].startswith("Yes"):
            return Move("Do", tuple(offered_aims))
        return Move("Check", tuple(goal.aim for goal in open_goals)) if open_goals else Move("Close")

    def parse_plan(self) -> Move | None:
        """Parse the planner's move; None if its text is not a move."""
        for kind in ("Ask", "Check", "Do"):
            if self.plan.startswith(f"{kind}: "):
                return Move(kind, tuple(self.plan.removeprefix(f"{kind}: ").removesuffix(".").split("; ")))
        return Move("Close") if self.plan == "Close." else None


def make_script(skill: float) -> ScriptedPolicy:
    """Return a scripted policy that plays each turn well with probability ``skill``."""

    def play_turn(cue: PolicyInput) -> str | ScriptedReply:
        if cue.role == USER:
            return _user_reply(cue)
        conversation = ConversationView(cue)
        is_good = cue.random.random() < skill
        if cue.role == "planner":
            return str(conversation.best_move()) if is_good else _draw_wrong_plan(cue.random, conversation)
        if cue.messages[-1]["role"] == "tool":
            return _report_results(conversation, cue)
        move = conversation.parse_plan() if conversation.has_plan else conversation.best_move()
        if move is None:
            return GREETING
        return _perform_move(conversation, move) if is_good else _draw_mistake(cue.random, conversation, move)

    return play_turn


def _user_reply(cue: PolicyInput) -> str:
    """Return the scripted user's reply to the conversation so far."""
    simulated_user = make_scripted_user(cue.task.data, DEFAULT_PATIENCE)
    user_messages = [str(message["content"]) for message in cue.messages if message["role"] == "user"]
    received = filter(None, (split_messages(text)[1] for text in user_messages))
    answers = [simulated_user.reply(messages[-1].text) for messages in received]
    return answers[-1] if answers else simulated_user.first_message()


def _draw_wrong_plan(random: Random, conversation: ConversationView) -> str:
    """Draw a planner's mistake."""
    best = conversation.best_move()
    mistakes = [f"The user says: {conversation.user_lines[-1]}", "Close."]
    if best.kind == "Check":
        mistakes.append(str(Move("Do", best.targets)))
    if len(best.targets) > 1:
        mistakes.append(str(Move(best.kind, best.targets[:1])))
    return random.choice(mistakes)


def _perform_move(conversation: ConversationView, move: Move) -> str | ScriptedReply:
    """Return an agent's output for a move: tool calls, or a message."""
    if move.kind == "Ask":
        return " ".join(QUESTIONS.get(slot, f"What is the {slot}?") for slot in move.targets)
    goals = _move_goals(conversation, move)
    calls: Calls = []
    if move.kind == "Check":
        calls = [
            *([] if conversation.has_tool_results else conversation.identity.reads),
            *(call for goal in goals for call in goal.reads),
        ]
    elif move.kind == "Do":
        calls = [call for goal in goals for call in goal.writes]
    if calls:
        return ScriptedReply("", tuple(_make_call(name, arguments) for name, arguments in calls))
    return _format_report(goals, move) if goals else FURTHER_QUESTION


def _report_results(conversation: ConversationView, cue: PolicyInput) -> str:
    """Return the agent's message after its tool results."""
    errors = [
        str(message["content"]) for message in _latest_results(cue.messages) if "Error" in str(message["content"])
    ]
    move = (conversation.parse_plan() if conversation.has_plan else None) or conversation.best_move()
    goals = _move_goals(conversation, move)
    if any("agreed" in error for error in errors) or (move.kind == "Do" and not goals):
        return " ".join(f"Shall I go on: {goal.aim}?" for goal in goals)
    return NOT_FOUND if errors else _format_report(goals, move)


def _format_report(goals: Sequence[Goal], move: Move) -> str:
    if move.kind == "Do":
        return " ".join(goal.report for goal in goals)
    reports = [goal.report for goal in goals if not goal.offer]
    return " ".join([*reports, *(goal.offer for goal in goals if goal.offer)])


def _draw_mistake(random: Random, conversation: ConversationView, move: Move) -> str | ScriptedReply:
    """Draw an agent's mistake."""
    goals = _move_goals(conversation, move)
    mistakes: list[str | ScriptedReply] = [GREETING, FURTHER_QUESTION]
    right_output = _perform_move(conversation, move)
    if isinstance(right_output, ScriptedReply):
        mistakes.append(ScriptedReply("", tuple(_corrupt_call(random, call) for call in right_output.calls)))
        mistakes.append(" ".join(goal.report for goal in goals))
        if move.kind == "Check" and any(goal.writes for goal in goals):
            mistakes.append(_perform_move(conversation, Move("Do", move.targets)))
    return random.choice(mistakes)


def _corrupt_call(random: Random, call: ToolCall) -> ToolCall:
    """Change a digit in an id of the call."""
    places = [match.start() for match in re.finditer(r"\d", call.arguments)]
    if not places:
        return call
    at = random.choice(places)
    new_digit = random.choice([digit_option for digit_option in "123456789" if digit_option != call.arguments[at]])
    return ToolCall(call.name, f"{call.arguments[:at]}{new_digit}{call.arguments[at + 1 :]}")


def _move_goals(conversation: ConversationView, move: Move) -> list[Goal]:
    return [goal for goal in conversation.open_goals if goal.aim in move.targets]


def _make_call(name: str, arguments: Mapping[str, Any]) -> ToolCall:
    return ToolCall(name, json.dumps(arguments))


def _latest_results(chat: Sequence[Mapping[str, object]]) -> list[Mapping[str, object]]:
    """Return the latest tool results."""
    results = []
    for message in reversed(chat):
        if message["role"] != "tool":
            break
        results.append(message)
    return results
