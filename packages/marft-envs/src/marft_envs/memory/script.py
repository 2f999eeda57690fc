"""Scripted policy for generated conversations."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from marft.envs.scripted_policy import PolicyInput
from marft_envs.memory.facts import RELATIONS, YESTERDAY_STATEMENTS, Fact, Style, day_before
from marft_envs.memory.grading import NOT_MENTIONED
from marft_envs.memory.session import NOTHING_TEXT, QUESTION_PREFIX

_NOTE = re.compile(r"^(\d+): (.+)$", re.MULTILINE)


@dataclass(frozen=True)
class MemoryScript:
    """Scripted ``writer``, ``retriever`` and ``answerer``; ``solver`` writes and answers.

    Args:
        skill: probability of playing a turn well.
        style: style of the conversation.
    """

    skill: float
    style: Style

    def __call__(self, cue: PolicyInput) -> str:
        """Return the output for an agent's turn."""
        is_good = cue.random.random() < self.skill
        observation = cue.last_message
        preceding, _, question = observation.rpartition("\n\n")
        if not question.startswith(QUESTION_PREFIX):
            return self._write_notes(observation) if is_good else _random_note(observation, cue.random)
        question = question.removeprefix(QUESTION_PREFIX)
        if cue.role == "retriever" and not preceding:
            return self._search_words(question) if is_good else cue.random.choice(re.findall(r"\w+", question))
        if cue.role == "retriever":
            numbered = [note for _, note in _NOTE.findall(preceding)]
            numbers = self._pick_notes(question, numbered) if is_good else _random_pick(len(numbered), cue.random)
            picked = " ".join(str(number) for number in numbers) or "none"
            return picked if not cue.options or picked in cue.options else cue.options[0]
        notes = [] if preceding == NOTHING_TEXT else preceding.splitlines()
        return self._give_answer(question, notes) if is_good else _random_answer(notes, cue.random)

    def _write_notes(self, observation: str) -> str:
        """Return a note for each fact in a chunk, replacing an outdated note."""
        chunk_text, _, note_text = observation.rpartition("\n\nNotes (")
        day, *lines = chunk_text.rpartition("\n\n")[2].splitlines()
        notes = _NOTE.findall(note_text)
        written = []
        for line in lines:
            fact = parse_fact(line, day.removesuffix("."), self.style)
            if fact is None:
                continue
            matching = [number for number, note in notes if _fact_key(note) == _fact_key(fact.note)]
            written.append(f"{matching[0]}: {fact.note}" if matching else fact.note)
        return "\n".join(written) or "nothing"

    def _parse_note(self, note: str) -> Fact | None:
        """Parse a fact from a note, or from a dated line in the conversation."""
        day, _, line = note.partition(": ")
        return _parse_fact_note(note) or (parse_fact(line, day, self.style) if line else None)

    def _answer_notes(self, question: str, notes: Sequence[str]) -> list[tuple[int, Fact]]:
        """Return the notes that answer a question, by number, latest version only.

        If two notes are needed, the second has the answer.
        """
        facts = [(number, fact) for number, note in enumerate(notes, 1) if (fact := self._parse_note(note))]
        direct = [pair for pair in facts if pair[1].question(self.style) == question]
        if direct:
            return direct[-1:]
        for cousin in facts:
            if cousin[1].relation == "cousin":
                for second in reversed(facts):
                    if (
                        second[1].person == cousin[1].value
                        and second[1].question(self.style, cousin[1].person) == question
                    ):
                        return [cousin, second]
        return []

    def _pick_notes(self, question: str, notes: Sequence[str]) -> list[int]:
        return sorted(number for number, _ in self._answer_notes(question, notes))

    def _search_words(self, question: str) -> str:
        """Return search words for the note that answers a question, as far as the question contains them."""
        for relation in RELATIONS.values():
            note = relation.note.partition("{v}")[0]
            groups = _match_template(f"{note}?" if self.style == "plain" else relation.question, question)
            if groups:
                return note.format(p=groups["p"], d=groups.get("d", "")).rstrip(", ")
        return question.partition("'s cousin")[0].rpartition(" ")[2]

    def _give_answer(self, question: str, notes: Sequence[str]) -> str:
        answer_notes = self._answer_notes(question, notes)
        return answer_notes[-1][1].value if answer_notes else NOT_MENTIONED


def parse_fact(line: str, day: str, style: Style) -> Fact | None:
    """Parse the fact in a dated line; None without a fact."""
    if style == "plain":
        return _parse_fact_note(line) or _parse_fact_note(line.replace(".", f", {day}."))
    person, _, words = line.partition(": ")
    for name, relation in RELATIONS.items():
        for template in (
            *relation.statements,
            *relation.changed_statements,
            *(YESTERDAY_STATEMENTS if name == "event" else ()),
        ):
            groups = _match_template(template, words)
            if groups:
                date = day_before(day) if template in YESTERDAY_STATEMENTS else day
                return Fact(name, person, groups.get("d", ""), groups.get("v", date))
    return None


def _match_template(template: str, words: str) -> dict[str, str] | None:
    """Match a template; return its placeholders, or None without a match."""
    pattern = re.escape(template)
    for place, kind in (("p", r"\w+"), ("d", r"\w+"), ("v", r"[\w ]+")):
        escaped = re.escape(f"{{{place}}}")
        pattern = pattern.replace(escaped, f"(?P<{place}>{kind})", 1)
    match = re.fullmatch(pattern, words)
    return match.groupdict() if match else None


def _parse_fact_note(note: str) -> Fact | None:
    """Parse the fact in a note; None without a fact."""
    for name, relation in RELATIONS.items():
        groups = _match_template(relation.note, note)
        is_known = groups and (not relation.values or groups["v"] in relation.values)
        if groups and is_known and (not relation.details or groups["d"] in relation.details):
            return Fact(name, groups["p"], groups.get("d", ""), groups["v"])
    return None


def _fact_key(note: str) -> tuple[str, str, str] | None:
    fact = _parse_fact_note(note)
    return (fact.person, fact.relation, fact.detail) if fact else None


def _random_note(observation: str, random: Random) -> str:
    """Imitate a weak writer: note a random line."""
    chunk_text = observation.rpartition("\n\nNotes (")[0].rpartition("\n\n")[2]
    lines = chunk_text.splitlines()[1:]
    return random.choice(lines) if lines else "nothing"


def _random_pick(count: int, random: Random) -> list[int]:
    """Imitate a weak retriever: pick a random note."""
    return [random.randint(1, count)] if count else []


def _random_answer(notes: Sequence[str], random: Random) -> str:
    """Imitate a weak answerer: say a note's last word, or abstain."""
    words = [note.rstrip(".").split()[-1] for note in notes if note.rstrip(".")]
    return random.choice([*words, NOT_MENTIONED])
