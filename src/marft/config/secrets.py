"""Refusal of recipes that hold secrets: a recipe is written to files, and a secret belongs into the environment."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from urllib.parse import parse_qsl

from marft.config.keys import MASK, VARIABLE

NO_SECRET = {"", "none", "null", "empty", "dummy", "true", "false", "auto", "basic", "bearer", "digest", "oauth2"}
ALWAYS = {  # last words of names
    "apikey", "apikeys", "authorization", "bearer", "cookie", "cookies", "credential", "credentials", "pass",
    "passphrase", "passwd", "password", "passwords", "pin", "pwd", "pw", "secret", "secrets",
}  # fmt: skip
ANYWHERE = {"apikey", "credential", "credentials", "passwd", "password", "secret"}  # in a name
KEYS_OF = {  # words before "key" that make it a secret
    "access", "account", "admin", "anthropic", "api", "auth", "azure", "client", "encryption", "google", "hf",
    "license", "master", "openai", "org", "private", "project", "secret", "server", "service", "session",
    "shared", "signing", "ssh", "subscription", "user", "wandb",
}  # fmt: skip
KEYS_TO = {  # words before "key" that make it the name of a field
    "answer", "cache", "column", "dict", "foreign", "group", "id", "index", "json", "partition", "primary",
    "public", "question", "row", "sort",
}  # fmt: skip
OF_VOCABULARY = {  # words before "token" that make it an entry of a vocabulary, or a count
    "bos", "cls", "decoder", "end", "eos", "eot", "fim", "first", "image", "last", "mask", "max", "min", "new",
    "next", "pad", "per", "prefix", "sep", "special", "start", "stop", "suffix", "thinking", "unk",
}  # fmt: skip
NAMES_ANOTHER = {  # last words of keys that say where a secret is
    "column", "count", "dir", "env", "field", "file", "folder", "format", "header", "length", "location",
    "name", "path", "type", "url", "uri", "var", "variable", "variables",
}  # fmt: skip
REQUESTED = ("options", "headers", "header", "env", "environment", "args", "kwargs")  # tables whose keys are a server's
SHAPES = re.compile(
    r"(?<![A-Za-z0-9])(?:"
    r"(?:sk|rk|pk)[-_](?:live[-_]|test[-_]|proj-|ant-|or-)?[A-Za-z0-9_-]{16,}|hf_[A-Za-z0-9]{20,}"
    r"|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}|glpat-[A-Za-z0-9_-]{16,}|xox[a-z]-[A-Za-z0-9-]{10,}"
    r"|A[KS]IA[0-9A-Z]{16}|AIza[A-Za-z0-9_-]{30,}|gsk_[A-Za-z0-9]{20,}|xai-[A-Za-z0-9]{20,}|r8_[A-Za-z0-9]{20,}"
    r"|npm_[A-Za-z0-9]{30,}|pypi-[A-Za-z0-9_-]{20,}|ya29\.[A-Za-z0-9_-]{20,}"
    r"|eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*"
    r"|(?:[Bb]earer|[Bb]asic|BEARER|BASIC)\s+(?=\S*\d)[A-Za-z0-9._~+/=-]{12,}"
    r")|-----BEGIN [A-Z ]*PRIVATE KEY-----[^-]*"
)
WHO = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<who>[^/?#\s]*)@|://(?P<odd>[^\s'\"]*:[^\s'\"]*)@")
QUERY = re.compile(r"[?&;#]([^?&;#=\s]+)=([^?&;#\s'\"]+)")
ASSIGNED = re.compile(r"(-{0,2}[A-Za-z_][\w.-]*)(?:=|:\s*)(\S.*)", re.DOTALL)
WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


def names_secret(name: str, asked: bool = False) -> bool:
    """Return whether a key of this name holds a secret.

    Args:
        asked: the key is a server's or a program's, where every "key" and "signature" is one.

    >>> [names_secret(name) for name in ("api_key", "X-Api-Key", "apiKey", "hf_token", "dbPassword")]
    [True, True, True, True, True]
    >>> [names_secret(name) for name in ("max_tokens", "pad_token", "tokenizer", "api_key_variable", "answer_key")]
    [False, False, False, False, False]
    """
    words = [word.lower() for word in WORDS.findall(name)]
    if not words or words[-1] in NAMES_ANOTHER:
        return False
    last, before = words[-1], words[-2:-1]
    if last in ALWAYS or ANYWHERE & {*words, "".join(words[-2:])}:
        return True
    if last in ("key", "keys"):
        return bool(KEYS_OF & set(before)) or (asked and not KEYS_TO & set(before))
    if last in ("token", "tokens"):
        return not OF_VOCABULARY & set(before) and (last == "token" or bool({"access", "api", "auth"} & set(before)))
    return last == "auth" or (asked and last in ("sig", "signature", "sas"))


def secrets_at(value: object, place: str = "", named: bool = False, asked: bool = False) -> Iterator[str]:
    """Yield the dotted keys in a table under which a secret stands.

    Args:
        named: a key around the value names a secret.
        asked: the value is in a table whose keys are a server's.
    """
    if isinstance(value, Mapping):
        for key, inner in value.items():
            where = f"{place}.{censored(str(key))}".removeprefix(".")
            if SHAPES.search(str(key)):
                yield where
            words, secret, sent = where.split("."), named, asked
            for before, word in pairwise(["", *words][-len(str(key).split(".")) - 1 :]):
                secret |= names_secret(word, sent) and not before.endswith("_variables")  # whose values are names
                sent |= word.lower() in REQUESTED
            yield from secrets_at(inner, where, secret, sent)
    elif isinstance(value, list | tuple):
        for number, inner in enumerate(value):
            yield from secrets_at(inner, f"{place}.{number}", named, asked)
        yield from _after_flags(value, place)
    elif (named and _is_literal(value)) or (isinstance(value, str) and _holds_secret(value)):
        yield place


def _after_flags(words: Sequence[object], place: str) -> Iterator[str]:
    """Yield the places of secrets among the words of a command: ``["server", "--api-key", "…"]``."""
    for number, (flag, word) in enumerate(pairwise(words), 1):
        is_flag = isinstance(flag, str) and flag.startswith("-") and "=" not in flag
        is_value = isinstance(word, str) and not word.startswith("-") and _is_literal(word)
        if is_flag and is_value and names_secret(str(flag), asked=True):
            yield f"{place}.{number}"
    for number, word in enumerate(words):
        found = ASSIGNED.fullmatch(word) if isinstance(word, str) else None
        if found and names_secret(found[1], asked=True) and _is_literal(found[2]):
            yield f"{place}.{number}"


def _is_literal(value: object) -> bool:
    """Return whether a value is a secret itself, and does not say where one is."""
    if not isinstance(value, str):
        return False
    text = value.strip()
    in_vocabulary = re.fullmatch(r"<[^<>]*>|\[[A-Z]*\]", text)
    return text.lower() not in NO_SECRET and not VARIABLE.fullmatch(text) and not in_vocabulary


def _holds_secret(text: str) -> bool:
    return censored(text) != text


def censored(text: str) -> str:
    """Return the text with ``***`` for passwords and tokens of URLs, and for what has the shape of a key.

    >>> censored("postgresql://me:hunter2@host/db?sslkey=1, https://host/v1?api_key=abc ghp_0123456789abcdefghij")
    'postgresql://***@host/db?sslkey=1, https://host/v1?api_key=*** ***'
    """
    if "://" in text:
        text = WHO.sub(_without_who, text)
    if "=" in text:
        text = QUERY.sub(_without_value, text)
    return SHAPES.sub(MASK, text)


def _without_who(found: re.Match[str]) -> str:
    who = found["who"]
    if who is None:
        return f"://{MASK}@"
    harmless = ":" not in who and not found["scheme"].lower().startswith("http")
    return found[0] if harmless or VARIABLE.fullmatch(who) else f"{found['scheme']}://{MASK}@"


def _without_value(found: re.Match[str]) -> str:
    name, value = found[1], found[2]
    secret = any(names_secret(key, asked=True) for key, _ in parse_qsl(f"{name}=1", keep_blank_values=True))
    return found[0].replace(value, MASK) if secret and _is_literal(value) else found[0]


def refuse_secrets(table: Mapping[str, object], source: str) -> None:
    """Refuse a recipe, or another table that is written to files, that holds a secret. No message repeats it.

    Raises:
        ValueError: naming the keys.
    """
    places = list(dict.fromkeys(secrets_at(table)))
    if places:
        shown = "\n".join(f"  {place}: holds what looks like a secret{_remedy(place)}" for place in places[:10])
        more = f"\n  and {len(places) - 10:,} more" if len(places) > 10 else ""
        raise ValueError(f"{source}:\n{shown}{more}")


def _remedy(place: str) -> str:
    words = place.split(".")
    if "endpoint" in words or words[0] == "engine":
        if "options" in words:
            return ', and a recipe is written to files; name the environment variable that holds it: "$MY_KEY"'
        return ", and a recipe is written to files; name the environment variable that holds it (api_key_variable)"
    if words[0] == "tools":
        return (
            ", and a recipe is written to files; name the environment variable that holds it (environment; "
            "header_variables for a url)"
        )
    if words[0] == "tracing":
        return ", and a recipe is written to files; put it into the environment variable OTEL_EXPORTER_OTLP_HEADERS"
    if words[0] == "sinks":
        return (
            ", and a recipe is written to files; put it into an environment variable (MLFLOW_TRACKING_URI, or "
            "MLFLOW_TRACKING_USERNAME and _PASSWORD; WANDB_API_KEY)"
        )
    return (
        ", and a recipe is written to files; put it into an environment variable, and let the recipe say which one, "
        'as in "$MY_KEY"'
    )
