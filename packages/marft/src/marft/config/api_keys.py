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
SECRET_NAME = re.compile(r"key|token|secret|passw|credential|auth|bearer|cookie|signature", re.IGNORECASE)
MIN_SECRET_LENGTH = 8  # minimum length of a masked secret, in characters: "none" and "EMPTY" are ordinary words
MASK = "***"
VARIABLE_REFERENCE = re.compile(r"(?P<scheme>[A-Za-z]+ )?\$(?P<brace>\{)?(?P<name>[A-Za-z_]\w*)(?(brace)\})")
T = TypeVar("T")


def read_api_key(variable: str) -> str:
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


def fill_variables(value: T) -> T:
    """Return the value with each text ``"$NAME"`` replaced by an environment variable, at any depth.

    Raises:
        ValueError: a variable is not set, or contains characters that no key has.
    """
    result: object = value
    if isinstance(value, dict):
        result = {key: fill_variables(inner) for key, inner in value.items()}
    elif isinstance(value, list | tuple):
        result = type(value)(fill_variables(inner) for inner in value)
    elif isinstance(value, str) and (match := VARIABLE_REFERENCE.fullmatch(value)):
        result = f"{match['scheme'] or ''}{read_api_key(match['name'])}"
    return cast(T, result)


def variable_values(value: object) -> Iterator[str]:
    """Yield the values for all set environment variables named as ``"$NAME"`` in a value."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for inner in value:
            yield from variable_values(inner)
    elif isinstance(value, str) and (match := VARIABLE_REFERENCE.fullmatch(value)):
        yield from filter(None, [os.environ.get(match["name"], "").strip()])


def mask_key(key: str, text: str) -> str:
    """Replace every occurrence in a text by ``***``; an empty key changes nothing."""
    return text.replace(key, MASK) if key else text


def secret_values(fields: object, secret: bool = False) -> Iterator[str]:
    """Yield request field values under secret-like names, at any depth.

    >>> list(secret_values({"api_key": "sk-123456", "seed": 1, "headers": {"Authorization": "Bearer abcdefgh"}}))
    ['sk-123456', 'Bearer abcdefgh', 'abcdefgh']
    """
    if isinstance(fields, Mapping):
        for name, value in fields.items():
            yield from secret_values(value, secret or bool(SECRET_NAME.search(str(name))))
    elif isinstance(fields, list | tuple):
        for value in fields:
            yield from secret_values(value, secret)
    elif secret and isinstance(fields, str) and not VARIABLE_REFERENCE.fullmatch(fields):
        scheme, _, value_text = fields.partition(" ")
        yield from (word for word in (fields, value_text if scheme.isalpha() else "") if len(word) >= MIN_SECRET_LENGTH)


def typed_secret_values(words: Sequence[str]) -> Iterator[str]:
    """Yield command-line values under secret-like names.

    >>> list(typed_secret_values(["train", "--models.x.endpoint.extra_body.api_key", "sk-123456", "--seed=1"]))
    ['sk-123456']
    >>> list(typed_secret_values(["--models.x.endpoint.extra_body={ user_key = 'abcdefgh' }"]))
    ['abcdefgh']
    >>> list(typed_secret_values([]))
    []
    """
    for word, following in zip_longest(words, words[1:], fillvalue=""):
        name, equals, text = word.partition("=")
        value: object = text if equals else following
        with suppress(ValueError):  # invalid TOML, or a number with too many digits
            value = tomllib.loads(f"value = {value}")["value"]
        if name.startswith("--"):
            yield from secret_values({name: value})


def mask_values(secrets: Collection[str], text: str) -> str:
    """Replace secrets in a text by ``***``, also in URL-encoded and JSON form. Short values are not masked."""
    long_secrets = {secret for secret in secrets if len(secret) >= MIN_SECRET_LENGTH}
    spellings = (
        long_secrets
        | {quote(secret, safe="") for secret in long_secrets}
        | {json.dumps(secret)[1:-1] for secret in long_secrets}
    )
    for secret in sorted(spellings, key=len, reverse=True):
        text = text.replace(secret, MASK)
    return text


def mask_recipe(recipe: str) -> str:
    """Return a recipe for display, without secrets in request bodies and engine arguments.

    >>> print(mask_recipe('[endpoint.extra_body]\\nuser_key = "abcdefgh"'))
    [endpoint.extra_body]
    user_key = "***"
    """
    return mask_values(list(option_secret_values(tomllib.loads(recipe))), recipe)


def option_secret_values(table: object) -> Iterator[str]:
    """Yield the secrets in all ``extra_body`` and ``engine_args`` tables."""
    if isinstance(table, dict):
        for name, value in table.items():
            yield from secret_values(value) if name in ("extra_body", "engine_args") else option_secret_values(value)
    elif isinstance(table, list):
        for value in table:
            yield from option_secret_values(value)
