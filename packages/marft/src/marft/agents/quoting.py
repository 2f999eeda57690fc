"""Quote attribution: finds the earlier actions quoted by a program's messages, to record dependencies.

Texts are compared word by word. Letters and case count; spaces, punctuation, Markdown and escapes (JSON, HTML) do
not. Longer texts are searched before shorter ones, and each word counts for one match only. A short answer
therefore does not match inside a copy of the task, and the task's words do not match inside an answer that quotes
the task.
"""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from marft.agents.chat import Chat
from marft.agents.rendering import ChatMessage
from marft.common.thoughts import thought
from marft.common.types import Action

# Marks that combine with the letter before them: accents, points, and the vowels of Indian scripts.
SIGNS = r"\u0300-\u036f\u0591-\u05bd\u064b-\u065f\u0900-\u0963\u0966-\u0df3"
# A word character in a script that separates words by spaces: not Thai, Lao, Burmese, Khmer, kana or Chinese.
SPACED = (
    rf"(?:[{SIGNS}]|[^\W_\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    r"\U00020000-\U0003ffff])"
)
# arrows, logic symbols, emoji: one word each
PICTURES = r"\u2190-\u22ff\u2600-\u27bf\u2b00-\u2bff\U0001f000-\U0001faff"
WORD = re.compile(rf"{SPACED}+(?:(?<=\d)[.,](?=\d){SPACED}+)*|[^\W_]|[{PICTURES}]")
ESCAPED = re.compile(r"\\+(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2}))")
ENTITY = re.compile(r"&(?:amp;)*(#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[a-zA-Z]{2,31});")
SPACE = re.compile(r"\\+[nrt]")
WINDOW = 4  # words: a run this long that occurred before is no coincidence
FEW = 3  # words: a shorter run does not count as a quoted part
LONGEST_PART = 6  # words: a run this long identifies an action with more than twice as many own words
NEAR = 8  # words before a text in which its author's name is searched


def plain(text: str) -> str:
    """Return the words of a text, with one space before and after each.

    >>> plain('It is **3.142**,\\\\n"1,000" or x_1.')
    ' It is 3.142 1,000 or x 1 '
    """
    if "\\" in text:
        text = SPACE.sub(" ", ESCAPED.sub(lambda found: chr(int(found[1] or found[2], 16)), text))
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if "&" in text:
        text = ENTITY.sub(lambda found: html.unescape(f"&{found[1]};"), text)
    text = unicodedata.normalize("NFC", text)
    return f" {' '.join(WORD.findall(text))} ".replace("  ", " ")


def texts_of(messages: Sequence[ChatMessage]) -> Iterator[str]:
    """Yield the texts in messages, including the arguments of tool calls."""
    for message in messages:
        yield str(message["content"] or "")
        calls = message.get("tool_calls")
        for call in calls if isinstance(calls, list) else ():
            yield from _strings(call["function"]["arguments"])


