"""Secrets: read from environment variables, masked in texts, and detected in recipes.

Recipes are written to files, and secrets belong in environment variables. No error message contains a key. If a server
echoes a key, it is masked before the text is stored.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise, zip_longest
from typing import TypeVar, cast
from urllib.parse import parse_qsl, quote

from marft.common.errors import UserError

# names of secret fields
SECRET_NAME = re.compile(r"key|token|secret|passw|credential|auth|bearer|cookie|signature", re.IGNORECASE)
MIN_SECRET_LENGTH = 8  # minimum length of a masked secret, in characters: "none" and "EMPTY" are ordinary words
MASK = "***"
VARIABLE_REFERENCE = re.compile(r"(?P<scheme>[A-Za-z]+ )?\$(?P<brace>\{)?(?P<name>[A-Za-z_]\w*)(?(brace)\})")
T = TypeVar("T")

HARMLESS_VALUES = {
    "", "none", "null", "empty", "dummy", "true", "false", "auto", "basic", "bearer", "digest", "oauth", "oauth2",
    "api_key", "api-key", "apikey", "token", "jwt", "kerberos", "hmac",
}  # fmt: skip
SECRET_WORDS = {  # last words of names
    "apikey", "apikeys", "authorization", "bearer", "cookie", "cookies", "credential", "credentials", "jwt",
    "passcode", "passphrase", "passwd", "password", "passwords", "pwd", "secret",
}  # fmt: skip
SERVER_SECRET_WORDS = {"auth", "pass", "pat", "pin", "pw"}  # last words with other meanings outside server tables
# suffixes after the name of a secret
FORM_SUFFIXES = {"base", "b", "pem", "raw", "str", "string", "text", "v", "value"}
# words at any position of a name
SECRET_WORDS_ANYWHERE = {"apikey", "credential", "credentials", "passwd", "password", "secret"}
SECRET_KEY_PREFIXES = {  # words before "key" that mark a secret
    "access", "account", "admin", "anthropic", "api", "auth", "azure", "client", "encryption", "google", "hf",
    "license", "master", "openai", "org", "private", "project", "secret", "server", "service", "session",
    "shared", "signing", "ssh", "subscription", "user", "wandb",
}  # fmt: skip
FIELD_KEY_PREFIXES = {  # words before "key" that mark a field name
    "answer", "cache", "column", "dict", "foreign", "group", "id", "index", "json", "partition", "primary",
    "public", "question", "row", "sort",
}  # fmt: skip
VOCABULARY_PREFIXES = {  # words before "token" that mark a vocabulary entry or a count
    "bos", "cls", "decoder", "end", "eos", "eot", "fim", "first", "image", "last", "mask", "max", "min", "new",
    "next", "pad", "per", "prefix", "sep", "special", "start", "stop", "suffix", "thinking", "unk",
}  # fmt: skip
REFERENCE_WORDS = {  # last words of keys that hold a location instead of a secret
    "column", "count", "dir", "env", "field", "file", "folder", "format", "header", "length", "location",
    "name", "path", "type", "url", "uri", "var", "variable", "variables",
}  # fmt: skip
USER_NAMED_TABLES = ("models", "policies", "tools", "sites", "properties")  # tables whose keys are user-chosen names
# tables whose keys belong to a server
SERVER_TABLES = ("extra_body", "engine_args", "options", "headers", "header", "env", "environment", "args", "kwargs")
SECRET_PATTERN = re.compile(
    r"(?<![A-Za-z0-9])(?:"
    r"(?:sk|rk|pk)[-_](?:(?:live|test)[-_]|(?:proj|ant|or|svcacct|admin)-)[A-Za-z0-9_-]{16,}"
    r"|(?:sk|rk|pk)[-_][A-Za-z0-9_-]{0,40}?(?:(?=[a-z]*[A-Z0-9])[A-Za-z0-9]{16}|[a-z]{20})[A-Za-z0-9_-]*"
    r"|hf_[A-Za-z0-9]{20,}|GOCSPX-[A-Za-z0-9_-]{16,}|SG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}"
    r"|(?:nvapi|tvly|pplx|glptt)-[A-Za-z0-9_-]{16,}|(?:dop_v1|lin_api|dckr_pat)_[A-Za-z0-9_-]{16,}"
    r"|hooks\.slack\.com/services/[A-Za-z0-9/]{16,}"
    r"|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}|glpat-[A-Za-z0-9_-]{16,}|xox[a-z]-[A-Za-z0-9-]{10,}"
    r"|A[KS]IA[0-9A-Z]{16}|AIza[A-Za-z0-9_-]{30,}|gsk_[A-Za-z0-9]{20,}|xai-[A-Za-z0-9]{20,}|r8_[A-Za-z0-9]{20,}"
    r"|npm_[A-Za-z0-9]{30,}|pypi-[A-Za-z0-9_-]{20,}|ya29\.[A-Za-z0-9_-]{20,}"
    r"|eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*"
    r"|(?:[Bb]earer|[Bb]asic|BEARER|BASIC)\s+(?=\S*\d)[A-Za-z0-9._~+/=-]{12,}"
    r")|-----BEGIN [A-Z ]*PRIVATE KEY-----[^-]*"
)
URL_LOGIN = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<who>[^/?#\s]*)@|://(?P<odd>[^\s'\"]*:[^\s'\"]*)@")
LOGIN_ADDRESS = re.compile(
    r"[^\s:/?#@'\"]+:([^\s/@'\"]+)@[\w.-]+(?::\d+)?(?:[/?#]\S*)?"
)  # user:pass@host/path, without a scheme
# last words, without a plural s
ADDRESS_WORDS = {"addres", "dsn", "endpoint", "host", "proxie", "proxy", "server", "uri", "url"}
LOGIN_FLAGS = ("-u", "--user", "--proxy-user", "-U")  # command-line flags before user:password
QUERY_PARAMETER = re.compile(r"[?&;#]([^?&;#=\s]+)=([^?&;#\s'\"]+)")
ASSIGNMENT = re.compile(r"(-{0,2}[A-Za-z_][\w.-]*)(?:=|:\s*)(\S.*)", re.DOTALL)
SEPARATORS = re.compile(r"[;\s]+")  # separators in a connection string
PLAIN_WORDS = re.compile(r"[A-Za-z]+(?:[_.-][A-Za-z]+)*")
MIN_SECRET_NUMBER = 10_000_000  # minimum value of a numeric secret
NAME_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


def read_api_key(variable: str) -> str:
    """Return an environment variable's value as header text, without surrounding whitespace.

    Raises:
        UserError: the variable is not set, or contains characters that no key has.
    """
    key = os.environ.get(variable, "").strip()
    if not key:
        raise UserError(f"the environment variable {variable} is not set; export {variable}=…")
    if not (key.isascii() and key.isprintable()):
        raise UserError(f"the environment variable {variable} holds characters that no key has")
    return key


def fill_variables(value: T) -> T:
    """Return the value with each text ``"$NAME"`` replaced by an environment variable, at any depth.

    Raises:
        UserError: a variable is not set, or contains characters that no key has.
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


