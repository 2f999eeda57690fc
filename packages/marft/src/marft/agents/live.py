"""Streaming for actions: tokens during sampling, and the stable part of the text."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from marft.common.texts import place
from marft.common.thoughts import Said, family_of, may_begin, thought
from marft.common.types import Action

HALF = "\ufffd"  # replacement character for an incomplete character


@dataclass(frozen=True, slots=True)
class Begun:
    """Action about to be sampled.

    Args:
        read: number of tokens in its prompt.
        sees: ids of the actions in its prompt.
        restarted: reason if its prompt begins a new segment, or "".
    """

    id: str
    policy: str
    read: int
    sees: tuple[str, ...] = ()
    restarted: str = ""

    @staticmethod
    def of(action: Action) -> Begun:
        """Return the start information of a finished action."""
        return Begun(action.id, action.policy, len(action.prompt), action.sees, action.restarted)


class Live:
    """Token stream for one action during sampling.

    The run's and the engine's threads write it; any thread may read it.
    """

    def __init__(self) -> None:
        self.begun: Begun | None = None
        self.tokens: list[int] = []
        self.text: Callable[[], LiveText] | None = None  # makes the detokenizer for one reader
        self._watching: list[Callable[[], None]] = []

    def begin(self, begun: Begun) -> None:
        """Set the start information before sampling begins."""
        self.begun = begun

    def __call__(self, token: int) -> None:
        """Append the next token and notify all subscribers."""
        self.tokens.append(token)
        for stir in tuple(self._watching):
            stir()

    @contextmanager
    def watched(self, stir: Callable[[], None]) -> Iterator[None]:
        """Call ``stir`` after every token. It must return quickly and not raise, because sampling waits for it."""
        self._watching.append(stir)
        try:
            yield
        finally:
            self._watching.remove(stir)


class Spelling:
    """Incremental detokenizer: the text of a token stream, without its unstable end.

    A character with missing bytes is not in the text yet. Only the last tokens are decoded again, starting at the
    last-but-one point with stable text.

    Args:
        decode: function from tokens to text.
        silent: tokens without text, such as control tokens.
        bytes_: tokens for a single byte. A run of byte tokens becomes text only at its end, since later bytes can
            invalidate it.
        tidies: whether decoding removes spaces, such as before a comma or an apostrophe.
    """

    def __init__(
        self, decode: Callable[[Sequence[int]], str], silent: Collection[int] = (), bytes_: Collection[int] = (),
        tidies: bool = False,
    ) -> None:  # fmt: skip
        self._decode, self._silent, self._bytes, self._tidies = decode, silent, bytes_, tidies
        self._ids: list[int] = []
        self._sure = 0  # number of leading tokens that ended at a stable point
        self._read = 0  # number of their characters already in the text
        self.text = ""

    def take(self, tokens: Sequence[int]) -> None:
        """Add the next tokens."""
        self._ids += [token for token in tokens if token not in self._silent]
        if not self._ids or self._ids[-1] in self._bytes:
            return
        whole = self._decode(self._ids)
        certain = whole.rstrip(HALF)
        if self._tidies:
            certain = whole[: max(0, whole.rfind(" "))]
        self.text += certain[self._read :]
        self._read = max(self._read, len(certain))
        if certain == whole:
            self._go_on()

    def rest(self) -> str:
        """Return the unstable text after ``text``; later tokens may still change it."""
        return self._decode(self._ids)[self._read :]

    def _go_on(self) -> None:
        """Drop the tokens before the previous stable point."""
        since = self._decode(self._ids[self._sure :])
        if since.strip():  # Keep a first non-space part: decoding may drop a space at the start of a text.
            del self._ids[: self._sure]
            self._read = len(since)
        self._sure = len(self._ids)


class LiveText:
    """Stable text from an action, safe to send to a client during sampling.

    Args:
        spelling: detokenizer for the action's tokens.
        stops: stop strings.
        begun: whether the prompt opens a reasoning block, if reasoning is dropped. None keeps reasoning in the
            message.
        certain: returns the number of leading message characters that belong to no tool call and remain unchanged
            beside calls.
    """

    def __init__(
        self, spelling: Spelling, stops: Sequence[str | Said] = (), begun: bool | None = None,
        certain: Callable[[str], int] = len,
    ) -> None:  # fmt: skip
        self._spelling, self._stops, self._begun, self._certain = spelling, stops, begun, certain
        self._thought = self._said = ""  # parts already sent
        self._since = 0  # start index of the message in the text, once a part was sent

    def take(self, tokens: Sequence[int]) -> tuple[str, str]:
        """Add the next tokens and return the newly stable reasoning and message text."""
        self._spelling.take(tokens)
        text = before(self._spelling.text, self._stops)
        of_thought = self._of_thought(text)
        # another reasoning block ended, so the start of the message moved
        if of_thought is None or (self._said and of_thought != self._since):
            return "", ""
        said = text[of_thought:] if self._begun is None else before(text[of_thought:], (family_of(text)[1],))
        return self._told(text[:of_thought], said[: self._certain(said)])

    def rest(self, thought: str, said: str) -> tuple[str, str]:
        """Return the parts not sent yet, given the final reasoning and message.

        If another reasoning block ended after the message began, the sent parts stay sent and the whole final
        message follows.

        Raises:
            ValueError: the final text contradicts the parts already sent.
        """
        if self._said and len(thought) != self._since:
            return "", said
        if not (thought.startswith(self._thought) and said.startswith(self._said)):
            raise ValueError("the text is another one than was told while it came about")
        return self._told(thought, said)

    def _of_thought(self, text: str) -> int | None:
        """Return the number of leading reasoning characters, or None if undecided."""
        if self._begun is None:
            return 0
        if not self._begun and may_begin(text):
            return None
        return thought(text, self._begun)

    def _told(self, thought: str, said: str) -> tuple[str, str]:
        """Return the new reasoning and message text, and mark both sent."""
        new = thought[len(self._thought) :], said[len(self._said) :]
        self._thought, self._said, self._since = thought, said, len(thought)
        return new


def before(text: str, marks: Sequence[str | Said]) -> str:
    """Return the text before the first marker, or before a possible beginning of a marker at the end.

    >>> before("It is 3. <tool", ["<tool_call>"]), before("It is <b>", ["<tool_call>"])
    ('It is 3. ', 'It is <b>')
    """
    end = len(text)
    for mark in marks:
        at = place(text, mark)
        if at < 0:
            word = mark.text if isinstance(mark, Said) else mark
            sizes = range(min(len(word) - 1, len(text)), 0, -1)
            at = next((len(text) - size for size in sizes if word.startswith(text[len(text) - size :])), len(text))
        end = min(end, at)
    return text[:end]