@dataclass(frozen=True)
class Speech:
    """Quotable texts of an action.

    Args:
        texts: normalized texts that may be quoted as a whole: the full message, the message without reasoning, each
            argument of a call.
        prompt: normalized texts of the action's prompt.
    """

    action: Action
    texts: tuple[str, ...]
    prompt: tuple[str, ...]

    @cached_property
    def role(self) -> str:
        """Normalized role name."""
        return plain(self.action.agent)

    @cached_property
    def windows(self) -> frozenset[str]:
        """All runs of ``FEW`` words.

        The set is empty if the action has fewer than ``WINDOW`` words, too few for a match by parts.
        """
        return frozenset(_windows(self._words, FEW)) if len(self._words) >= WINDOW else frozenset()

    @cached_property
    def own(self) -> frozenset[str]:
        """Word windows in this action that do not occur in its prompt."""
        return self.windows.difference(*(_windows(text.split(), FEW) for text in self.prompt))

    def new_words(self, text: str, given: Sequence[str]) -> int:
        """Return the number of words in a part introduced by the action: absent from its prompt and from ``given``."""
        words = text.split()
        told = [False] * len(words)
        for at, window in enumerate(_windows(words, FEW)):
            if window not in self.own or any(f" {window} " in one for one in given):
                told[at : at + FEW] = [True] * FEW
        return told.count(False)

    def shown_by(self, parts: Sequence[str], given: Sequence[str]) -> bool:
        """Return true if these parts identify the action.

        One part must contain half of the action's own words in a row, or all parts together two thirds. The minimum
        is ``WINDOW`` words, and ``LONGEST_PART`` words in a row always suffice.
        """
        counts = [self.new_words(part, given) for part in parts]
        whole = self.new_words(" ".join(self._words), given)
        in_a_row = max(WINDOW, min(LONGEST_PART, -(-whole // 2)))
        return any(count >= in_a_row for count in counts) or sum(counts) >= max(WINDOW, -(-whole * 2 // 3))

    @cached_property
    def _words(self) -> list[str]:
        return max(self.texts, key=len, default="").split()


@dataclass(frozen=True, slots=True)
class _Place:
    """Position of a text: the piece and a range of characters, including the spaces around.

    For a part, the range counts words instead.
    """

    piece: int
    start: int
    end: int


class Quoting:
    """Quote attribution for one episode, over all its earlier texts."""

    def __init__(self) -> None:
        self._plain: dict[str, str] = {}
        self._speeches: dict[str, Speech] = {}  # by action id
        # word windows from programs' own words → the ids of actions that existed then
        self._shown: dict[str, frozenset[str]] = {}

    def note(self, action: Action, message: ChatMessage, chat: Chat) -> None:
        """Add an action.

        Args:
            message: the action in the form that its client received.
            chat: the chat that it answers.
        """
        told = [*texts_of(chat.messages), chat.begun]
        self._speeches[action.id] = self._speech(action, list(texts_of([message])), told)

    def seen(self, texts: Sequence[str], given: Sequence[str], earlier: Sequence[Action]) -> set[str]:
        """Return the ids for earlier actions quoted in the texts.

        Args:
            texts: the new texts of a program.
            given: the task as shown, and the agent's own instructions.
            earlier: the episode's actions so far.
        """
        for text in given:
            self._shown |= dict.fromkeys(_windows(self._words_of(text).split(), WINDOW), frozenset())
        speeches = [self._speeches.get(action.id) or self._speech(action, [], []) for action in earlier]
        reading = _Reading(self._shown, [self._words_of(text) for text in given], map(self._words_of, texts))
        found = reading.authors(speeches)
        there = frozenset(action.id for action in earlier)
        for window in self._lines(texts, reading.pieces):
            self._shown.setdefault(window, there)
        return found

    def _lines(self, texts: Sequence[str], left: Sequence[str]) -> Iterator[str]:
        """Yield the word windows of each line that remains whole after the matches.

        Windows across lines are left out, because the order of lines is coincidental.
        """
        for line in {line for text in texts for line in text.splitlines()}:
            words = self._words_of(line)
            if any(words in piece for piece in left):
                yield from _windows(words.split(), WINDOW)

    def _speech(self, action: Action, told: Sequence[str], prompt: Sequence[str]) -> Speech:
        whole = [action.message, action.message[thought(action.message) :], *told[:1]]
        # two words or more; a single word could be a mere number
        parts = [words for text in told if (words := self._words_of(text)).count(" ") > 2]
        texts = dict.fromkeys([*map(self._words_of, whole), *parts])
        return Speech(action, tuple(filter(str.strip, texts)), tuple(map(self._words_of, prompt)))

    def _words_of(self, text: str) -> str:
        if text not in self._plain:
            self._plain[text] = plain(text)
        return self._plain[text]


class _Reading:
    """Texts in which quoted words are matched to actions; ``pieces`` holds the unmatched rest."""

    def __init__(self, shown: Mapping[str, frozenset[str]], given: Sequence[str], texts: Iterator[str]) -> None:
        self._shown, self._given = shown, [text for text in given if text.strip()]
        self.pieces = list(texts)

    def authors(self, speeches: Sequence[Speech]) -> set[str]:
        """Return the ids of actions quoted here, directly or within another quoted action."""
        found = dict[str, tuple[Speech, list[str]]]()  # action id → (its texts, the quoted parts)
        by_text = dict[str, list[Speech]]()
        for speech in speeches:
            for text in speech.texts:
                by_text.setdefault(text, []).append(speech)
        for text in sorted(dict.fromkeys([*by_text, *self._given]), key=len, reverse=True):
            for speech in self._whole(text, by_text.get(text, [])):
                found.setdefault(speech.action.id, (speech, []))[1].append(text)
        for speech, parts in self._in_parts(speeches):
            found.setdefault(speech.action.id, (speech, []))[1].extend(parts)
        quoted = set[str]()
        for speech, texts in found.values():
            others = [one for one in speeches if one.action.id in speech.action.sees]
            quoted |= _Reading(self._shown, self._given, iter(texts)).authors(others)
        return {*found, *quoted}

    def _whole(self, text: str, speeches: Sequence[Speech]) -> list[Speech]:
        """Remove every whole occurrence from the pieces, and return the actions credited for the text.

        Each occurrence counts for one of the actions with exactly this text, or for several named together before
        it. If the text was also given to the agent, one occurrence is attributed to that.
        """
        places, left = list(self._places(text)), list(speeches)
        cut = places[: 1 if speeches else len(places)] if text in self._given else []
        for place in places[len(cut) :]:
            able = self._unexplained(place, text, speeches)
            waiting = [speech for speech in able if speech in left]
            for speech in self._likeliest(place, waiting) if waiting else ():
                left.remove(speech)
            if able:
                cut = [*cut, place]
        self._cut(cut)
        return [speech for speech in speeches if speech not in left]

    def _places(self, text: str) -> Iterator[_Place]:
        for number, piece in enumerate(self.pieces):
            at = piece.find(text)
            while at >= 0:
                yield _Place(number, at, at + len(text))
                at = piece.find(text, at + len(text) - 1)

    def _unexplained(self, place: _Place, text: str, speeches: Sequence[Speech]) -> list[Speech]:
        """Return the possible source actions for a text at a place.

        An action is excluded if the text is part of a longer run of words that was shown before the action.
        """
        longer, within = self._across(place, text), list(_windows(text.split(), WINDOW))
        return [
            speech
            for speech in speeches
            if not any(self._known(window, speech) for window in longer)
            or not all(self._known(window, speech) for window in within)
        ]

    def _across(self, place: _Place, text: str) -> list[str]:
        """Return the windows that extend beyond a text at a place, with the largest possible overlap."""
        piece, words = self.pieces[place.piece], text.split()
        before, after = _last(piece[: place.start], WINDOW), _first(piece[place.end :], WINDOW)
        start, end, most = len(before), len(before) + len(words), min(len(words), WINDOW - 1)
        windows = enumerate(_windows([*before, *words, *after], WINDOW))
        return [window for at, window in windows if min(at + WINDOW, end) - max(at, start) == most]

    def _known(self, window: str, speech: Speech) -> bool:
        """Return true if a window was shown before an action."""
        there = self._shown.get(window)
        return there is not None and speech.action.id not in there

    def _likeliest(self, place: _Place, speeches: Sequence[Speech]) -> list[Speech]:
        """Return the most likely sources among actions with the same text.

        This is the action whose role is named last before the text, plus the roles named together with it.
        Otherwise it is the action whose role is named first after the text, or the latest action.
        """
        piece = self.pieces[place.piece]
        before = f" {' '.join(_last(piece[: place.start], NEAR))} "
        after = f" {' '.join(_first(piece[place.end :], NEAR))} "
        if not any(speech.role in before for speech in speeches):
            named = [speech for speech in speeches if speech.role in after] or list(speeches)
            return [max(named, key=lambda speech: (-after.find(speech.role), speech.action.index))]
        found = [max(speeches, key=lambda speech: (before.rfind(speech.role), speech.action.index))]
        while True:
            head = before[: before.rfind(found[-1].role) + 1].removesuffix("and ")
            beside = [speech for speech in speeches if head.endswith(speech.role) and speech not in found]
            if not beside:
                return found
            found.append(max(beside, key=lambda speech: speech.action.index))

    def _in_parts(self, speeches: Sequence[Speech]) -> Iterator[tuple[Speech, list[str]]]:
        """Remove the parts of edited or truncated actions, the longest part first; yield each action with its parts."""
        self._words = [piece.split() for piece in self.pieces]
        here = {window for words in self._words for window in _windows(words, FEW)}
        able = [speech for speech in speeches if not speech.windows.isdisjoint(here)]
        parts = [(speech, places) for speech in able if (places := self._shown_by(speech, self._stretches(speech)))]
        parts.sort(key=lambda part: (self._longest(part[1]), part[0].action.index), reverse=True)
        inside, cut = _within_others([places for _, places in parts]), list[_Place]()
        for number, (speech, places) in enumerate(parts):
            left = (piece for place in places if (number, place) not in inside for piece in _left(place, cut))
            found = self._shown_by(speech, left)
            if found:
                yield speech, self._at(found)
                cut += found
        pieces = [_Place(number, 0, len(words)) for number, words in enumerate(self._words)]
        self.pieces = self._at([left for piece in pieces for left in _left(piece, cut)])

    def _at(self, places: Iterable[_Place]) -> list[str]:
        return [f" {' '.join(self._words[place.piece][place.start : place.end])} " for place in places]

    def _longest(self, places: Sequence[_Place]) -> int:
        return max(map(len, self._at(places)))

    def _shown_by(self, speech: Speech, stretches: Iterable[_Place]) -> list[_Place]:
        """Return the stretches with words introduced by the action, if they identify it; else an empty list."""
        places = list(stretches)
        places = [place for place, text in zip(places, self._at(places), strict=True) if self._own(text, speech)]
        return places if speech.shown_by(self._at(places), self._given) else []

    def _stretches(self, speech: Speech) -> Iterator[_Place]:
        """Yield the places of an action's stretches in the pieces."""
        for number, words in enumerate(self._words):
            found = list[_Place]()
            for at, window in enumerate(_windows(words, FEW)):
                if window in speech.windows:
                    start = found.pop().start if found and at < found[-1].end else at
                    found.append(_Place(number, start, at + FEW))
            yield from found

    def _own(self, text: str, speech: Speech) -> bool:
        """Return true if an action introduced these words: shown neither in its prompt nor anywhere before."""
        words = text.split()
        known = len(words) >= WINDOW and all(self._known(window, speech) for window in _windows(words, WINDOW))
        return not known and speech.new_words(text, self._given) > 0

    def _cut(self, places: Sequence[_Place]) -> None:
        """Cut places out of the pieces.

        Args:
            places: in order.
        """
        ends = dict[int, list[tuple[int, int]]]()
        for place in places:
            ends.setdefault(place.piece, []).append((place.start, place.end))
        pieces = list[str]()
        for number, piece in enumerate(self.pieces):
            at = 0
            for start, end in ends.get(number, []):
                pieces.append(piece[at : start + 1])
                at = end - 1
            pieces.append(piece[at:])
        self.pieces = pieces


def _within_others(parts: Sequence[Sequence[_Place]]) -> set[tuple[int, _Place]]:
    """Return (action number, place) for each place within a longer place from another action."""
    within, begun = set[tuple[int, _Place]](), list[_Place]()  # earlier places that may enclose the next
    for number, place in sorted(
        ((number, place) for number, places in enumerate(parts) for place in places),
        key=lambda one: (one[1].piece, one[1].start, -one[1].end),
    ):
        begun = [one for one in begun if one.piece == place.piece and one.end >= place.end]
        if any(one != place for one in begun):
            within.add((number, place))
        begun.append(place)
    return within


def _left(place: _Place, cut: Sequence[_Place]) -> Iterator[_Place]:
    """Yield the remainders of a place after the cuts, if at least ``FEW`` words long."""
    start = place.start
    others = sorted((one.start, one.end) for one in cut if one.piece == place.piece)
    for begins, ends in [*others, (place.end, place.end)]:
        end = min(begins, place.end)
        if end - start >= FEW:
            yield _Place(place.piece, start, end)
        start = max(start, ends)


def _first(text: str, count: int) -> list[str]:
    """Return the first ``count`` words."""
    return text.split(None, count)[:count]


def _last(text: str, count: int) -> list[str]:
    """Return the last ``count`` words."""
    return text.rsplit(None, count)[-count:]


def _windows(words: Sequence[str], size: int) -> Iterator[str]:
    """Yield every run with ``size`` words."""
    return (" ".join(words[at : at + size]) for at in range(len(words) - size + 1))


def _strings(value: object) -> Iterator[str]:
    """Yield the texts in a JSON value."""
    if isinstance(value, Mapping):
        value = list(value.values())
    for inner in value if isinstance(value, list) else [value]:
        if isinstance(inner, Mapping | list):
            yield from _strings(inner)
        else:
            yield str(inner)
