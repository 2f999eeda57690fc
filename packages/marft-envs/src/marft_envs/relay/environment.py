"""Relay environment: the answer needs a part from each agent, and each agent sees only its own part.

In a session, the speakers send first, then the answerer answers. The scripted policy uses only the text shown to each
agent.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from random import Random
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from marft.agents.answers import extract_answer, graded_text
from marft.common.types import JointAction, Observation, Step, Task
from marft.config.names import Role
from marft.config.settings import Count, Fraction, Names, NonNegativeCount
from marft.envs.scripted_policy import PolicyInput, ScriptedPolicy
from marft_envs.generated import GeneratedEnvironment, GeneratedTask
from marft_envs.relay.puzzles import (
    ERASED_SYMBOL,
    KEYS,
    MAX_ROWS,
    code_length,
    decode_symbols,
    encode_values,
    generate_lookup,
    generate_sum,
    transmit,
)

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
        word_limit = self.relay.max_words or COPIES * len(symbols)
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


MAX_COST = 0.5  # maximum word costs in an episode, so that success always earns more than failure
NOTHING_TEXT = "(nothing)"


class RelaySession:
    """One attempt at a puzzle."""

    def __init__(self, relay: Relay, task: Task, seed: int) -> None:
        self.relay, self.task, self.random = relay, task, Random(seed)
        self.steps, self.words_sent, self.words_received, self.total_cost = 0, 0, 0, 0.0
        self.inbox: dict[str, list[tuple[str, str]]] = {}  # by receiver: pairs of sender and transmitted text

    async def reset(self) -> Observation:
        """Return the first observation."""
        return self._build_observation()

    async def step(self, actions: JointAction) -> Step:
        """Transmit the messages of the speakers in turn, or grade the answer in the last step."""
        roles = self.relay.turns[self.steps]
        self.steps += 1
        if self.steps == len(self.relay.turns):
            return self._grade(actions)
        costs = {role: self._transmit(role, _message_text(actions, role)) for role in roles}
        is_team_cost = self.relay.paid_by == "team"
        return Step(
            self._build_observation(),
            sum(costs.values()) if is_team_cost else 0.0,
            agent_rewards={} if is_team_cost else costs,
            info={
                "progress": 0.0,
                "hidden": {role: " ".join(self._role_part(role)) for role in roles},
                **self._metrics(),
            },
        )

    async def close(self) -> None:
        """No-op: no resources are held."""

    def _transmit(self, role: str, text: str) -> float:
        """Transmit a message and return its negative cost."""
        relay = self.relay
        replacements = relay.alphabet or relay.speaker_symbols(relay.speakers.index(role))
        received = transmit(text, self.random, relay, replacements)
        position = relay.speakers.index(role) + 1
        last = relay.topology == "star" or position == len(relay.speakers)
        self.inbox.setdefault(relay.answerer if last else relay.speakers[position], []).append((role, received))
        words = len(text.split())
        cost = min(relay.word_cost * words, MAX_COST - self.total_cost)
        self.words_sent += words
        self.words_received += len(received.split())
        self.total_cost += cost
        return -cost

    def _grade(self, actions: JointAction) -> Step:
        """Grade the answer by its symbols in order; separators are ignored."""
        expected = [symbol.casefold() for symbol in self.task.data["answer"]]
        answer_symbols = (
            extract_answer(graded_text(actions.for_role(self.relay.answerer))).casefold().replace(",", " ").split()
        )
        right = answer_symbols == expected
        correct_share = sum(
            given_symbol == expected_symbol
            for given_symbol, expected_symbol in zip(answer_symbols, expected, strict=False)
        ) / len(expected)
        info = {"progress": 1.0 if right else min(correct_share, 0.99), **self._metrics()}
        return Step(Observation(""), float(right), terminated=True, success=right, info=info)

    def _build_observation(self) -> Observation:
        turn = self.relay.turns[self.steps]
        return Observation(self.task.prompt, {role: self._role_view(role) for role in turn}, turn)

    def _role_view(self, role: str) -> str:
        """Return an agent's private view: its part and the messages it received."""
        lines = [f"Part: {' '.join(self._role_part(role)) if role != self.relay.answerer else self.task.data['own']}"]
        lines += [f"From {sender}: {received or NOTHING_TEXT}" for sender, received in self.inbox.get(role, ())]
        return "\n".join(lines)

    def _role_part(self, role: str) -> list[str]:
        parts: Mapping[str, list[str]] = self.task.data["parts"]
        return parts[role]

    def _metrics(self) -> dict[str, object]:
        metrics = {
            "words_said": float(self.words_sent),
            "words_passed": float(self.words_received),
            "guessing_rate": self.relay.guess_rate,
        }
        return {"measures": metrics}


def _message_text(actions: JointAction, role: str) -> str:
    action = actions.for_role(role)
    return action.message if action is not None else ""


PROMPTS = {"lookup": "Find the code.", "sum": "Add up all parts modulo {values}."}


class Relay(GeneratedEnvironment):
    """Each agent holds a part of the answer. Speakers may send their part in a few costly words; one agent answers.

    A message may be cut, limited to an alphabet, and hit by noise. Without messages no answer beats guessing. With
    ``lookup`` the answerer has a table of equally likely codes, and the others hold its keys. With ``sum`` every
    sum is equally likely if one part is missing.
    """

    stream: ClassVar[str] = "Relay"
    relays_messages: ClassVar[bool] = True
    controls_turns: ClassVar[bool] = True
    speakers: Names = Field(default=("north",), description="roles with a part that may send a message")
    answerer: Role = Field(default="south", description="role with a part that answers")
    answer: Literal["lookup", "sum"] = Field(
        default="lookup",
        description="kind of answer; lookup: a code behind the speakers' keys; sum: sum of numbers, modulo values",
    )
    topology: Literal["star", "line"] = Field(
        default="star",
        description=(
            "message routing; star: each speaker sends to the answerer; line: each speaker sends to the next, and the "
            "last to the answerer"
        ),
    )
    values: Annotated[int, Field(ge=2, le=100)] = Field(
        default=6, description="possible values of each symbol in a part"
    )
    size: Annotated[int, Field(ge=1, le=8)] = Field(default=1, description="symbols in a part, and in the answer")
    max_words: NonNegativeCount = Field(
        default=3, description="maximum words passed on per message, from the start; 0: no limit"
    )
    max_chars: Count = Field(default=80, description="maximum characters passed on per message")
    alphabet: Names = Field(default=(), description="words that pass the channel; []: every word")
    noise: Fraction = Field(default=0.0, description="probability that noise hits a word")
    noise_effect: Literal["erase", "drop", "replace"] = Field(
        default="erase",
        description=(
            "effect of noise on a word; erase: shown as ?; drop: removed without a trace; replace: another word"
        ),
    )
    word_cost: Fraction = Field(default=0.02, description="cost of each word sent, subtracted from the reward")
    paid_by: Literal["team", "sender"] = Field(
        default="team", description="payer of the cost: the team reward, or the sender's own reward"
    )
    answerer_only: bool = Field(default=False, description="run only the answerer, as a baseline by guessing")

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
        if self.max_words and self.max_words < self.min_words:
            raise _settings_error(
                "words: it takes {needed} words to tell what has to be told, and {words} come through; allow more, or "
                "a larger alphabet",
                needed=self.min_words,
                words=self.max_words,
            )
        if self.max_chars < self.min_characters:
            raise _settings_error(
                "characters: it may take {letters} to tell what has to be told, and {characters} come through; allow "
                "more, or shorter words (alphabet)",
                letters=self.min_characters,
                characters=self.max_chars,
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
