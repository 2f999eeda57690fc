"""Encoding for values: directly as words, or as symbols from an alphabet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from marft_envs.relay.channel import ERASED_SYMBOL


def code_length(values: int, alphabet: int) -> int:
    """Return the code length for one out of ``values`` values; 1 without an alphabet.

    >>> code_length(8, 2), code_length(6, 6), code_length(12, 0)
    (3, 1, 1)
    """
    symbols = 1
    while alphabet and alphabet**symbols < values:
        symbols += 1
    return symbols


def encode_values(
    values_sent: Sequence[str], possible_values: Sequence[Sequence[str]], alphabet: Sequence[str]
) -> list[str]:
    """Encode values as symbols, most significant first.

    Args:
        values_sent: values.
        possible_values: possible values at each position, in an order that all agents share.
        alphabet: the symbols; empty sends the values themselves.

    >>> encode_values(["blue"], [["red", "blue", "green"]], ["a", "b"])
    ['a', 'b']
    """
    if not alphabet:
        return list(values_sent)
    symbols = []
    for value, values in zip(values_sent, possible_values, strict=True):
        value_index = values.index(value)
        for power in reversed(range(code_length(len(values), len(alphabet)))):
            symbols.append(alphabet[value_index // len(alphabet) ** power % len(alphabet)])
    return symbols


def decode_symbols(
    symbols: Sequence[str], possible_values: Sequence[Sequence[str]], alphabet: Sequence[str]
) -> list[str] | None:
    """Decode values; return None on failure.

    For repeated messages, the most frequent copy of each symbol counts; erased symbols are ignored.

    >>> decode_symbols(["a", "b", "a", "?"], [["red", "blue", "green"]], ["a", "b"])
    ['blue']
    """
    message_length = sum(code_length(len(values), len(alphabet)) for values in possible_values)
    received_symbols = [_most_common(symbols[value_index::message_length]) for value_index in range(message_length)]
    values, at = [], 0
    for options in possible_values:
        code = received_symbols[at : at + code_length(len(options), len(alphabet))]
        at += len(code)
        if not alphabet:
            value_index = options.index(code[0]) if code[0] in options else -1
        else:
            digits = [alphabet.index(symbol) if symbol in alphabet else -1 for symbol in code]
            value_index = -1 if min(digits) < 0 else sum(d * len(alphabet) ** p for p, d in enumerate(reversed(digits)))
        if not 0 <= value_index < len(options):
            return None
        values.append(options[value_index])
    return values


def _most_common(copies: Sequence[str]) -> str:
    counts = Counter(copy for copy in copies if copy != ERASED_SYMBOL)
    return counts.most_common(1)[0][0] if counts else ""
