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
from marft.agents.prompt_messages import ChatMessage
from marft.common.reasoning import measure_reasoning
from marft.common.types import Action

# Marks that combine with the letter before them: accents, points, and the vowels of Indian scripts.
COMBINING_MARKS = r"\u0300-\u036f\u0591-\u05bd\u064b-\u065f\u0900-\u0963\u0966-\u0df3"
# A word character in a script that separates words by spaces: not Thai, Lao, Burmese, Khmer, kana or Chinese.
WORD_CHARACTER = (
    rf"(?:[{COMBINING_MARKS}]|[^\W_\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    r"\U00020000-\U0003ffff])"
)
# arrows, logic symbols, emoji: one word each
SYMBOLS = r"\u2190-\u22ff\u2600-\u27bf\u2b00-\u2bff\U0001f000-\U0001faff"
WORD = re.compile(rf"{WORD_CHARACTER}+(?:(?<=\d)[.,](?=\d){WORD_CHARACTER}+)*|[^\W_]|[{SYMBOLS}]")
ESCAPED = re.compile(r"\\+(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2}))")
ENTITY = re.compile(r"&(?:amp;)*(#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[a-zA-Z]{2,31});")
SPACE = re.compile(r"\\+[nrt]")
WINDOW = 4  # words: a run this long that occurred before is no coincidence
MIN_PART = 3  # words: a shorter run does not count as a quoted part
SUFFICIENT_PART = 6  # words: a run this long identifies an action with more than twice as many own words
ROLE_WINDOW = 8  # words before a text in which its author's name is searched


def normalize_words(text: str) -> str:
    """Return the words of a text, with one space before and after each.

    >>> normalize_words('It is **3.142**,\\\\n"1,000" or x_1.')
    ' It is 3.142 1,000 or x 1 '
    """
    if "\\" in text:
        text = SPACE.sub(" ", ESCAPED.sub(lambda match: chr(int(match[1] or match[2], 16)), text))
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if "&" in text:
        text = ENTITY.sub(lambda match: html.unescape(f"&{match[1]};"), text)
    text = unicodedata.normalize("NFC", text)
    return f" {' '.join(WORD.findall(text))} ".replace("  ", " ")


def iter_texts(messages: Sequence[ChatMessage]) -> Iterator[str]:
    """Yield the texts in messages, including the arguments of tool calls."""
    for message in messages:
        yield str(message["content"] or "")
        calls = message.get("tool_calls")
        for call in calls if isinstance(calls, list) else ():
            yield from _iter_strings(call["function"]["arguments"])


