"""A message that has to be sent: the answer needs what each agent holds, and nobody sees what another one holds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import Random
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from marft.common.types import Task
from marft.config.names import Role
from marft.config.settings import Count, CountOrNone, Fraction, Names
from marft.envs.scripts import Script
from marft_envs.drawn import Drawing, Drawn
from marft_envs.relay.codes import width
from marft_envs.relay.passing import ERASED
from marft_envs.relay.puzzles import KEYS, MOST_ROWS, addition, lookup
from marft_envs.relay.script import RelayScript
from marft_envs.relay.session import RelaySession

PROMPTS = {"lookup": "Find the code.", "sum": "Add up all parts modulo {values}."}


class Relay(Drawn):
    """Everyone holds a part of the answer, some may tell theirs in a few words that cost, and one answers. What comes
    through may be cut, limited to symbols, and hit by noise.

    Alone nobody does better than guessing: of ``lookup`` the one who answers has a table of equally likely codes, and
    the others its keys; of ``sum`` every sum is as likely without any one part.
    """

    stream: ClassVar[str] = "Relay"
    carries_words: ClassVar[bool] = True
    says_whose_turn: ClassVar[bool] = True
    speakers: Names = ("north",)  # roles that hold a part and may tell it
    answerer: Role = "south"  # who holds a part too, and answers
    answer: Literal["lookup", "sum"] = "lookup"  # a code behind others' keys; or the sum of numbers, modulo values
    path: Literal["star", "line"] = "star"  # all tell the answerer; or each the next one, and the last the answerer
    values: Annotated[int, Field(ge=2, le=100)] = 6  # that each symbol of a part may have
    size: Annotated[int, Field(ge=1, le=8)] = 1  # symbols in a part, and in the answer
    words: CountOrNone = 3  # of a message that come through, the first ones; 0: all
    characters: Count = 80  # of a message that come through
    alphabet: Names = ()  # the only words that come through; none: any word does
    noise: Fraction = 0.0  # how likely each word is hit
    hit: Literal["erase", "drop", "replace"] = "erase"  # shown as ?, gone without a trace, or turned into another one
    price: Fraction = 0.02  # of each word that is said, off the reward
    paid_by: Literal["team", "sender"] = "team"  # whose reward it is off
    alone: bool = False  # only the one who answers is there: the baseline, which can only guess

    @model_validator(mode="after")
    def _can_be_told(self) -> Relay:
        if not self.speakers or self.answerer in self.speakers:
            raise _wrong("speakers: at least one, and not the answerer {answerer}", answerer=self.answerer)
        if self.answer == "lookup":
            rows = self.values ** len(self.speakers)
            if len(self.speakers) > len(KEYS) or self.values > len(KEYS[0]) or rows > MOST_ROWS:
                raise _wrong(
                    "a table for {speakers} speakers of {values} values has {rows} rows; at most {speakers_most} "
                    "speakers, {values_most} values and {rows_most} rows (answer = 'sum' takes more)",
                    speakers=len(self.speakers), values=self.values, rows=rows, speakers_most=len(KEYS),
                    values_most=len(KEYS[0]), rows_most=MOST_ROWS,
                )  # fmt: skip
        if len(self.alphabet) == 1:
            raise _wrong("alphabet: one word tells nothing; give two, or none")
        words = {word.casefold() for word in self.alphabet}
        if len(words) < len(self.alphabet) or ERASED in words or any(len(word.split()) > 1 for word in words):
            raise _wrong("alphabet: single words that differ in more than case, and not {erased}", erased=ERASED)
        if self.words and self.words < self.needed:
            raise _wrong(
                "words: it takes {needed} words to tell what has to be told, and {words} come through; allow more, or "
                "a larger alphabet", needed=self.needed, words=self.words,
            )  # fmt: skip
        if self.characters < self.letters:
            raise _wrong(
                "characters: it may take {letters} to tell what has to be told, and {characters} come through; allow "
                "more, or shorter words (alphabet)", letters=self.letters, characters=self.characters,
            )  # fmt: skip
        return self

    @property
    def needed(self) -> int:
        """Words that the longest message needs at least."""
        carried = len(self.speakers) if self.path == "line" and self.answer == "lookup" else 1
        return carried * self.size * width(self.values, len(self.alphabet))

    @property
    def letters(self) -> int:
        """Characters that the longest message needs."""
        known = [self.alphabet or self.known(speaker) for speaker in range(len(self.speakers))]
        own = [self.size * width(self.values, len(self.alphabet)) * max(map(len, words)) for words in known]
        return sum(own) if self.path == "line" and self.answer == "lookup" else max(own)

    @property
    def guessing(self) -> float:
        """How often a guess is right that knows the answer's own part alone."""
        rows = self.values ** len(self.speakers) if self.answer == "lookup" else self.values
        return float(rows) ** -self.size

    @property
    def turns(self) -> Sequence[tuple[str, ...]]:
        """Whose turn it is, step by step."""
        if self.alone:
            return [(self.answerer,)]
        told = [self.speakers] if self.path == "star" else [(role,) for role in self.speakers]
        return [*told, (self.answerer,)]

    def known(self, speaker: int) -> Sequence[str]:
        """What a symbol of a speaker's part may be, in an order that everybody knows."""
        return KEYS[speaker][: self.values] if self.answer == "lookup" else [str(n) for n in range(self.values)]

    def draw(self, random: Random) -> Drawing:
        """Parts, and what they come to."""
        draw = lookup if self.answer == "lookup" else addition
        puzzle = draw(random, len(self.speakers), self.values, self.size)
        parts = dict(zip(self.speakers, puzzle.parts, strict=True))
        data = {"parts": parts, "own": puzzle.own, "answer": puzzle.answer, "fewest_steps": len(self.turns)}
        return Drawing(puzzle.content, PROMPTS[self.answer].format(values=self.values), data)

    def problems(self, roles: Sequence[str]) -> Iterable[str]:
        """Whoever holds a part must be there, and nobody else has anything to do."""
        needed = (self.answerer,) if self.alone else (*self.speakers, self.answerer)
        for role in needed:
            if role not in roles:
                yield f"relay: {role!r} holds a part, and no agent has that role; set speakers and answerer"
        for role in roles:
            if role not in needed:
                yield f"relay: agent {role!r} holds no part; add it to speakers, or leave it out"

    def start(self, task: Task, seed: int) -> RelaySession:
        return RelaySession(self, task, seed)

    def script(self, skill: float = 1.0) -> Script:
        """Who tells its part in as many copies as come through, and believes most of them; else one who says that it is
        ready, or anything, or guesses."""
        return RelayScript(self, skill)


def _wrong(message: str, **values: object) -> PydanticCustomError:
    return PydanticCustomError("relay", message, values)
