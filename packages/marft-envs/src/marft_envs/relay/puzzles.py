"""Puzzles with answers from several parts, and messages about them; a missing part leaves the answer unknown.

Values are encoded directly as words, or as symbols from an alphabet. A channel is limited and noisy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import product
from random import Random
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from marft_envs.relay.environment import Relay

KEYS = (
    ("red", "blue", "green", "gold", "pink", "gray", "white", "black", "brown", "amber", "olive", "cyan"),
    ("box", "ring", "cone", "star", "disk", "cube", "arch", "bell", "drum", "fork", "harp", "lamp"),
    ("ant", "bee", "cat", "dog", "elk", "fox", "hen", "owl", "pig", "ram", "seal", "wolf"),
)  # keys of the first, second and third speaker
CODES = "BCDFGHJKLMNPQRSTVWXZ"
MAX_ROWS = 64


class RelayPuzzle(NamedTuple):
    """A puzzle.

    Args:
        parts: symbols held by each speaker.
        answerer_part: text of the answerer's part.
        answer: symbols of the answer.
        content: canonical text, independent of the order of the table's rows.
    """

    parts: list[list[str]]
    answerer_part: str
    answer: list[str]
    content: str


def generate_lookup(random: Random, speakers: int, values: int, size: int) -> RelayPuzzle:
    """Generate a puzzle with keys as parts, and a table with one distinct code per row for the answerer."""
    keys = [list(column[:values]) for column in KEYS[:speakers]]
    rows = list(product(*keys))
    codes = random.sample([a + b for a in CODES for b in CODES] if len(rows) > len(CODES) else CODES, len(rows))
    table = dict(zip(rows, codes, strict=True))
    random.shuffle(rows)
    parts = [[random.choice(column) for _ in range(size)] for column in keys]
    answer = [table[row] for row in zip(*parts, strict=True)]
    table_rows = [f"{' '.join(row)} {table[row]}" for row in rows]
    return RelayPuzzle(parts, ", ".join(table_rows), answer, f"{parts} of {sorted(table_rows)}")


def generate_sum(random: Random, speakers: int, values: int, size: int) -> RelayPuzzle:
    """Generate a puzzle with numbers that add up modulo ``values``.

    Without one of the parts, every sum is equally likely.
    """
    numbers = [[random.randrange(values) for _ in range(size)] for _ in range(speakers + 1)]
    answer = [str(sum(column) % values) for column in zip(*numbers, strict=True)]
    parts = [[str(number) for number in part] for part in numbers]
    return RelayPuzzle(parts[:-1], " ".join(parts[-1]), answer, f"{parts} modulo {values}")


ERASED_SYMBOL = "?"


def transmit(text: str, random: Random, relay: Relay, replacements: Sequence[str]) -> str:
    """Return a message's words after the limits and the noise.

    Args:
        text: the message.
        random: source of noise.
        relay: settings of the limits and the noise.
        replacements: words to choose from for ``noise_effect = "replace"``.
    """
    message_words = text.split()
    if relay.alphabet:
        allowed_words = {word.casefold(): word for word in relay.alphabet}
        message_words = [allowed_words[word.casefold()] for word in message_words if word.casefold() in allowed_words]
    limited, remaining_characters = list[str](), relay.max_chars
    for word in message_words[: relay.max_words or None]:
        remaining_characters -= len(word)
        if remaining_characters < 0:
            break
        limited.append(word)
    received = list[str]()
    for word in limited:
        if random.random() >= relay.noise:
            received.append(word)
        elif relay.noise_effect != "drop":
            received.append(ERASED_SYMBOL if relay.noise_effect == "erase" else random.choice(list(replacements)))
    return " ".join(received)


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
