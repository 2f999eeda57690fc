"""API keys from environment variables or request options.

No error message contains a key. If a server echoes a key, it is masked before the text is stored.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import zip_longest
from typing import TypeVar, cast
from urllib.parse import quote

# names of secret fields
SECRET = re.compile(r"key|token|secret|passw|credential|auth|bearer|cookie|signature", re.IGNORECASE)
SHORTEST = 8  # minimum length of a masked secret, in characters: "none" and "EMPTY" are ordinary words
MASK = "***"
VARIABLE = re.compile(r"(?P<scheme>[A-Za-z]+ )?\$(?P<brace>\{)?(?P<name>[A-Za-z_]\w*)(?(brace)\})")
T = TypeVar("T")


def read_key(variable: str) -> str:
    """Return an environment variable's value as header text, without surrounding whitespace.

    Raises:
        ValueError: the variable is not set, or contains characters that no key has.
    """
    key = os.environ.get(variable, "").strip()
    if not key:
        raise ValueError(f"the environment variable {variable} is not set; export {variable}=…")
    if not (key.isascii() and key.isprintable()):
        raise ValueError(f"the environment variable {variable} holds characters that no key has")
    return key


def filled(value: T) -> T:
    """Return the value with each text ``"$NAME"`` replaced by an environment variable, at any depth.

    Raises:
        ValueError: a variable is not set, or contains characters that no key has.
    """
    made: object = value
    if isinstance(value, dict):
        made = {key: filled(inner) for key, inner in value.items()}
    elif isinstance(value, list | tuple):
        made = type(value)(filled(inner) for inner in value)
    elif isinstance(value, str) and (named := VARIABLE.fullmatch(value)):
        made = f"{named['scheme'] or ''}{read_key(named['name'])}"
    return cast(T, made)


def variables_of(value: object) -> Iterator[str]:
    """Yield the values for all set environment variables named as ``"$NAME"`` in a value."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for inner in value:
            yield from variables_of(inner)
    elif isinstance(value, str) and (named := VARIABLE.fullmatch(value)):
        yield from filter(None, [os.environ.get(named["name"], "").strip()])


def without(key: str, text: str) -> str:
    """Replace every occurrence in a text by ``***``; an empty key changes nothing."""
    return text.replace(key, MASK) if key else text


def secrets_in(fields: object, secret: bool = False) -> Iterator[str]:
    """Yield request field values under secret-like names, at any depth.

    >>> list(secrets_in({"api_key": "sk-123456", "seed": 1, "headers": {"Authorization": "Bearer abcdefgh"}}))
    ['sk-123456', 'Bearer abcdefgh', 'abcdefgh']
    """
    if isinstance(fields, Mapping):
        for name, value in fields.items():
            yield from secrets_in(value, secret or bool(SECRET.search(str(name))))
    elif isinstance(fields, list | tuple):
        for value in fields:
            yield from secrets_in(value, secret)
    elif secret and isinstance(fields, str) and not VARIABLE.fullmatch(fields):
        scheme, _, rest = fields.partition(" ")
        yield from (word for word in (fields, rest if scheme.isalpha() else "") if len(word) >= SHORTEST)


def secrets_typed(words: Sequence[str]) -> Iterator[str]:
    """Yield command-line values under secret-like names.

    >>> list(secrets_typed(["train", "--models.x.endpoint.options.api_key", "sk-123456", "--seed=1"]))
    ['sk-123456']
    >>> list(secrets_typed(["--models.x.endpoint.options={ user_key = 'abcdefgh' }"]))
    ['abcdefgh']
    >>> list(secrets_typed([]))
    []
    """
    for word, following in zip_longest(words, words[1:], fillvalue=""):
        name, equals, text = word.partition("=")
        value: object = text if equals else following
        with suppress(ValueError):  # invalid TOML, or a number with too many digits
            value = tomllib.loads(f"value = {value}")["value"]
        if name.startswith("--"):
            yield from secrets_in({name: value})


def masked(secrets: Collection[str], text: str) -> str:
    """Replace secrets in a text by ``***``, also in URL-encoded and JSON form. Short values are not masked."""
    whole = {secret for secret in secrets if len(secret) >= SHORTEST}
    written = whole | {quote(secret, safe="") for secret in whole} | {json.dumps(secret)[1:-1] for secret in whole}
    for secret in sorted(written, key=len, reverse=True):
        text = text.replace(secret, MASK)
    return text


def masked_recipe(recipe: str) -> str:
    """Return a recipe for display, without secrets in endpoint options.

    >>> print(masked_recipe('[endpoint.options]\\nuser_key = "abcdefgh"'))
    [endpoint.options]
    user_key = "***"
    """
    return masked(list(options_in(tomllib.loads(recipe))), recipe)


def options_in(table: object) -> Iterator[str]:
    """Yield the secrets in all ``options`` tables."""
    if isinstance(table, dict):
        for name, value in table.items():
            yield from secrets_in(value) if name == "options" else options_in(value)
    elif isinstance(table, list):
        for value in table:
            yield from options_in(value)
