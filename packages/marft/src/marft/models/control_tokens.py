"""Which tokens nobody can write into a chat: those that begin and end its messages, not those that mark thoughts.

A chat is tokenised with the control tokens in what somebody wrote as plain text. Were the marks of thoughts among them,
an agent's own earlier turn would not be found to have a thought, and be shown otherwise than its template says.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TypeVar
from weakref import WeakKeyDictionary

from transformers import PreTrainedTokenizerBase
from transformers.utils.chat_template_utils import mark_control_tokens

from marft.common.thoughts import MARKS

MARKERS = re.compile("[\U000f0000\U000f0001]")  # which transformers puts around control tokens that are text
APART = "\U000f0001"  # a marker alone: what follows is encoded as in the middle of a chat

Written = TypeVar("Written")

_thought_ids: WeakKeyDictionary[PreTrainedTokenizerBase, frozenset[int]] = WeakKeyDictionary()
_letters: WeakKeyDictionary[PreTrainedTokenizerBase, tuple[int, ...]] = WeakKeyDictionary()


def leave_thoughts(tokenizer: PreTrainedTokenizerBase) -> None:
    """Take marks of thoughts from the tokens that are text where somebody wrote them, but for special ones."""
    template = tokenizer.chat_template
    text = "".join(template.values()) if isinstance(template, dict) else str(template)
    tokens = [token.content for token in tokenizer.added_tokens_decoder.values()]
    tokenizer.chat_control_tokens = [
        token for token in tokens if token in text and not token.isspace() and token not in MARKS
    ]


def control_ids(tokenizer: PreTrainedTokenizerBase) -> set[int]:
    """Return the ids that are no part of a text: special tokens, but for marks of thoughts."""
    added = tokenizer.added_tokens_decoder.items()
    return {id for id, token in added if token.special and token.content not in MARKS}


def spelled(tokenizer: PreTrainedTokenizerBase, ids: Iterable[int]) -> str:
    """Return the text of token ids without control tokens. Marks of thoughts stay, also special ones."""
    if tokenizer not in _thought_ids:
        added = tokenizer.added_tokens_decoder.values()
        special = any(token.special and token.content in MARKS for token in added)
        _thought_ids[tokenizer] = frozenset(control_ids(tokenizer)) if special else frozenset()
    control = _thought_ids[tokenizer]
    return str(tokenizer.decode([id for id in ids if id not in control], skip_special_tokens=not control))


def spelled_inside(tokenizer: PreTrainedTokenizerBase, ids: Iterable[int]) -> str:
    """Return what :func:`spelled` does, of ids that go on from others: tokenizers of SentencePiece's kind leave out the
    space before what begins a text."""
    if tokenizer not in _letters:
        _letters[tokenizer] = tuple(encoded_inside(tokenizer, "x"))
    ids, letter = tuple(ids), _letters[tokenizer]
    whole, before = spelled(tokenizer, [*letter, *ids]), spelled(tokenizer, letter)
    return whole[len(before) :] if whole.startswith(before) else spelled(tokenizer, ids)


def marked(tokenizer: PreTrainedTokenizerBase, written: Written, own: bool = False) -> Written:
    """Return texts with their control tokens marked as text, at any depth of messages and tools.

    Args:
        own: a model's own turn: marks of thoughts are tokens, also special ones.
    """
    known = set(tokenizer.chat_control_tokens or ())
    added = [token for token in tokenizer.added_tokens_decoder.values() if token.special or token.content in known]
    names = {token.content for token in added}.difference(MARKS if own else ())
    pattern = "|".join(map(re.escape, sorted(names, key=len, reverse=True)))
    found: Written = mark_control_tokens(written, re.compile(pattern or "(?!)"))
    return found


def unmarked(text: str) -> str:
    """Return a text without the marks of :func:`marked`."""
    return MARKERS.sub("", text)


def encoded(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Return the ids of a text in which control tokens that somebody wrote are marked."""
    return list(tokenizer(text, add_special_tokens=False, sanitize_control_tokens=True)["input_ids"])


def encoded_inside(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Return the ids of a marked text that stands in the middle of a chat: tokenizers of SentencePiece's kind put a
    space before what begins a text, and nothing before that."""
    return encoded(tokenizer, APART + text)
