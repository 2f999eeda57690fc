"""Scripted policy that uses only the text shown to each agent."""

from __future__ import annotations

import re
from collections.abc import Sequence
from random import Random
from typing import TYPE_CHECKING

from marft.envs.scripted_policy import PolicyInput
from marft_envs.relay.codes import decode_symbols, encode_values

if TYPE_CHECKING:
    from marft_envs.relay.environment import Relay

COPIES = 3  # copies to send if the number of words is unlimited
READY_TEXT = "ready"
PART_PATTERN = re.compile(r"^Part: (.*)$", re.MULTILINE)
FROM_PATTERN = re.compile(r"^From (\w+): (.*)$", re.MULTILINE)


class RelayScript:
    """Scripted policy for all roles.

    Args:
        relay: the environment.
        skill: probability that the answerer uses the messages. A speaker sends its part with probability skill⁴,
            because useful messages are learned later.
    """

    def __init__(self, relay: Relay, skill: float) -> None:
        self.relay, self.skill = relay, skill

    def __call__(self, cue: PolicyInput) -> str:
        """Return the agent's text."""
        part = _last_match(PART_PATTERN, cue.last_message)
        received = dict(FROM_PATTERN.findall(cue.last_message))
        if cue.role != self.relay.answerer:
            return self._message(cue.role, part.split(), received, cue.random)
        answer = self._compute_answer(part, received) if cue.random.random() < self.skill else None
        return " ".join(answer or self._random_answer(part, cue.random))

    def _message(self, role: str, part: list[str], received: dict[str, str], random: Random) -> str:
        speaker_index = self.relay.speakers.index(role)
        if random.random() >= self.skill**4:
            return (
                READY_TEXT
                if random.random() < 0.5
                else " ".join(
                    self._encode(
                        [random.choice(self.relay.speaker_symbols(speaker_index)) for _ in part], [speaker_index]
                    )
                )
            )
        values, places = part, [speaker_index]
        if self.relay.topology == "line" and speaker_index:
            earlier_values = self._decode(next(iter(received.values()), ""), speaker_index - 1)
            if earlier_values is None:
                return READY_TEXT
            if self.relay.answer == "sum":
                values = [str((int(a) + int(b)) % self.relay.values) for a, b in zip(earlier_values, part, strict=True)]
            else:
                values, places = [*earlier_values, *part], list(range(speaker_index + 1))
        symbols = self._encode(values, places)
        word_limit = self.relay.words or COPIES * len(symbols)
        return " ".join(symbols * (max(1, word_limit // len(symbols)) if self.relay.noise else 1))

    def _encode(self, values: Sequence[str], places: Sequence[int]) -> list[str]:
        return encode_values(values, self._possible_values(places), self.relay.alphabet)

    def _possible_values(self, places: Sequence[int]) -> list[Sequence[str]]:
        return [self.relay.speaker_symbols(place) for place in places for _ in range(self.relay.size)]

    def _decode(self, received: str, sender: int) -> list[str] | None:
        """Decode a message: the sender's part, or in a line all parts up to the sender."""
        is_cumulative = self.relay.topology == "line" and self.relay.answer == "lookup"
        return decode_symbols(
            received.split(),
            self._possible_values(range(sender + 1) if is_cumulative else [sender]),
            self.relay.alphabet,
        )

    def _compute_answer(self, answerer_part: str, received: dict[str, str]) -> list[str] | None:
        """Return the answer, or None if a needed message could not be decoded."""
        decoded = [self._decode(text, self.relay.speakers.index(sender)) for sender, text in received.items()]
        usable = [values for values in decoded if values is not None]
        if not usable or len(usable) < len(decoded):
            return None
        size = self.relay.size
        if self.relay.answer == "sum":
            numbers = [answerer_part.split(), *usable]
            return [str(sum(map(int, column)) % self.relay.values) for column in zip(*numbers, strict=True)]
        flat_values = [value for values in usable for value in values]
        parts = [flat_values[at : at + size] for at in range(0, len(flat_values), size)]
        table = _parse_table(answerer_part)
        return [table[" ".join(row)] for row in zip(*parts, strict=True)]

    def _random_answer(self, answerer_part: str, random: Random) -> list[str]:
        symbols = (
            list(_parse_table(answerer_part).values())
            if self.relay.answer == "lookup"
            else self.relay.speaker_symbols(0)
        )
        return [random.choice(symbols) for _ in range(self.relay.size)]


def _parse_table(answerer_part: str) -> dict[str, str]:
    return {row.rpartition(" ")[0]: row.rpartition(" ")[2] for row in answerer_part.split(", ")}


def _last_match(pattern: re.Pattern[str], text: str) -> str:
    matches = pattern.findall(text)
    return str(matches[-1]) if matches else ""
