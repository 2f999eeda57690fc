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

from marft.common.reasoning import DELIMITERS

ESCAPE_MARKERS = re.compile("[\U000f0000\U000f0001]")  # markers that transformers puts around escaped control tokens
# single marker: the following text is encoded as a continuation, not as the start of a text
CONTINUATION_MARKER = "\U000f0001"

ChatData = TypeVar("ChatData")

_hidden_ids: WeakKeyDictionary[PreTrainedTokenizerBase, frozenset[int]] = WeakKeyDictionary()
_letter_ids: WeakKeyDictionary[PreTrainedTokenizerBase, tuple[int, ...]] = WeakKeyDictionary()


def exempt_reasoning_tags(tokenizer: PreTrainedTokenizerBase) -> None:
    """Exclude reasoning tags from the escaped control tokens.

    Reasoning tags that are special tokens remain escaped.
    """
    template = tokenizer.chat_template
    text = "".join(template.values()) if isinstance(template, dict) else str(template)
    tokens = [token.content for token in tokenizer.added_tokens_decoder.values()]
    tokenizer.chat_control_tokens = [
        token for token in tokens if token in text and not token.isspace() and token not in DELIMITERS
    ]


def control_token_ids(tokenizer: PreTrainedTokenizerBase) -> set[int]:
    """Return the ids excluded from decoded text: special tokens except reasoning tags."""
    added = tokenizer.added_tokens_decoder.items()
    return {id for id, token in added if token.special and token.content not in DELIMITERS}


def decode_text(tokenizer: PreTrainedTokenizerBase, ids: Iterable[int]) -> str:
    """Decode token ids without control tokens. Reasoning tags stay, even if special."""
    if tokenizer not in _hidden_ids:
        added = tokenizer.added_tokens_decoder.values()
        special = any(token.special and token.content in DELIMITERS for token in added)
        _hidden_ids[tokenizer] = frozenset(control_token_ids(tokenizer)) if special else frozenset()
    control = _hidden_ids[tokenizer]
    return str(tokenizer.decode([id for id in ids if id not in control], skip_special_tokens=not control))


def decode_continuation(tokenizer: PreTrainedTokenizerBase, ids: Iterable[int]) -> str:
    """Decode token ids that continue a text, with the leading space that SentencePiece tokenizers would drop."""
    if tokenizer not in _letter_ids:
        _letter_ids[tokenizer] = tuple(encode_continuation(tokenizer, "x"))
    ids, letter = tuple(ids), _letter_ids[tokenizer]
    full_text, letter_text = decode_text(tokenizer, [*letter, *ids]), decode_text(tokenizer, letter)
    return full_text[len(letter_text) :] if full_text.startswith(letter_text) else decode_text(tokenizer, ids)


def escape_control_tokens(tokenizer: PreTrainedTokenizerBase, data: ChatData, is_own_text: bool = False) -> ChatData:
    """Escape the control tokens in texts, at any depth of messages and tools.

    Args:
        is_own_text: whether the model itself wrote the text. If so, reasoning tags remain tokens, even if special.
    """
    chat_tokens = set(tokenizer.chat_control_tokens or ())
    added = [
        token for token in tokenizer.added_tokens_decoder.values() if token.special or token.content in chat_tokens
    ]
    names = {token.content for token in added}.difference(DELIMITERS if is_own_text else ())
    pattern = "|".join(map(re.escape, sorted(names, key=len, reverse=True)))
    escaped: ChatData = mark_control_tokens(data, re.compile(pattern or "(?!)"))
    return escaped


def remove_escapes(text: str) -> str:
    """Remove the markers added by :func:`escape_control_tokens`."""
    return ESCAPE_MARKERS.sub("", text)


def encode_text(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Encode a text with escaped control tokens, without adding special tokens."""
    return list(tokenizer(text, add_special_tokens=False, sanitize_control_tokens=True)["input_ids"])


def encode_continuation(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Encode an escaped text inside a chat, without the leading space that SentencePiece tokenizers would add."""
    return encode_text(tokenizer, CONTINUATION_MARKER + text)
