"""Scripted policy that uses only the text shown to each agent."""

from __future__ import annotations

import re
from collections.abc import Sequence
from random import Random
from typing import TYPE_CHECKING

from marft.envs.scripts import Cue
from marft_envs.relay.codes import decode, encode

if TYPE_CHECKING:
    from marft_envs.relay.environment import Relay

COPIES = 3  # copies to send if the number of words is unlimited
READY = "ready"
PART = re.compile(r"^Part: (.*)$", re.MULTILINE)
FROM = re.compile(r"^From (\w+): (.*)$", re.MULTILINE)


class RelayScript:
    """Scripted policy for all roles.

    Args:
        relay: the environment.
        skill: probability that the answerer uses the messages. A speaker sends its part with probability skill⁴,
            because useful messages are learned later.
    """

    def __init__(self, relay: Relay, skill: float) -> None:
        self.relay, self.skill = relay, skill

    def __call__(self, cue: Cue) -> str:
        """Return the agent's text."""
        part = _last(PART, cue.shown)
        came = dict(FROM.findall(cue.shown))
        if cue.role != self.relay.answerer:
            return self._told(cue.role, part.split(), came, cue.random)
        answer = self._answer(part, came) if cue.random.random() < self.skill else None
        return " ".join(answer or self._guess(part, cue.random))

    def _told(self, role: str, part: list[str], came: dict[str, str], random: Random) -> str:
        place = self.relay.speakers.index(role)
        if random.random() >= self.skill**4:
            return (
                READY
                if random.random() < 0.5
                else " ".join(self._symbols([random.choice(self.relay.known(place)) for _ in part], [place]))
            )
        told, places = part, [place]
        if self.relay.path == "line" and place:
            before = self._decoded(next(iter(came.values()), ""), place - 1)
            if before is None:
                return READY
            if self.relay.answer == "sum":
                told = [str((int(a) + int(b)) % self.relay.values) for a, b in zip(before, part, strict=True)]
            else:
                told, places = [*before, *part], list(range(place + 1))
        symbols = self._symbols(told, places)
        room = self.relay.words or COPIES * len(symbols)
        return " ".join(symbols * (max(1, room // len(symbols)) if self.relay.noise else 1))

    def _symbols(self, told: Sequence[str], places: Sequence[int]) -> list[str]:
        return encode(told, self._allowed(places), self.relay.alphabet)

    def _allowed(self, places: Sequence[int]) -> list[Sequence[str]]:
        return [self.relay.known(place) for place in places for _ in range(self.relay.size)]

    def _decoded(self, came: str, sender: int) -> list[str] | None:
        """Decode a message: the sender's part, or in a line all parts up to the sender."""
        along = self.relay.path == "line" and self.relay.answer == "lookup"
        return decode(came.split(), self._allowed(range(sender + 1) if along else [sender]), self.relay.alphabet)

    def _answer(self, own: str, came: dict[str, str]) -> list[str] | None:
        """Return the answer, or None if a needed message could not be decoded."""
        told = [self._decoded(text, self.relay.speakers.index(sender)) for sender, text in came.items()]
        known = [one for one in told if one is not None]
        if not known or len(known) < len(told):
            return None
        size = self.relay.size
        if self.relay.answer == "sum":
            numbers = [own.split(), *known]
            return [str(sum(map(int, column)) % self.relay.values) for column in zip(*numbers, strict=True)]
        flat = [value for one in known for value in one]
        parts = [flat[at : at + size] for at in range(0, len(flat), size)]
        table = _table(own)
        return [table[" ".join(row)] for row in zip(*parts, strict=True)]

    def _guess(self, own: str, random: Random) -> list[str]:
        known = list(_table(own).values()) if self.relay.answer == "lookup" else self.relay.known(0)
        return [random.choice(known) for _ in range(self.relay.size)]


def _table(own: str) -> dict[str, str]:
    return {row.rpartition(" ")[0]: row.rpartition(" ")[2] for row in own.split(", ")}


def _last(pattern: re.Pattern[str], text: str) -> str:
    found = pattern.findall(text)
    return str(found[-1]) if found else ""
