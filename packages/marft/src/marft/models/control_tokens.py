"""Control tokens: escaping in chat text, and decoding without control tokens.

In a chat, control tokens in message text are tokenized as plain text. Reasoning tags are exempt. Otherwise the template
would not recognize reasoning in an agent's earlier turn, and would render the turn differently.

In decoded text, the markers that structure a turn stay: delimiters of reasoning, of tool calls, and channels.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from marft.common.errors import UserError
from marft.common.reasoning import DELIMITERS

ESCAPE_START, ESCAPE_END = "\U000f0000", "\U000f0001"  # around escaped control tokens, as in transformers
ESCAPE_MARKERS = re.compile(f"[{ESCAPE_START}{ESCAPE_END}]")
# single marker: the following text is encoded as a continuation, not as the start of a text
CONTINUATION_MARKER = ESCAPE_END

# markers beside those whose names say what they are
TURN_MARKERS = DELIMITERS | {
    "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>",  # gpt-oss
    "<|channel>", "<channel|>", '<|"|>', "[ARGS]", "<|python_tag|>",  # Gemma 4, Mistral, Llama
    "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>",  # GLM
}  # fmt: skip
CALL_WORDS = re.compile("tool|call|action", re.IGNORECASE)
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
    """Return the ids excluded from decoded text: special tokens except the markers that structure a turn."""
    added = tokenizer.added_tokens_decoder.items()
    return {id for id, token in added if token.special and not _is_marker(token.content)}


def _is_marker(token: str) -> bool:
    """Return whether a token structures a turn: delimiters, and names with "tool", "call" or "action"."""
    return token in TURN_MARKERS or CALL_WORDS.search(token) is not None


def decode_text(tokenizer: PreTrainedTokenizerBase, ids: Iterable[int]) -> str:
    """Decode token ids without control tokens. The markers that structure a turn stay, even if special."""
    if tokenizer not in _hidden_ids:
        added = tokenizer.added_tokens_decoder.values()
        special = any(token.special and _is_marker(token.content) for token in added)
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
    chat_tokens = set(getattr(tokenizer, "chat_control_tokens", None) or ())  # transformers 5.17 has no default
    added = [
        token for token in tokenizer.added_tokens_decoder.values() if token.special or token.content in chat_tokens
    ]
    names = {token.content for token in added}.difference(DELIMITERS if is_own_text else ())
    escaped: ChatData = _escape_strings(data, re.compile(_alternatives(names)))
    return escaped


def _escape_strings(data: Any, pattern: re.Pattern[str]) -> Any:
    """Put markers around matches of ``pattern`` in every string of ``data``, except keys; remove other markers."""
    if isinstance(data, str):
        return pattern.sub(f"{ESCAPE_START}\\g<0>{ESCAPE_END}", remove_escapes(data))
    if isinstance(data, dict):
        return {key: _escape_strings(value, pattern) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_escape_strings(value, pattern) for value in data]
    return data


def _alternatives(names: Iterable[str]) -> str:
    """Return a regular expression that matches any of ``names``, the longest first."""
    return "|".join(map(re.escape, sorted(names, key=len, reverse=True))) or "(?!)"


def remove_escapes(text: str) -> str:
    """Remove the markers added by :func:`escape_control_tokens`."""
    return ESCAPE_MARKERS.sub("", text)


def encode_text(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Encode a text with escaped control tokens, without adding special tokens.

    The ids equal those of transformers' ``sanitize_control_tokens``, which older versions lack. A single marker only
    separates the texts on its two sides.

    Raises:
        UserError: the tokenizer encodes the plain text of an escaped control token as that token.
    """
    first, *pieces = _piece_pattern(tuple(tokenizer.added_tokens_encoder)).split(text)
    ids = _encode_tokens(tokenizer, first)
    for index, piece in enumerate(pieces):
        if piece:
            ids += _encode_piece(tokenizer, piece, is_escaped=index % 2 == 0)
    return ids


@lru_cache
def _piece_pattern(names: tuple[str, ...]) -> re.Pattern[str]:
    """Return the separator of a text with markers; a split alternates between texts and escaped tokens (or None)."""
    return re.compile(f"{ESCAPE_START}({_alternatives(names)}){ESCAPE_END}|[{ESCAPE_START}{ESCAPE_END}]")


def _encode_piece(tokenizer: PreTrainedTokenizerBase, piece: str, is_escaped: bool) -> list[int]:
    """Encode a text that follows another; after a newline, so that SentencePiece adds no leading space."""
    encode = _encode_plain if is_escaped else _encode_tokens
    newline, ids = _encode_tokens(tokenizer, "\n"), encode(tokenizer, "\n" + piece)
    ids = ids[len(newline) :] if ids[: len(newline)] == newline else encode(tokenizer, piece)
    if is_escaped and tokenizer.convert_tokens_to_ids(piece) in ids:
        raise UserError(
            f"the tokenizer reads the text {piece!r} as a control token; leave it out, or use another tokenizer"
        )
    return ids


def _encode_tokens(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False))


def _encode_plain(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Encode a text without added tokens, special or not."""
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        return list(tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True))
    backend = tokenizer.backend_tokenizer  # its own option leaves out special tokens alone
    if backend.normalizer is not None:
        text = backend.normalizer.normalize_str(text)
    splits = [text]
    if backend.pre_tokenizer is not None:
        splits = [split for split, _ in backend.pre_tokenizer.pre_tokenize_str(text)]
    return [token.id for split in splits for token in backend.model.tokenize(split)]


def encode_continuation(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Encode an escaped text inside a chat, without the leading space that SentencePiece tokenizers would add."""
    return encode_text(tokenizer, CONTINUATION_MARKER + text)