def argv_secret_values(words: Sequence[str]) -> Iterator[str]:
    """Yield command-line values under secret-like names.

    >>> list(argv_secret_values(["train", "--models.x.endpoint.extra_body.api_key", "sk-123456", "--seed=1"]))
    ['sk-123456']
    >>> list(argv_secret_values(["--models.x.endpoint.extra_body={ user_key = 'abcdefgh' }"]))
    ['abcdefgh']
    >>> list(argv_secret_values([]))
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
    return mask_values(list(passthrough_secret_values(tomllib.loads(recipe))), recipe)


def passthrough_secret_values(table: object) -> Iterator[str]:
    """Yield the secrets in all ``extra_body`` and ``engine_args`` tables."""
    if isinstance(table, dict):
        for name, value in table.items():
            find = secret_values if name in ("extra_body", "engine_args") else passthrough_secret_values
            yield from find(value)
    elif isinstance(table, list):
        for value in table:
            yield from passthrough_secret_values(value)


def is_secret_name(name: str, for_server: bool = False) -> bool:
    """Return True for a key name that indicates a secret.

    Args:
        for_server: the key belongs to a server or a program, where every "key" and "signature" is a secret.

    >>> [is_secret_name(name) for name in ("api_key", "X-Api-Key", "apiKey", "hf_token", "dbPassword", "api_key_2")]
    [True, True, True, True, True, True]
    >>> [is_secret_name(name) for name in ("max_tokens", "pad_token", "tokenizer", "api_key_variable", "answer_key")]
    [False, False, False, False, False]
    """
    return _secret_level(name, for_server) > 0


def _secret_level(name: str, for_server: bool) -> int:
    """Return the certainty that a key holds a secret.

    0: no secret; 1: a secret unless the value is in plain words; 2: a secret with any value.
    """
    words = [word.lower() for word in NAME_WORDS.findall(name)]
    while len(words) > 1 and (words[-1] in FORM_SUFFIXES or words[-1].isdigit()):
        del words[-1]
    if not words or words[-1] in REFERENCE_WORDS:
        return 0
    last, before = words[-1], set(words[-2:-1])
    if last in SECRET_WORDS or SECRET_WORDS_ANYWHERE & {*words, "".join(words[-2:])}:
        return 2
    if last in ("key", "keys"):
        return 2 if SECRET_KEY_PREFIXES & before else int(for_server and not FIELD_KEY_PREFIXES & before)
    if last in ("token", "tokens") and not VOCABULARY_PREFIXES & before:
        return 2 if (for_server and last == "token") or (SECRET_KEY_PREFIXES | {"bearer", "refresh"}) & before else 1
    if last in SERVER_SECRET_WORDS:
        return 2 if for_server else 1
    if last == "secrets":  # elsewhere these are texts that agents must not reveal
        return 2 if for_server else 0
    return int(for_server and last in ("sig", "signature", "sas"))


def find_secret_keys(value: object, path: str = "", level: int = 0, for_server: bool = False) -> Iterator[str]:
    """Yield the dotted keys for all secrets in a table.

    Args:
        level: certainty that an enclosing key names a secret: 0, 1 or 2.
        for_server: the value is in a table whose keys belong to a server.
    """
    if isinstance(value, Mapping):
        yield from _find_in_table(value, path, level, for_server)
    elif isinstance(value, list | tuple):
        for number, inner in enumerate(value):
            yield from find_secret_keys(inner, f"{path}.{number}", level, for_server)
        yield from _find_in_arguments(value, path)
    elif _is_literal(value, level) or (isinstance(value, str) and _contains_secret(value, path, for_server)):
        yield path


def _find_in_table(table: Mapping[object, object], path: str, level: int, for_server: bool) -> Iterator[str]:
    for key, inner in table.items():
        key_path = f"{path}.{redact(str(key))}".removeprefix(".")
        if SECRET_PATTERN.search(str(key)):
            yield key_path
        words, key_level, is_server = key_path.split("."), level, for_server
        for before, word in pairwise(["", *words][-len(str(key).split(".")) - 1 :]):
            of_user = before in USER_NAMED_TABLES and isinstance(inner, Mapping)
            if not (of_user or before.endswith("_variables")):  # the values of such tables are names of variables
                key_level = max(key_level, _secret_level(word, is_server))
            is_server |= word.lower() in SERVER_TABLES and (before, word) not in (
                ("", "environment"),
                ("overrides", "environment"),
            )
        yield from find_secret_keys(inner, key_path, key_level, is_server)
    name, value = table.get("name", table.get("key")), table.get("value")  # name and value of a header or a variable
    if isinstance(name, str) and _is_literal(value, _secret_level(name, for_server=True)):
        yield f"{path}.value".removeprefix(".")


def _find_in_arguments(words: Sequence[object], path: str) -> Iterator[str]:
    """Yield the positions for secrets in a command's words, ``["server", "--api-key", "…"]``, or in a header."""
    for number, (flag, word) in enumerate(pairwise(words), 1):
        is_flag = isinstance(flag, str) and "=" not in flag and (flag.startswith("-") or len(words) == 2)
        is_value = isinstance(word, str) and not word.startswith("-")
        if is_flag and is_value and _is_literal(word, _secret_level(str(flag), for_server=True)):
            yield f"{path}.{number}"
    for number, word in enumerate(words):
        if isinstance(word, str) and _is_assignment(word):
            yield f"{path}.{number}"
    if path.rpartition(".")[2] in ("command", "args"):
        yield from _find_logins(words, path)


