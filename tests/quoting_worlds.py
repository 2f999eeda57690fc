"""Conversations of three agents whose program quotes, cuts and interleaves what they say, and who saw whom."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field

ROLES = ("planner", "critic", "writer")
WORDS = [
    "amber",
    "basin",
    "candle",
    "dagger",
    "ember",
    "falcon",
    "garnet",
    "harbor",
    "island",
    "jacket",
    "kernel",
    "lantern",
    "marble",
    "needle",
    "orchid",
    "pepper",
    "quarry",
    "ribbon",
    "saddle",
    "timber",
    "umbrella",
    "velvet",
    "walnut",
    "yonder",
    "zephyr",
    "anchor",
    "bottle",
    "copper",
    "desert",
    "engine",
    "feather",
]
SHORT = ("42", "yes", "no", "17.5", "B")
LABELS = ("Message from {role}:\n{text}", "{role} said: {text}", "## {role}\n{text}", "<{role}>\n{text}\n</{role}>")
RULES = (
    "Reply with yes or no, or with a number such as 42.",
    "First think, then say A or B.",
    "Work in turns; whoever is sure says so.",
)


@dataclass(frozen=True)
class Turn:
    """What an agent is asked and says.

    Args:
        sees: numbers of the earlier turns that its prompt shows, or that those quote.
        quotes: numbers of the turns that it quotes itself.
        whole: whether it can only be passed on as a whole.
    """

    role: str
    prompt: str
    text: str
    sees: frozenset[int]
    quotes: frozenset[int]
    drop_truncated: bool


@dataclass
class World:
    """A conversation that comes from a seed."""

    seed: int
    task: str = ""
    turns: list[Turn] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.pieces = [self.sentence(6, 12), f"Is it {' or '.join(SHORT)}?", self.sentence(5, 9)]
        self.task = self.rng.choice([" ", "\n", "\n\n"]).join(self.pieces)
        self.rule, self.label = self.rng.choice(RULES), self.rng.choice(LABELS)
        for _ in range(self.rng.randint(3, 7)):
            self.turns.append(self.turn())

    def sentence(self, least: int, most: int) -> str:
        words = [self.rng.choice(WORDS) for _ in range(self.rng.randint(least, most))]
        return " ".join(words).capitalize() + self.rng.choice(".!?")

    def turn(self) -> Turn:
        rng, count = self.rng, len(self.turns)
        role = rng.choice(ROLES)
        shown = sorted(rng.sample(range(count), rng.randint(0, min(3, count))))
        sees = frozenset(shown) | {other for number in shown for other in self.deep(number)}
        text, quotes, whole = self.said(shown)
        same = {n for n in sees if self.turns[n].text.strip(".!") == text.strip(".!")}  # said once more
        return Turn(role, self.prompt(shown), text, sees, quotes | same, whole)

    def deep(self, number: int) -> set[int]:
        """What a turn quotes, and what stands in that."""
        return {n for quoted in self.turns[number].quotes for n in {quoted, *self.deep(quoted)}}

    def said(self, shown: list[int]) -> tuple[str, frozenset[int], bool]:
        rng, own = self.rng, self.sentence(8, 14)
        kind = rng.choice(["own", "short", "task first", "task last", "piece", "quotes", "code", "long"])
        if kind == "short":
            return rng.choice(SHORT) + rng.choice(["", ".", "!"]), frozenset(), True
        if kind == "piece":
            return rng.choice(self.pieces), frozenset(), True
        if kind == "quotes" and shown:
            number = rng.choice(shown)
            return f"{own}\nThey say: {self.turns[number].text}\n{self.sentence(5, 8)}", frozenset([number]), True
        if kind == "task first":
            return f"The task is: {self.task}\n\n{own}", frozenset(), False
        if kind == "task last":
            return f"{own} For the question was:\n> {self.task}", frozenset(), False
        if kind == "code":
            return (
                f'{own}\n```python\nprint("{rng.choice(WORDS)}\\n")\n```\n\\frac{{1}}{{2}} "{rng.choice(WORDS)}"',
                frozenset(),
                False,
            )
        if kind == "long":
            return " ".join(self.sentence(8, 12) for _ in range(5)), frozenset(), False
        return own, frozenset(), False

    def prompt(self, shown: list[int]) -> str:
        parts = [self.label.format(role=self.turns[n].role, text=self.original_text(self.turns[n])) for n in shown]
        kind = self.rng.choice(["first", "last", "between", "none", "piece", "twice"])
        if kind == "piece":
            parts.insert(0, self.pieces[0] + " " + self.pieces[1])
        elif kind == "twice":
            parts = [self.task, *parts, f"Once more: {self.task}"]
        elif kind != "none":
            place = {"first": 0, "last": len(parts), "between": len(parts) // 2}[kind]
            parts.insert(place, self.task)
        return "\n\n".join([*parts, self.rule])

    def original_text(self, turn: Turn) -> str:
        rng, text = self.rng, turn.text
        how = rng.choice(["as it is", "as it is", "space", "json", "cut", "edited"])
        if how == "space":
            return "  " + text.replace("\n", "\n\n   ").replace(". ", ".\n") + "\n"
        if how == "json":
            return json.dumps({"from": turn.role, "content": text}, ensure_ascii=rng.random() < 0.5)
        if turn.drop_truncated or how in ("as it is", "json"):
            return text
        words = text.split(" ")
        if how == "cut":
            own = text.index("\n\n") + 2 if text.startswith("The task is") else 0
            return text[own : own + (len(text) - own) * 3 // 4] + " … (cut)"
        return " ".join("[…]" if n and n % 11 == 10 else word for n, word in enumerate(words))