@dataclass(frozen=True)
class QuoteSource:
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
    def normalized_role(self) -> str:
        """Normalized role name."""
        return normalize_words(self.action.agent)

    @cached_property
    def windows(self) -> frozenset[str]:
        """All runs of ``MIN_PART`` words.

        The set is empty if the action has fewer than ``WINDOW`` words, too few for a match by parts.
        """
        return frozenset(_word_windows(self._words, MIN_PART)) if len(self._words) >= WINDOW else frozenset()

    @cached_property
    def own_windows(self) -> frozenset[str]:
        """Word windows in this action that do not occur in its prompt."""
        return self.windows.difference(*(_word_windows(text.split(), MIN_PART) for text in self.prompt))

    def count_new_words(self, text: str, given_texts: Sequence[str]) -> int:
        """Return the number of words in a part introduced by the action: not in its prompt nor in ``given_texts``."""
        words = text.split()
        is_given = [False] * len(words)
        for at, window in enumerate(_word_windows(words, MIN_PART)):
            if window not in self.own_windows or any(f" {window} " in given_text for given_text in given_texts):
                is_given[at : at + MIN_PART] = [True] * MIN_PART
        return is_given.count(False)

    def is_identified(self, parts: Sequence[str], given_texts: Sequence[str]) -> bool:
        """Return true if these parts identify the action.

        One part must contain half of the action's own words in a row, or all parts together two thirds. The minimum
        is ``WINDOW`` words, and ``SUFFICIENT_PART`` words in a row always suffice.
        """
        counts = [self.count_new_words(part, given_texts) for part in parts]
        word_count = self.count_new_words(" ".join(self._words), given_texts)
        in_a_row = max(WINDOW, min(SUFFICIENT_PART, -(-word_count // 2)))
        return any(count >= in_a_row for count in counts) or sum(counts) >= max(WINDOW, -(-word_count * 2 // 3))

    @cached_property
    def _words(self) -> list[str]:
        return max(self.texts, key=len, default="").split()


@dataclass(frozen=True, slots=True)
class _Span:
    """Position of a text: the piece and a range of characters, including the spaces around.

    For a part, the range counts words instead.
    """

    piece: int
    start: int
    end: int


class QuoteTracker:
    """Quote attribution for one episode, over all its earlier texts."""

    def __init__(self) -> None:
        self._normalized: dict[str, str] = {}
        self._sources: dict[str, QuoteSource] = {}  # by action id
        # word windows from programs' own words → the ids of actions that existed then
        self._known_windows: dict[str, frozenset[str]] = {}

    def add_action(self, action: Action, message: ChatMessage, chat: Chat) -> None:
        """Add an action.

        Args:
            message: the action in the form that its client received.
            chat: the chat that it answers.
        """
        prompt_texts = [*iter_texts(chat.messages), chat.prefix]
        self._sources[action.id] = self._build_source(action, list(iter_texts([message])), prompt_texts)

    def find_quoted(self, texts: Sequence[str], given_texts: Sequence[str], earlier: Sequence[Action]) -> set[str]:
        """Return the ids for earlier actions quoted in the texts.

        Args:
            texts: the new texts of a program.
            given_texts: the task as shown, and the agent's own instructions.
            earlier: the episode's actions so far.
        """
        for text in given_texts:
            self._known_windows |= dict.fromkeys(_word_windows(self._normalize(text).split(), WINDOW), frozenset())
        sources = [self._sources.get(action.id) or self._build_source(action, [], []) for action in earlier]
        matches = _QuoteMatches(
            self._known_windows, [self._normalize(text) for text in given_texts], map(self._normalize, texts)
        )
        quoted = matches.find_authors(sources)
        earlier_ids = frozenset(action.id for action in earlier)
        for window in self._line_windows(texts, matches.pieces):
            self._known_windows.setdefault(window, earlier_ids)
        return quoted

    def _line_windows(self, texts: Sequence[str], unmatched: Sequence[str]) -> Iterator[str]:
        """Yield the word windows of each line that remains whole after the matches.

        Windows across lines are left out, because the order of lines is coincidental.
        """
        for line in {line for text in texts for line in text.splitlines()}:
            words = self._normalize(line)
            if any(words in piece for piece in unmatched):
                yield from _word_windows(words.split(), WINDOW)

    def _build_source(self, action: Action, message_texts: Sequence[str], prompt: Sequence[str]) -> QuoteSource:
        messages = [action.message, action.message[measure_reasoning(action.message) :], *message_texts[:1]]
        # two words or more; a single word could be a mere number
        parts = [words for text in message_texts if (words := self._normalize(text)).count(" ") > 2]
        texts = dict.fromkeys([*map(self._normalize, messages), *parts])
        return QuoteSource(action, tuple(filter(str.strip, texts)), tuple(map(self._normalize, prompt)))

    def _normalize(self, text: str) -> str:
        if text not in self._normalized:
            self._normalized[text] = normalize_words(text)
        return self._normalized[text]


class _QuoteMatches:
    """Texts in which quoted words are matched to actions; ``pieces`` holds the unmatched rest."""

    def __init__(
        self, known_windows: Mapping[str, frozenset[str]], given_texts: Sequence[str], texts: Iterator[str]
    ) -> None:
        self._known_windows, self._given_texts = known_windows, [text for text in given_texts if text.strip()]
        self.pieces = list(texts)

    def find_authors(self, sources: Sequence[QuoteSource]) -> set[str]:
        """Return the ids of actions quoted here, directly or within another quoted action."""
        matched = dict[str, tuple[QuoteSource, list[str]]]()  # action id → (its texts, the quoted parts)
        by_text = dict[str, list[QuoteSource]]()
        for source in sources:
            for text in source.texts:
                by_text.setdefault(text, []).append(source)
        for text in sorted(dict.fromkeys([*by_text, *self._given_texts]), key=len, reverse=True):
            for source in self._match_text(text, by_text.get(text, [])):
                matched.setdefault(source.action.id, (source, []))[1].append(text)
        for source, parts in self._match_parts(sources):
            matched.setdefault(source.action.id, (source, []))[1].extend(parts)
        quoted = set[str]()
        for source, texts in matched.values():
            seen_sources = [other_source for other_source in sources if other_source.action.id in source.action.sees]
            quoted |= _QuoteMatches(self._known_windows, self._given_texts, iter(texts)).find_authors(seen_sources)
        return {*matched, *quoted}

    def _match_text(self, text: str, sources: Sequence[QuoteSource]) -> list[QuoteSource]:
        """Remove every whole occurrence from the pieces, and return the actions credited for the text.

        Each occurrence counts for one of the actions with exactly this text, or for several named together before
        it. If the text was also given to the agent, one occurrence is attributed to that.
        """
        places, remaining = list(self._find_spans(text)), list(sources)
        cut = places[: 1 if sources else len(places)] if text in self._given_texts else []
        for place in places[len(cut) :]:
            possible = self._possible_sources(place, text, sources)
            waiting = [source for source in possible if source in remaining]
            for source in self._best_sources(place, waiting) if waiting else ():
                remaining.remove(source)
            if possible:
                cut = [*cut, place]
        self._remove(cut)
        return [source for source in sources if source not in remaining]

    def _find_spans(self, text: str) -> Iterator[_Span]:
        for number, piece in enumerate(self.pieces):
            at = piece.find(text)
            while at >= 0:
                yield _Span(number, at, at + len(text))
                at = piece.find(text, at + len(text) - 1)

    def _possible_sources(self, place: _Span, text: str, sources: Sequence[QuoteSource]) -> list[QuoteSource]:
        """Return the possible source actions for a text at a place.

        An action is excluded if the text is part of a longer run of words that was shown before the action.
        """
        longer, within = self._longer_windows(place, text), list(_word_windows(text.split(), WINDOW))
        return [
            source
            for source in sources
            if not any(self._is_known(window, source) for window in longer)
            or not all(self._is_known(window, source) for window in within)
        ]

    def _longer_windows(self, place: _Span, text: str) -> list[str]:
        """Return the windows that extend beyond a text at a place, with the largest possible overlap."""
        piece, words = self.pieces[place.piece], text.split()
        before, after = _last_words(piece[: place.start], WINDOW), _first_words(piece[place.end :], WINDOW)
        start, end, max_overlap = len(before), len(before) + len(words), min(len(words), WINDOW - 1)
        windows = enumerate(_word_windows([*before, *words, *after], WINDOW))
        return [window for at, window in windows if min(at + WINDOW, end) - max(at, start) == max_overlap]

    def _is_known(self, window: str, source: QuoteSource) -> bool:
        """Return true if a window was shown before an action."""
        earlier_ids = self._known_windows.get(window)
        return earlier_ids is not None and source.action.id not in earlier_ids

    def _best_sources(self, place: _Span, sources: Sequence[QuoteSource]) -> list[QuoteSource]:
        """Return the most likely sources among actions with the same text.

        This is the action whose role is named last before the text, plus the roles named together with it.
        Otherwise it is the action whose role is named first after the text, or the latest action.
        """
        piece = self.pieces[place.piece]
        before = f" {' '.join(_last_words(piece[: place.start], ROLE_WINDOW))} "
        after = f" {' '.join(_first_words(piece[place.end :], ROLE_WINDOW))} "
        if not any(source.normalized_role in before for source in sources):
            named = [source for source in sources if source.normalized_role in after] or list(sources)
            return [max(named, key=lambda source: (-after.find(source.normalized_role), source.action.index))]
        best = [max(sources, key=lambda source: (before.rfind(source.normalized_role), source.action.index))]
        while True:
            head = before[: before.rfind(best[-1].normalized_role) + 1].removesuffix("and ")
            adjacent = [source for source in sources if head.endswith(source.normalized_role) and source not in best]
            if not adjacent:
                return best
            best.append(max(adjacent, key=lambda source: source.action.index))

    def _match_parts(self, sources: Sequence[QuoteSource]) -> Iterator[tuple[QuoteSource, list[str]]]:
        """Remove the parts of edited or truncated actions, the longest part first; yield each action with its parts."""
        self._words = [piece.split() for piece in self.pieces]
        windows = {window for words in self._words for window in _word_windows(words, MIN_PART)}
        possible = [source for source in sources if not source.windows.isdisjoint(windows)]
        parts = [
            (source, places) for source in possible if (places := self._evidence_spans(source, self._find_runs(source)))
        ]
        parts.sort(key=lambda part: (self._max_length(part[1]), part[0].action.index), reverse=True)
        inside, cut = _find_nested([places for _, places in parts]), list[_Span]()
        for number, (source, places) in enumerate(parts):
            remaining = (
                piece for place in places if (number, place) not in inside for piece in _remaining_spans(place, cut)
            )
            matched = self._evidence_spans(source, remaining)
            if matched:
                yield source, self._span_texts(matched)
                cut += matched
        pieces = [_Span(number, 0, len(words)) for number, words in enumerate(self._words)]
        self.pieces = self._span_texts([remaining for piece in pieces for remaining in _remaining_spans(piece, cut)])

    def _span_texts(self, places: Iterable[_Span]) -> list[str]:
        return [f" {' '.join(self._words[place.piece][place.start : place.end])} " for place in places]

    def _max_length(self, places: Sequence[_Span]) -> int:
        return max(map(len, self._span_texts(places)))

    def _evidence_spans(self, source: QuoteSource, spans: Iterable[_Span]) -> list[_Span]:
        """Return the stretches with words introduced by the action, if they identify it; else an empty list."""
        places = list(spans)
        places = [
            place for place, text in zip(places, self._span_texts(places), strict=True) if self._is_new(text, source)
        ]
        return places if source.is_identified(self._span_texts(places), self._given_texts) else []

    def _find_runs(self, source: QuoteSource) -> Iterator[_Span]:
        """Yield the places of an action's stretches in the pieces."""
        for number, words in enumerate(self._words):
            runs = list[_Span]()
            for at, window in enumerate(_word_windows(words, MIN_PART)):
                if window in source.windows:
                    start = runs.pop().start if runs and at < runs[-1].end else at
                    runs.append(_Span(number, start, at + MIN_PART))
            yield from runs

    def _is_new(self, text: str, source: QuoteSource) -> bool:
        """Return true if an action introduced these words: shown neither in its prompt nor anywhere before."""
        words = text.split()
        all_known = len(words) >= WINDOW and all(
            self._is_known(window, source) for window in _word_windows(words, WINDOW)
        )
        return not all_known and source.count_new_words(text, self._given_texts) > 0

    def _remove(self, places: Sequence[_Span]) -> None:
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


def _find_nested(parts: Sequence[Sequence[_Span]]) -> set[tuple[int, _Span]]:
    """Return (action number, place) for each place within a longer place from another action."""
    within, open_spans = set[tuple[int, _Span]](), list[_Span]()  # earlier places that may enclose the next
    for number, place in sorted(
        ((number, place) for number, places in enumerate(parts) for place in places),
        key=lambda item: (item[1].piece, item[1].start, -item[1].end),
    ):
        open_spans = [item for item in open_spans if item.piece == place.piece and item.end >= place.end]
        if any(item != place for item in open_spans):
            within.add((number, place))
        open_spans.append(place)
    return within


def _remaining_spans(place: _Span, cut: Sequence[_Span]) -> Iterator[_Span]:
    """Yield the remainders of a place after the cuts, if at least ``MIN_PART`` words long."""
    start = place.start
    cut_spans = sorted((span.start, span.end) for span in cut if span.piece == place.piece)
    for begins, ends in [*cut_spans, (place.end, place.end)]:
        end = min(begins, place.end)
        if end - start >= MIN_PART:
            yield _Span(place.piece, start, end)
        start = max(start, ends)


def _first_words(text: str, count: int) -> list[str]:
    """Return the first ``count`` words."""
    return text.split(None, count)[:count]


def _last_words(text: str, count: int) -> list[str]:
    """Return the last ``count`` words."""
    return text.rsplit(None, count)[-count:]


def _word_windows(words: Sequence[str], size: int) -> Iterator[str]:
    """Yield every run with ``size`` words."""
    return (" ".join(words[at : at + size]) for at in range(len(words) - size + 1))


def _iter_strings(value: object) -> Iterator[str]:
    """Yield the texts in a JSON value."""
    if isinstance(value, Mapping):
        value = list(value.values())
    for inner in value if isinstance(value, list) else [value]:
        if isinstance(inner, Mapping | list):
            yield from _iter_strings(inner)
        else:
            yield str(inner)
