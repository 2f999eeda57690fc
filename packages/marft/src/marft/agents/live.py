"""An action while it comes about: its tokens as they are sampled, and what of its text is certain by then."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from marft.common.texts import place
from marft.common.thoughts import Said, family_of, may_begin, thought
from marft.common.types import Action

HALF = "\ufffd"  # what half a character is decoded to


@dataclass(frozen=True, slots=True)
class Begun:
    """An action that is about to be sampled.

    Args:
        read: tokens of its prompt.
        restarted: why its prompt begins a new segment, if so.
    """

    id: str
    policy: str
    read: int
    sees: tuple[str, ...] = ()
    restarted: str = ""

    @staticmethod
    def of(action: Action) -> Begun:
        """What was known of an action when it began."""
        return Begun(action.id, action.policy, len(action.prompt), action.sees, action.restarted)


class Live:
    """The tokens of one action as they are sampled: written on the run's and the engine's threads, read on any."""

    def __init__(self) -> None:
        self.begun: Begun | None = None
        self.tokens: list[int] = []
        self.text: Callable[[], LiveText] | None = None  # makes what spells them, for one reader
        self._watching: list[Callable[[], None]] = []

    def begin(self, begun: Begun) -> None:
        """It is about to be sampled."""
        self.begun = begun

    def __call__(self, token: int) -> None:
        """The next token is this one."""
        self.tokens.append(token)
        for stir in tuple(self._watching):
            stir()

    @contextmanager
    def watched(self, stir: Callable[[], None]) -> Iterator[None]:
        """Have ``stir`` called after every token. It must not raise, nor take long: sampling waits for it."""
        self._watching.append(stir)
        try:
            yield
        finally:
            self._watching.remove(stir)


class Spelling:
    """The text of tokens that come one after another, up to what may still change: a character whose last bytes are
    missing is no text yet.

    Only the last tokens are decoded again: from one place at which all was certain on, before the last such place.

    Args:
        decode: the text of tokens.
        silent: tokens that are no text: control tokens.
        bytes_: tokens that are one byte each: a run of them is text once it is over, for only then is it known whether
            all of it is.
        tidies: whether decoding takes spaces away, before a comma or an apostrophe.
    """

    def __init__(
        self, decode: Callable[[Sequence[int]], str], silent: Collection[int] = (), bytes_: Collection[int] = (),
        tidies: bool = False,
    ) -> None:  # fmt: skip
        self._decode, self._silent, self._bytes, self._tidies = decode, silent, bytes_, tidies
        self._ids: list[int] = []
        self._sure = 0  # how many of these were all certain once
        self._read = 0  # characters of theirs that are in the text
        self.text = ""

    def take(self, tokens: Sequence[int]) -> None:
        """The next tokens are these."""
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
        """What the tokens spell beyond ``text`` as they stand: it may still change."""
        return self._decode(self._ids)[self._read :]

    def _go_on(self) -> None:
        """Forget the tokens before the last place at which all was certain."""
        since = self._decode(self._ids[self._sure :])
        if since.strip():  # else it would not be known whether the next space is the text's first, which some leave out
            del self._ids[: self._sure]
            self._read = len(since)
        self._sure = len(self._ids)


class LiveText:
    """What a client may be told of an action while it is sampled: what stays so, however its text goes on.

    Args:
        stops: texts that end it.
        begun: where its thoughts are dropped: whether its prompt has begun one. None: they are part of what it says.
        certain: of what it says: how many first characters are no call, and are kept beside calls as they are.
    """

    def __init__(
        self, spelling: Spelling, stops: Sequence[str | Said] = (), begun: bool | None = None,
        certain: Callable[[str], int] = len,
    ) -> None:  # fmt: skip
        self._spelling, self._stops, self._begun, self._certain = spelling, stops, begun, certain
        self._thought = self._said = ""  # what was told
        self._since = 0  # where in the text what is said began, once something was

    def take(self, tokens: Sequence[int]) -> tuple[str, str]:
        """The next tokens are these → what can be told of its thought now, and of what it says."""
        self._spelling.take(tokens)
        text = before(self._spelling.text, self._stops)
        of_thought = self._of_thought(text)
        if of_thought is None or (self._said and of_thought != self._since):  # a thought has ended once more
            return "", ""
        said = text[of_thought:] if self._begun is None else before(text[of_thought:], (family_of(text)[1],))
        return self._told(text[:of_thought], said[: self._certain(said)])

    def rest(self, thought: str, said: str) -> tuple[str, str]:
        """All of it is known → what was not told yet. What was told stays told, also where a thought has ended
        once more, and it is part of that.

        Raises:
            ValueError: something else was told.
        """
        if self._said and len(thought) != self._since:
            return "", said
        if not (thought.startswith(self._thought) and said.startswith(self._said)):
            raise ValueError("the text is another one than was told while it came about")
        return self._told(thought, said)

    def _of_thought(self, text: str) -> int | None:
        """How many first characters are a thought; None: that cannot be said yet."""
        if self._begun is None:
            return 0
        if not self._begun and may_begin(text):
            return None
        return thought(text, self._begun)

    def _told(self, thought: str, said: str) -> tuple[str, str]:
        """What is new in these."""
        new = thought[len(self._thought) :], said[len(self._said) :]
        self._thought, self._said, self._since = thought, said, len(thought)
        return new


def before(text: str, marks: Sequence[str | Said]) -> str:
    """What of a text comes before any of these marks, however it goes on.

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