def _find_logins(words: Sequence[object], path: str) -> Iterator[str]:
    """Yield the positions for passwords in a command: ``curl -u me:…``, ``--user=me:…``, ``me:…@host/path``."""
    for number, (flag, word) in enumerate(pairwise(["", *words])):
        if not isinstance(word, str):
            continue
        name, equals, value = word.partition("=") if word.startswith("-") else (str(flag), "", word)
        if word.startswith("-u") and not equals:
            name, value = "-u", word[2:]
        candidate = value.partition(":")[2] if name in LOGIN_FLAGS else ""
        if _is_literal_password(candidate) or _has_login(value):
            yield f"{path}.{number}"


def _has_login(text: str) -> bool:
    """Return True for an address without a scheme that contains a password."""
    match = LOGIN_ADDRESS.fullmatch(text.strip())
    return match is not None and _is_literal_password(match[1])


def _is_literal_password(text: str) -> bool:
    """Return True for a password after ``user:``, as opposed to a user number or a variable name."""
    return bool(text) and not text.isdigit() and _is_literal(text, 2)


def _is_assignment(text: str) -> bool:
    """Return True for a secret assignment: ``API_KEY=…``, ``X-Api-Key: …``, ``--header=X-Api-Key: …``."""
    match = ASSIGNMENT.fullmatch(text)
    return match is not None and (
        _is_literal(match[2], _secret_level(match[1], for_server=True)) or _is_assignment(match[2])
    )


