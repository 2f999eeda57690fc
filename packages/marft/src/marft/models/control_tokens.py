"""Control tokens: escaping in chat text, and decoding without control tokens.

In a chat, control tokens in message text are tokenized as plain text. Reasoning tags are exempt. Otherwise the template
would not recognize reasoning in an agent's earlier turn, and would render the turn differently.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TypeVar
from weakref import WeakKeyDictionary

from transformers import PreTrainedTokenizerBase
from transformers.utils.chat_template_utils import mark_control_tokens

from marft.common.thoughts import MARKS

MARKERS = re.compile("[\U000f0000\U000f0001]")  # markers that transformers puts around escaped control tokens
APART = "\U000f0001"  # single marker: the following text is encoded as a continuation, not as the start of a text

Written = TypeVar("Written")

_thought_ids: WeakKeyDictionary[PreTrainedTokenizerBase, frozenset[int]] = WeakKeyDictionary()
_letters: WeakKeyDictionary[PreTrainedTokenizerBase, tuple[int, ...]] = WeakKeyDictionary()


def leave_thoughts(tokenizer: PreTrainedTokenizerBase) -> None:
    """Exclude reasoning tags from the escaped control tokens.

    Reasoning tags that are special tokens remain escaped.
    """
    template = tokenizer.chat_template
    text = "".join(template.values()) if isinstance(template, dict) else str(template)
    tokens = [token.content for token in tokenizer.added_tokens_decoder.values()]
    tokenizer.chat_control_tokens = [
        token for token in tokens if token in text and not token.isspace() and token not in MARKS
    ]


def control_ids(tokenizer: PreTrainedTokenizerBase) -> set[int]:
    """Return the ids excluded from decoded text: special tokens except reasoning tags."""
    added = tokenizer.added_tokens_decoder.items()
    return {id for id, token in added if token.special and token.content not in MARKS}


def spelled(tokenizer: PreTrainedTokenizerBase, ids: Iterable[int]) -> str:
    """Decode token ids without control tokens. Reasoning tags stay, even if special."""
    if tokenizer not in _thought_ids:
        added = tokenizer.added_tokens_decoder.values()
        special = any(token.special and token.content in MARKS for token in added)
        _thought_ids[tokenizer] = frozenset(control_ids(tokenizer)) if special else frozenset()
    control = _thought_ids[tokenizer]
    return str(tokenizer.decode([id for id in ids if id not in control], skip_special_tokens=not control))


def spelled_inside(tokenizer: PreTrainedTokenizerBase, ids: Iterable[int]) -> str:
    """Decode token ids that continue a text, with the leading space that SentencePiece tokenizers would drop."""
    if tokenizer not in _letters:
        _letters[tokenizer] = tuple(encoded_inside(tokenizer, "x"))
    ids, letter = tuple(ids), _letters[tokenizer]
    whole, before = spelled(tokenizer, [*letter, *ids]), spelled(tokenizer, letter)
    return whole[len(before) :] if whole.startswith(before) else spelled(tokenizer, ids)


def marked(tokenizer: PreTrainedTokenizerBase, written: Written, own: bool = False) -> Written:
    """Escape the control tokens in texts, at any depth of messages and tools.

    Args:
        own: whether the model itself wrote the text. If so, reasoning tags remain tokens, even if special.
    """
    known = set(tokenizer.chat_control_tokens or ())
    added = [token for token in tokenizer.added_tokens_decoder.values() if token.special or token.content in known]
    names = {token.content for token in added}.difference(MARKS if own else ())
    pattern = "|".join(map(re.escape, sorted(names, key=len, reverse=True)))
    found: Written = mark_control_tokens(written, re.compile(pattern or "(?!)"))
    return found


def unmarked(text: str) -> str:
    """Remove the markers added by :func:`marked`."""
    return MARKERS.sub("", text)


def encoded(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Encode a text with escaped control tokens, without adding special tokens."""
    return list(tokenizer(text, add_special_tokens=False, sanitize_control_tokens=True)["input_ids"])


def encoded_inside(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Encode an escaped text inside a chat, without the leading space that SentencePiece tokenizers would add."""
    return encoded(tokenizer, APART + text)
