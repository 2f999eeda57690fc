"""Relay environment: the answer needs a part from each agent, and each agent sees only its own part."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import Random
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from marft.common.types import Task
from marft.config.names import Role
from marft.config.settings import Count, Fraction, Names, NonNegativeCount
from marft.envs.scripted_policy import ScriptedPolicy
from marft_envs.generated import GeneratedEnvironment, GeneratedTask
from marft_envs.relay.channel import ERASED_SYMBOL
from marft_envs.relay.codes import code_length
from marft_envs.relay.puzzles import KEYS, MAX_ROWS, generate_lookup, generate_sum
from marft_envs.relay.script import RelayScript
from marft_envs.relay.session import RelaySession

PROMPTS = {"lookup": "Find the code.", "sum": "Add up all parts modulo {values}."}


class Relay(GeneratedEnvironment):
    """Every agent holds a part of the answer. Speakers may send theirs in a few costly words, and one agent answers.

    A message may be cut, limited to an alphabet, and hit by noise. Without messages no answer beats guessing. With
    ``lookup`` the answerer has a table of equally likely codes, and the others hold its keys. With ``sum`` every
    sum is equally likely if one part is missing.
    """

    stream: ClassVar[str] = "Relay"
    relays_messages: ClassVar[bool] = True
    controls_turns: ClassVar[bool] = True
    speakers: Names = ("north",)  # roles that hold a part and may send it
    answerer: Role = "south"  # role that holds a part and answers
    # kind of answer; lookup: a code behind the others' keys; sum: the sum of numbers, modulo values
    answer: Literal["lookup", "sum"] = "lookup"
    # message routing; star: all speakers send to the answerer; line: each sends to the next, and the last to the
    # answerer
    topology: Literal["star", "line"] = "star"
    values: Annotated[int, Field(ge=2, le=100)] = 6  # possible values of each symbol in a part
    size: Annotated[int, Field(ge=1, le=8)] = 1  # symbols in a part, and in the answer
    words: NonNegativeCount = 3  # maximum words of a message that are passed on, from the start; 0: no limit
    characters: Count = 80  # maximum characters of a message that are passed on
    alphabet: Names = ()  # words that are passed on; empty: all words
    noise: Fraction = 0.0  # probability that noise hits a word
    # effect of noise on a word; erase: shown as ?; drop: removed without a trace; replace: another word
    noise_effect: Literal["erase", "drop", "replace"] = "erase"
    word_cost: Fraction = 0.02  # cost of each word sent, subtracted from the reward
    paid_by: Literal["team", "sender"] = "team"  # reward that the cost is subtracted from
    answerer_only: bool = False  # run with the answerer only, as a baseline that can only guess

    @model_validator(mode="after")
    def _check_feasible(self) -> Relay:
        if not self.speakers or self.answerer in self.speakers:
            raise _settings_error("speakers: at least one, and not the answerer {answerer}", answerer=self.answerer)
        if self.answer == "lookup":
            rows = self.values ** len(self.speakers)
            if len(self.speakers) > len(KEYS) or self.values > len(KEYS[0]) or rows > MAX_ROWS:
                raise _settings_error(
                    "a table for {speakers} speakers of {values} values has {rows} rows; at most {speakers_most} "
                    "speakers, {values_most} values and {rows_most} rows (answer = 'sum' takes more)",
                    speakers=len(self.speakers),
                    values=self.values,
                    rows=rows,
                    speakers_most=len(KEYS),
                    values_most=len(KEYS[0]),
                    rows_most=MAX_ROWS,
                )
        if len(self.alphabet) == 1:
            raise _settings_error("alphabet: one word tells nothing; give two, or none")
        words = {word.casefold() for word in self.alphabet}
        if len(words) < len(self.alphabet) or ERASED_SYMBOL in words or any(len(word.split()) > 1 for word in words):
            raise _settings_error(
                "alphabet: single words that differ in more than case, and not {erased}", erased=ERASED_SYMBOL
            )
        if self.words and self.words < self.min_words:
            raise _settings_error(
                "words: it takes {needed} words to tell what has to be told, and {words} come through; allow more, or "
                "a larger alphabet",
                needed=self.min_words,
                words=self.words,
            )
        if self.characters < self.min_characters:
            raise _settings_error(
                "characters: it may take {letters} to tell what has to be told, and {characters} come through; allow "
                "more, or shorter words (alphabet)",
                letters=self.min_characters,
                characters=self.characters,
            )
        return self

    @property
    def min_words(self) -> int:
        """Minimum words in the longest message."""
        part_count = len(self.speakers) if self.topology == "line" and self.answer == "lookup" else 1
        return part_count * self.size * code_length(self.values, len(self.alphabet))

    @property
    def min_characters(self) -> int:
        """Minimum characters in the longest message, without spaces."""
        words_by_speaker = [self.alphabet or self.speaker_symbols(speaker) for speaker in range(len(self.speakers))]
        lengths = [
            self.size * code_length(self.values, len(self.alphabet)) * max(map(len, words))
            for words in words_by_speaker
        ]
        return sum(lengths) if self.topology == "line" and self.answer == "lookup" else max(lengths)

    @property
    def guess_rate(self) -> float:
        """Success probability for a guess from the answerer's own part alone."""
        rows = self.values ** len(self.speakers) if self.answer == "lookup" else self.values
        return float(rows) ** -self.size

    @property
    def turns(self) -> Sequence[tuple[str, ...]]:
        """Roles in turn, for each step."""
        if self.answerer_only:
            return [(self.answerer,)]
        speaker_turns = [self.speakers] if self.topology == "star" else [(role,) for role in self.speakers]
        return [*speaker_turns, (self.answerer,)]

    def speaker_symbols(self, speaker: int) -> Sequence[str]:
        """Return a speaker's possible symbols, in an order shared by every agent."""
        return KEYS[speaker][: self.values] if self.answer == "lookup" else [str(n) for n in range(self.values)]

    def generate_task(self, random: Random) -> GeneratedTask:
        """Generate the parts and their answer."""
        generate_puzzle = generate_lookup if self.answer == "lookup" else generate_sum
        puzzle = generate_puzzle(random, len(self.speakers), self.values, self.size)
        parts = dict(zip(self.speakers, puzzle.parts, strict=True))
        data = {"parts": parts, "own": puzzle.answerer_part, "answer": puzzle.answer, "fewest_steps": len(self.turns)}
        return GeneratedTask(puzzle.content, PROMPTS[self.answer].format(values=self.values), data)

    def problems(self, roles: Sequence[str]) -> Iterable[str]:
        """Yield an error for each part without an agent, and for each agent without a part."""
        needed_roles = (self.answerer,) if self.answerer_only else (*self.speakers, self.answerer)
        for role in needed_roles:
            if role not in roles:
                yield f"relay: {role!r} holds a part, and no agent has that role; set speakers and answerer"
        for role in roles:
            if role not in needed_roles:
                yield f"relay: agent {role!r} holds no part; add it to speakers, or leave it out"

    def start(self, task: Task, seed: int) -> RelaySession:
        """Start an attempt at a puzzle."""
        return RelaySession(self, task, seed)

    def script(self, skill: float = 1.0) -> ScriptedPolicy:
        """Return a scripted policy.

        It sends its part, with as many copies as fit, and decodes by majority. A weak player sends "ready" or
        random symbols, or guesses.
        """
        return RelayScript(self, skill)


def _settings_error(message: str, **values: object) -> PydanticCustomError:
    return PydanticCustomError("relay", message, values)