def _is_literal(value: object, level: int) -> bool:
    """Return True for a literal secret, as opposed to a reference.

    Args:
        level: certainty that its key names a secret: 0, 1 or 2.
    """
    if isinstance(value, int) and value >= MIN_SECRET_NUMBER:
        return level == 2
    if not isinstance(value, str) or not level:
        return False
    text = value.strip()
    in_vocabulary = re.fullmatch(r"<[^<>]*>|\[[A-Z]*\]", text)
    in_words = level == 1 and (PLAIN_WORDS.fullmatch(text) or " " in text)
    return (
        text.lower() not in HARMLESS_VALUES
        and not VARIABLE_REFERENCE.fullmatch(text)
        and not in_vocabulary
        and not in_words
    )


def _contains_secret(text: str, path: str, for_server: bool) -> bool:
    """Return True if a text contains a secret, by its shape or by an assigned name."""
    if redact(text) != text or (_is_address_key(path) and _has_login(text)):
        return True
    command = path.rpartition(".")[2] == "command"
    parts = text.split() if command else SEPARATORS.split(text.strip("; "))
    if (command or all("=" in part for part in parts)) and any(_find_in_arguments(parts, path)):
        return True
    return (for_server and _is_assignment(text)) or any(
        find_secret_keys(_parse_json_table(text), for_server=for_server)
    )


def _is_address_key(path: str) -> bool:
    """Return True if the last key in a dotted place, before list indices, names an address."""
    keys = [key for key in path.split(".") if not key.isdigit()]
    words = [word.lower().removesuffix("s") for word in NAME_WORDS.findall(keys[-1] if keys else "")]
    return bool(words) and words[-1] in ADDRESS_WORDS


def _parse_json_table(text: str) -> object:
    """Return the table that a text contains as JSON; None otherwise."""
    try:
        return json.loads(text) if text.lstrip().startswith(("{", "[{")) else None
    except (ValueError, RecursionError):
        return None


def redact(text: str) -> str:
    """Replace passwords and tokens in URLs, and texts with the shape of a key, by ``***``.

    >>> redact("postgresql://me:hunter2@host/db?sslkey=1, https://host/v1?api_key=abc ghp_0123456789abcdefghij")
    'postgresql://***@host/db?sslkey=1, https://host/v1?api_key=*** ***'
    """
    if "://" in text:
        text = URL_LOGIN.sub(_redact_login, text)
    if "=" in text:
        text = QUERY_PARAMETER.sub(_redact_value, text)
    return SECRET_PATTERN.sub(MASK, text)


def redacted(receive: Callable[[str], None]) -> Callable[[str], None]:
    """Return a function that redacts a text before it passes the text on, for log records."""
    return lambda text: receive(redact(text))


def _redact_login(match: re.Match[str]) -> str:
    login = match["who"]
    if login is None:
        return f"://{MASK}@"
    harmless = ":" not in login and not match["scheme"].lower().startswith("http")
    return match[0] if harmless or VARIABLE_REFERENCE.fullmatch(login) else f"{match['scheme']}://{MASK}@"


def _redact_value(match: re.Match[str]) -> str:
    name, value = match[1], match[2]
    secret = any(is_secret_name(key, for_server=True) for key, _ in parse_qsl(f"{name}=1", keep_blank_values=True))
    return match[0].replace(value, MASK) if secret and _is_literal(value, 2) else match[0]


def check_no_secrets(table: Mapping[str, object], source: str) -> None:
    """Reject a recipe, or another table that is written to files, that contains a secret.

    The message never repeats the secret.

    Raises:
        UserError: a secret was found; the message names the keys.
    """
    places = list(dict.fromkeys(find_secret_keys(table)))
    if places:
        lines = "\n".join(f"  {place}: holds what looks like a secret{_secret_hint(place)}" for place in places[:10])
        more = f"\n  and {len(places) - 10:,} more" if len(places) > 10 else ""
        raise UserError(f"{source}:\n{lines}{more}")


def _secret_hint(place: str) -> str:
    words = place.split(".")
    if "endpoint" in words or words[0] == "engine":
        if "extra_body" in words or "engine_args" in words:
            return ', and a recipe is written to files; name the environment variable that holds it: "$MY_KEY"'
        return ", and a recipe is written to files; name the environment variable that holds it (api_key_variable)"
    if words[0] == "tools":
        return (
            ", and a recipe is written to files; name the environment variable that holds it (env_variables; "
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
