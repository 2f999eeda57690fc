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

from marft.common.types import ToolCall
from marft.envs.scripts import Cue, Line, Script
from marft_envs.tool_use.goals import Calls, Goal, Identity
from marft_envs.tool_use.session import USER
from marft_envs.tool_use.slots import names_all
from marft_envs.tool_use.users import PATIENCE, scripted

QUESTIONS = {
    "email": "What is your e-mail?", "user": "What is your user id?", "order": "Which order?",
    "reservation": "Which reservation?", "item": "Which item?", "reason": "What is the reason?",
    "payment": "Which payment method?", "address": "What is the address?", "insurance": "What about the insurance?",
    "passenger": "Who is the passenger?",
}  # fmt: skip
HELLO = "How can I help?"
MORE = "Anything else?"
NOTHING = "I cannot find that."
WHAT = re.compile(r"^User: (.*)$", re.MULTILINE)
OTHERS = re.compile(r"^Agent: (.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Move:
    """Next move in a step: ask for slots, check and offer goals, execute goals, or close."""

    kind: str  # "Ask", "Check", "Do" or "Close"
    about: tuple[str, ...] = ()  # slots or aims

    def __str__(self) -> str:
        return f"{self.kind}: {'; '.join(self.about)}." if self.about else f"{self.kind}."


class Talk:
    """Conversation from an agent's point of view."""

    def __init__(self, cue: Cue) -> None:
        self.goals = [Goal(**goal) for goal in cue.task.data["goals"]]
        self.identity = Identity(**cue.task.data["identity"])
        self.batches: Sequence[Sequence[int]] = cue.task.data["batches"]
        shown = [str(message["content"]) for message in cue.chat if message["role"] == "user"]
        self.user = [line for text in shown for line in WHAT.findall(text)]
        own = [str(message["content"]) for message in cue.chat if message["role"] == "assistant"]
        self.said = "\n".join([*own, *(line for text in shown for line in OTHERS.findall(text))])
        self.looked = any(message["role"] == "tool" for message in cue.chat)
        self.plan = shown[-1].rpartition("Message from planner:\n")[2].partition("\n\n")[0] if shown else ""
        self.planned = bool(shown) and "Message from planner:\n" in shown[-1]

    @property
    def open(self) -> list[Goal]:
        """Return the goals stated so far and not yet settled."""
        batches = self.batches[: 1 + sum(line.startswith("Also:") for line in self.user)]
        return [self.goals[index] for batch in batches for index in batch if self.goals[index].report not in self.said]

    def missing(self) -> tuple[str, ...]:
        """Return the needed slots that the user has not stated."""
        heard = "\n".join(self.user)
        wanted = [(slot, self.identity.facts[slot]) for slot in self.identity.needs]
        wanted += [(slot, goal.facts[slot]) for goal in self.open for slot in goal.withheld]
        return tuple(dict.fromkeys(slot for slot, fact in wanted if not names_all(heard, [fact])))

    def best(self) -> Move:
        """Return the best move."""
        missing, left = self.missing(), self.open
        if missing:
            return Move("Ask", missing)
        offered = [goal.aim for goal in left if goal.offer and goal.offer in self.said]
        if offered and self.user[-1].startswith("Yes"):
            return Move("Do", tuple(offered))
        return Move("Check", tuple(goal.aim for goal in left)) if left else Move("Close")

    def planner_says(self) -> Move | None:
        """Parse the planner's move; None if its text is not a move."""
        for kind in ("Ask", "Check", "Do"):
            if self.plan.startswith(f"{kind}: "):
                return Move(kind, tuple(self.plan.removeprefix(f"{kind}: ").removesuffix(".").split("; ")))
        return Move("Close") if self.plan == "Close." else None


def script(skill: float) -> Script:
    """Return a scripted policy that plays each turn well with probability ``skill``."""

    def says(cue: Cue) -> str | Line:
        if cue.role == USER:
            return _user(cue)
        talk = Talk(cue)
        works = cue.random.random() < skill
        if cue.role == "planner":
            return str(talk.best()) if works else _slipped_plan(cue.random, talk)
        if cue.chat[-1]["role"] == "tool":
            return _reported(talk, cue)
        move = talk.planner_says() if talk.planned else talk.best()
        if move is None:
            return HELLO
        return _acted(talk, move) if works else _slipped(cue.random, talk, move)

    return says


def _user(cue: Cue) -> str:
    """Return the scripted user's reply to the conversation so far."""
    user = scripted(cue.task.data, PATIENCE)
    shown = [str(message["content"]) for message in cue.chat if message["role"] == "user"]
    said = [text.rpartition("Message from ")[2].partition("\n")[2] for text in shown if "Message from " in text]
    answers = [user.answer(one) for one in said]
    return answers[-1] if answers else user.opening()


def _slipped_plan(random: Random, talk: Talk) -> str:
    """Draw a planner's mistake."""
    best = talk.best()
    slips = [f"The user says: {talk.user[-1]}", "Close."]
    if best.kind == "Check":
        slips.append(str(Move("Do", best.about)))
    if len(best.about) > 1:
        slips.append(str(Move(best.kind, best.about[:1])))
    return random.choice(slips)


def _acted(talk: Talk, move: Move) -> str | Line:
    """Return an agent's output for a move: tool calls, or a message."""
    if move.kind == "Ask":
        return " ".join(QUESTIONS.get(slot, f"What is the {slot}?") for slot in move.about)
    goals = _goals(talk, move)
    calls: Calls = []
    if move.kind == "Check":
        calls = [*([] if talk.looked else talk.identity.reads), *(call for goal in goals for call in goal.reads)]
    elif move.kind == "Do":
        calls = [call for goal in goals for call in goal.writes]
    if calls:
        return Line("", tuple(_call(name, arguments) for name, arguments in calls))
    return _told(goals, move) if goals else MORE


def _reported(talk: Talk, cue: Cue) -> str:
    """Return the agent's message after its tool results."""
    errors = [str(message["content"]) for message in _latest(cue.chat) if "Error" in str(message["content"])]
    move = (talk.planner_says() if talk.planned else None) or talk.best()
    goals = _goals(talk, move)
    if any("agreed" in error for error in errors) or (move.kind == "Do" and not goals):
        return " ".join(f"Shall I go on: {goal.aim}?" for goal in goals)
    return NOTHING if errors else _told(goals, move)


def _told(goals: Sequence[Goal], move: Move) -> str:
    if move.kind == "Do":
        return " ".join(goal.report for goal in goals)
    settled = [goal.report for goal in goals if not goal.offer]
    return " ".join([*settled, *(goal.offer for goal in goals if goal.offer)])


def _slipped(random: Random, talk: Talk, move: Move) -> str | Line:
    """Draw an agent's mistake."""
    goals = _goals(talk, move)
    slips: list[str | Line] = [HELLO, MORE]
    done = _acted(talk, move)
    if isinstance(done, Line):
        slips.append(Line("", tuple(_wrong(random, call) for call in done.calls)))
        slips.append(" ".join(goal.report for goal in goals))
        if move.kind == "Check" and any(goal.writes for goal in goals):
            slips.append(_acted(talk, Move("Do", move.about)))
    return random.choice(slips)


def _wrong(random: Random, call: ToolCall) -> ToolCall:
    """Change a digit in an id of the call."""
    places = [match.start() for match in re.finditer(r"\d", call.arguments)]
    if not places:
        return call
    at = random.choice(places)
    other = random.choice([digit for digit in "123456789" if digit != call.arguments[at]])
    return ToolCall(call.name, f"{call.arguments[:at]}{other}{call.arguments[at + 1 :]}")


def _goals(talk: Talk, move: Move) -> list[Goal]:
    return [goal for goal in talk.open if goal.aim in move.about]


def _call(name: str, arguments: Mapping[str, Any]) -> ToolCall:
    return ToolCall(name, json.dumps(arguments))


def _latest(chat: Sequence[Mapping[str, object]]) -> list[Mapping[str, object]]:
    """Return the latest tool results."""
    found = []
    for message in reversed(chat):
        if message["role"] != "tool":
            break
        found.append(message)
    return found
