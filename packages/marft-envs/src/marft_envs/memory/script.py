"""Scripted policy for generated conversations."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from marft.envs.scripts import Cue
from marft_envs.memory.facts import RELATIONS, YESTERDAY, Fact, Style, day_before
from marft_envs.memory.grading import NOT_MENTIONED
from marft_envs.memory.session import NOTHING, QUESTION

_NOTE = re.compile(r"^(\d+): (.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Rememberer:
    """Scripted ``writer``, ``retriever`` and ``answerer``; ``solver`` writes and answers.

    Args:
        skill: probability of playing a turn well.
        style: style of the conversation.
    """

    skill: float
    style: Style

    def __call__(self, cue: Cue) -> str:
        """Return the output for an agent's turn."""
        good = cue.random.random() < self.skill
        shown = cue.shown
        rest, _, asked = shown.rpartition("\n\n")
        if not asked.startswith(QUESTION):
            return self._noted(shown) if good else _hasty(shown, cue.random)
        asked = asked.removeprefix(QUESTION)
        if cue.role == "retriever" and not rest:
            return self._sought(asked) if good else cue.random.choice(re.findall(r"\w+", asked))
        if cue.role == "retriever":
            numbered = [note for _, note in _NOTE.findall(rest)]
            numbers = self._picks(asked, numbered) if good else _any_of(len(numbered), cue.random)
            picked = " ".join(str(number) for number in numbers) or "none"
            return picked if not cue.options or picked in cue.options else cue.options[0]
        notes = [] if rest == NOTHING else rest.splitlines()
        return self._answer(asked, notes) if good else _guess(notes, cue.random)

    def _noted(self, shown: str) -> str:
        """Return a note for each fact in a chunk, replacing an outdated note."""
        piece, _, rest = shown.rpartition("\n\nNotes (")
        day, *lines = piece.rpartition("\n\n")[2].splitlines()
        notes = _NOTE.findall(rest)
        written = []
        for line in lines:
            fact = understood(line, day.removesuffix("."), self.style)
            if fact is None:
                continue
            same = [number for number, note in notes if _about(note) == _about(fact.note)]
            written.append(f"{same[0]}: {fact.note}" if same else fact.note)
        return "\n".join(written) or "nothing"

    def _read(self, note: str) -> Fact | None:
        """Parse a fact from a note, or from a dated line in the conversation."""
        day, _, line = note.partition(": ")
        return _fact_in(note) or (understood(line, day, self.style) if line else None)

    def _wanted(self, asked: str, notes: Sequence[str]) -> list[tuple[int, Fact]]:
        """Return the notes that answer a question, by number, latest version only.

        If two notes are needed, the second has the answer.
        """
        facts = [(number, fact) for number, note in enumerate(notes, 1) if (fact := self._read(note))]
        direct = [pair for pair in facts if pair[1].question(self.style) == asked]
        if direct:
            return direct[-1:]
        for cousin in facts:
            if cousin[1].relation == "cousin":
                for then in reversed(facts):
                    if then[1].person == cousin[1].value and then[1].question(self.style, cousin[1].person) == asked:
                        return [cousin, then]
        return []

    def _picks(self, asked: str, notes: Sequence[str]) -> list[int]:
        return sorted(number for number, _ in self._wanted(asked, notes))

    def _sought(self, asked: str) -> str:
        """Return search words for the note that answers a question, as far as the question contains them."""
        for relation in RELATIONS.values():
            note = relation.note.partition("{v}")[0]
            about = _matched(f"{note}?" if self.style == "plain" else relation.asked, asked)
            if about:
                return note.format(p=about["p"], d=about.get("d", "")).rstrip(", ")
        return asked.partition("'s cousin")[0].rpartition(" ")[2]

    def _answer(self, asked: str, notes: Sequence[str]) -> str:
        wanted = self._wanted(asked, notes)
        return wanted[-1][1].value if wanted else NOT_MENTIONED


def understood(line: str, day: str, style: Style) -> Fact | None:
    """Parse the fact in a dated line; None without a fact."""
    if style == "plain":
        return _fact_in(line) or _fact_in(line.replace(".", f", {day}."))
    person, _, words = line.partition(": ")
    for name, relation in RELATIONS.items():
        for template in (*relation.told, *relation.changed, *(YESTERDAY if name == "event" else ())):
            found = _matched(template, words)
            if found:
                when = day_before(day) if template in YESTERDAY else day
                return Fact(name, person, found.get("d", ""), found.get("v", when))
    return None


def _matched(template: str, words: str) -> dict[str, str] | None:
    """Match a template; return its placeholders, or None without a match."""
    pattern = re.escape(template)
    for place, kind in (("p", r"\w+"), ("d", r"\w+"), ("v", r"[\w ]+")):
        escaped = re.escape(f"{{{place}}}")
        pattern = pattern.replace(escaped, f"(?P<{place}>{kind})", 1)
    found = re.fullmatch(pattern, words)
    return found.groupdict() if found else None


def _fact_in(note: str) -> Fact | None:
    """Parse the fact in a note; None without a fact."""
    for name, relation in RELATIONS.items():
        found = _matched(relation.note, note)
        known = found and (not relation.values or found["v"] in relation.values)
        if found and known and (not relation.details or found["d"] in relation.details):
            return Fact(name, found["p"], found.get("d", ""), found["v"])
    return None


def _about(note: str) -> tuple[str, str, str] | None:
    fact = _fact_in(note)
    return (fact.person, fact.relation, fact.detail) if fact else None


def _hasty(shown: str, random: Random) -> str:
    """Imitate a weak writer: note a random line."""
    piece = shown.rpartition("\n\nNotes (")[0].rpartition("\n\n")[2]
    lines = piece.splitlines()[1:]
    return random.choice(lines) if lines else "nothing"


def _any_of(count: int, random: Random) -> list[int]:
    """Imitate a weak retriever: pick a random note."""
    return [random.randint(1, count)] if count else []


def _guess(notes: Sequence[str], random: Random) -> str:
    """Imitate a weak answerer: say a note's last word, or abstain."""
    words = [note.rstrip(".").split()[-1] for note in notes if note.rstrip(".")]
    return random.choice([*words, NOT_MENTIONED])
