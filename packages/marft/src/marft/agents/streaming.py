"""Streaming for actions: tokens during sampling, and the stable part of the text."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from marft.common.errors import UserError
from marft.common.reasoning import StopString, find_delimiters, may_start_reasoning, measure_reasoning
from marft.common.texts import find_stop
from marft.common.types import Action

REPLACEMENT_CHARACTER = "\ufffd"  # replacement character for an incomplete character


@dataclass(frozen=True, slots=True)
class ActionStart:
    """Action about to be sampled.

    Args:
        prompt_tokens: number of tokens in its prompt.
        sees: ids of the actions in its prompt.
        restart_reason: reason if its prompt begins a new segment, or "".
    """

    id: str
    policy: str
    prompt_tokens: int
    sees: tuple[str, ...] = ()
    restart_reason: str = ""

    @staticmethod
    def from_action(action: Action) -> ActionStart:
        """Return the start information of a finished action."""
        return ActionStart(action.id, action.policy, len(action.prompt), action.sees, action.restarted)


class TokenStream:
    """Token stream for one action during sampling.

    The run's and the engine's threads write it; any thread may read it.
    """

    def __init__(self) -> None:
        self.start: ActionStart | None = None  # set before sampling begins
        self.tokens: list[int] = []
        self.make_text_stream: Callable[[], TextStream] | None = None  # makes the detokenizer for one reader
        self._callbacks: list[Callable[[], None]] = []

    def __call__(self, token: int) -> None:
        """Append the next token and notify all subscribers."""
        self.tokens.append(token)
        for callback in tuple(self._callbacks):
            callback()

    @contextmanager
    def subscribe(self, callback: Callable[[], None]) -> Iterator[None]:
        """Call ``callback`` after every token. It must return quickly and not raise, because sampling waits for it."""
        self._callbacks.append(callback)
        try:
            yield
        finally:
            self._callbacks.remove(callback)


class Detokenizer:
    """Incremental detokenizer: the text of a token stream, without its unstable end.

    A character with missing bytes is not in the text yet. Only the last tokens are decoded again, starting at the
    last-but-one point with stable text.

    Args:
        decode: function from tokens to text.
        skipped_tokens: tokens without text, such as control tokens.
        byte_tokens: tokens for a single byte. A run of byte tokens becomes text only at its end, since later bytes can
            invalidate it.
        cleans_up_spaces: whether decoding removes spaces, such as before a comma or an apostrophe.
    """

    def __init__(
        self,
        decode: Callable[[Sequence[int]], str],
        skipped_tokens: Collection[int] = (),
        byte_tokens: Collection[int] = (),
        cleans_up_spaces: bool = False,
    ) -> None:
        self._decode, self._cleans_up_spaces = decode, cleans_up_spaces
        self._skipped_tokens, self._byte_tokens = skipped_tokens, byte_tokens
        self._ids: list[int] = []
        self._stable_count = 0  # number of leading tokens that ended at a stable point
        self._read_length = 0  # number of their characters already in the text
        self.text = ""

    def add_tokens(self, tokens: Sequence[int]) -> None:
        """Add the next tokens."""
        self._ids += [token for token in tokens if token not in self._skipped_tokens]
        if not self._ids or self._ids[-1] in self._byte_tokens:
            return
        decoded = self._decode(self._ids)
        stable = decoded.rstrip(REPLACEMENT_CHARACTER)
        if self._cleans_up_spaces:
            stable = decoded[: max(0, decoded.rfind(" "))]
        self.text += stable[self._read_length :]
        self._read_length = max(self._read_length, len(stable))
        if stable == decoded:
            self._advance()

    def pending_text(self) -> str:
        """Return the unstable text after ``text``; later tokens may still change it."""
        return self._decode(self._ids)[self._read_length :]

    def _advance(self) -> None:
        """Drop the tokens before the previous stable point."""
        since = self._decode(self._ids[self._stable_count :])
        if since.strip():  # Keep a first non-space part: decoding may drop a space at the start of a text.
            del self._ids[: self._stable_count]
            self._read_length = len(since)
        self._stable_count = len(self._ids)


class TextStream:
    """Stable text from an action, safe to send to a client during sampling.

    Args:
        detokenizer: detokenizer for the action's tokens.
        stops: stop strings.
        in_reasoning: whether the prompt opens a reasoning block, if reasoning is dropped. None keeps reasoning in the
            message.
        stable_length: returns the number of leading message characters that belong to no tool call and remain unchanged
            beside calls.
    """

    def __init__(
        self,
        detokenizer: Detokenizer,
        stops: Sequence[str | StopString] = (),
        in_reasoning: bool | None = None,
        stable_length: Callable[[str], int] = len,
    ) -> None:
        self._detokenizer, self._stops = detokenizer, stops
        self._in_reasoning, self._stable_length = in_reasoning, stable_length
        self._sent_reasoning = self._sent_message = ""  # parts already sent
        self._message_start = 0  # start index of the message in the text, once a part was sent

    def add_tokens(self, tokens: Sequence[int]) -> tuple[str, str]:
        """Add the next tokens and return the newly stable reasoning and message text."""
        self._detokenizer.add_tokens(tokens)
        text = text_before(self._detokenizer.text, self._stops)
        reasoning_length = self._reasoning_length(text)
        # another reasoning block ended, so the start of the message moved
        if reasoning_length is None or (self._sent_message and reasoning_length != self._message_start):
            return "", ""
        message = text[reasoning_length:]
        if self._in_reasoning is not None:
            message = text_before(message, find_delimiters(text))
        return self._mark_sent(text[:reasoning_length], message[: self._stable_length(message)])

    def finish(self, reasoning: str, message: str) -> tuple[str, str]:
        """Return the parts not sent yet, given the final reasoning and message.

        If another reasoning block ended after the message began, the sent parts stay sent and the whole final
        message follows.

        Raises:
            UserError: the final text contradicts the parts already sent.
        """
        if self._sent_message and len(reasoning) != self._message_start:
            return "", message
        if not (reasoning.startswith(self._sent_reasoning) and message.startswith(self._sent_message)):
            raise UserError("the text is another one than was told while it came about")
        return self._mark_sent(reasoning, message)

    def _reasoning_length(self, text: str) -> int | None:
        """Return the number of leading reasoning characters, or None if undecided."""
        if self._in_reasoning is None:
            return 0
        if not self._in_reasoning and may_start_reasoning(text):
            return None
        return measure_reasoning(text, self._in_reasoning)

    def _mark_sent(self, reasoning: str, message: str) -> tuple[str, str]:
        """Return the new reasoning and message text, and mark both sent."""
        new = reasoning[len(self._sent_reasoning) :], message[len(self._sent_message) :]
        self._sent_reasoning, self._sent_message, self._message_start = reasoning, message, len(reasoning)
        return new


def text_before(text: str, marks: Sequence[str | StopString]) -> str:
    """Return the text before the first marker, or before a possible beginning of a marker at the end.

    >>> text_before("It is 3. <tool", ["<tool_call>"]), text_before("It is <b>", ["<tool_call>"])
    ('It is 3. ', 'It is <b>')
    """
    end = len(text)
    for mark in marks:
        at = find_stop(text, mark)
        if at < 0:
            word = mark.text if isinstance(mark, StopString) else mark
            sizes = range(min(len(word) - 1, len(text)), 0, -1)
            at = next((len(text) - size for size in sizes if word.startswith(text[len(text) - size :])), len(text))
        end = min(end, at)
    return text[:end]
