"""Encoding for values: directly as words, or as symbols from an alphabet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from marft_envs.relay.passing import ERASED


def width(values: int, alphabet: int) -> int:
    """Return the code length for one out of ``values`` values; 1 without an alphabet.

    >>> width(8, 2), width(6, 6), width(12, 0)
    (3, 1, 1)
    """
    symbols = 1
    while alphabet and alphabet**symbols < values:
        symbols += 1
    return symbols


def encode(told: Sequence[str], known: Sequence[Sequence[str]], alphabet: Sequence[str]) -> list[str]:
    """Encode values as symbols, most significant first.

    Args:
        told: values.
        known: possible values at each position, in an order that all agents share.
        alphabet: the symbols; empty sends the values themselves.

    >>> encode(["blue"], [["red", "blue", "green"]], ["a", "b"])
    ['a', 'b']
    """
    if not alphabet:
        return list(told)
    symbols = []
    for value, values in zip(told, known, strict=True):
        place = values.index(value)
        for power in reversed(range(width(len(values), len(alphabet)))):
            symbols.append(alphabet[place // len(alphabet) ** power % len(alphabet)])
    return symbols


def decode(symbols: Sequence[str], known: Sequence[Sequence[str]], alphabet: Sequence[str]) -> list[str] | None:
    """Decode values; return None on failure.

    For repeated messages, the most frequent copy of each symbol counts; erased symbols are ignored.

    >>> decode(["a", "b", "a", "?"], [["red", "blue", "green"]], ["a", "b"])
    ['blue']
    """
    long = sum(width(len(values), len(alphabet)) for values in known)
    read = [_most(symbols[place::long]) for place in range(long)]
    values, at = [], 0
    for allowed in known:
        some = read[at : at + width(len(allowed), len(alphabet))]
        at += len(some)
        if not alphabet:
            place = allowed.index(some[0]) if some[0] in allowed else -1
        else:
            digits = [alphabet.index(symbol) if symbol in alphabet else -1 for symbol in some]
            place = -1 if min(digits) < 0 else sum(d * len(alphabet) ** p for p, d in enumerate(reversed(digits)))
        if not 0 <= place < len(allowed):
            return None
        values.append(allowed[place])
    return values


def _most(copies: Sequence[str]) -> str:
    counts = Counter(copy for copy in copies if copy != ERASED)
    return counts.most_common(1)[0][0] if counts else ""
