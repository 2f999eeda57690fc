"""Secret detection in recipes: recipes are written to files, and secrets belong in environment variables."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from urllib.parse import parse_qsl

from marft.config.keys import MASK, VARIABLE

NO_SECRET = {
    "", "none", "null", "empty", "dummy", "true", "false", "auto", "basic", "bearer", "digest", "oauth", "oauth2",
    "api_key", "api-key", "apikey", "token", "jwt", "kerberos", "hmac",
}  # fmt: skip
ALWAYS = {  # last words of names
    "apikey", "apikeys", "authorization", "bearer", "cookie", "cookies", "credential", "credentials", "jwt",
    "passcode", "passphrase", "passwd", "password", "passwords", "pwd", "secret",
}  # fmt: skip
OF_SERVERS = {"auth", "pass", "pat", "pin", "pw"}  # last words with other meanings outside server tables
FORMS = {"base", "b", "pem", "raw", "str", "string", "text", "v", "value"}  # suffixes after the name of a secret
ANYWHERE = {"apikey", "credential", "credentials", "passwd", "password", "secret"}  # words at any position of a name
KEYS_OF = {  # words before "key" that mark a secret
    "access", "account", "admin", "anthropic", "api", "auth", "azure", "client", "encryption", "google", "hf",
    "license", "master", "openai", "org", "private", "project", "secret", "server", "service", "session",
    "shared", "signing", "ssh", "subscription", "user", "wandb",
}  # fmt: skip
KEYS_TO = {  # words before "key" that mark a field name
    "answer", "cache", "column", "dict", "foreign", "group", "id", "index", "json", "partition", "primary",
    "public", "question", "row", "sort",
}  # fmt: skip
OF_VOCABULARY = {  # words before "token" that mark a vocabulary entry or a count
    "bos", "cls", "decoder", "end", "eos", "eot", "fim", "first", "image", "last", "mask", "max", "min", "new",
    "next", "pad", "per", "prefix", "sep", "special", "start", "stop", "suffix", "thinking", "unk",
}  # fmt: skip
NAMES_ANOTHER = {  # last words of keys that hold a location instead of a secret
    "column", "count", "dir", "env", "field", "file", "folder", "format", "header", "length", "location",
    "name", "path", "type", "url", "uri", "var", "variable", "variables",
}  # fmt: skip
NAMED = ("models", "policies", "tools", "sites", "properties")  # tables whose keys are user-chosen names
# tables whose keys belong to a server
REQUESTED = ("options", "headers", "header", "env", "environment", "args", "kwargs")
SHAPES = re.compile(
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
WHO = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<who>[^/?#\s]*)@|://(?P<odd>[^\s'\"]*:[^\s'\"]*)@")
LOGIN = re.compile(
    r"[^\s:/?#@'\"]+:([^\s/@'\"]+)@[\w.-]+(?::\d+)?(?:[/?#]\S*)?"
)  # user:pass@host/path, without a scheme
# last words, without a plural s
ADDRESSES = {"addres", "dsn", "endpoint", "host", "proxie", "proxy", "server", "uri", "url"}
LOGIN_FLAGS = ("-u", "--user", "--proxy-user", "-U")  # command-line flags before user:password
QUERY = re.compile(r"[?&;#]([^?&;#=\s]+)=([^?&;#\s'\"]+)")
ASSIGNED = re.compile(r"(-{0,2}[A-Za-z_][\w.-]*)(?:=|:\s*)(\S.*)", re.DOTALL)
SEPARATORS = re.compile(r"[;\s]+")  # separators in a connection string
PLAIN = re.compile(r"[A-Za-z]+(?:[_.-][A-Za-z]+)*")
LEAST_NUMBER = 10_000_000  # minimum value of a numeric secret
WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


def names_secret(name: str, asked: bool = False) -> bool:
    """Return True for a key name that indicates a secret.

    Args:
        asked: the key belongs to a server or a program, where every "key" and "signature" is a secret.

    >>> [names_secret(name) for name in ("api_key", "X-Api-Key", "apiKey", "hf_token", "dbPassword", "api_key_2")]
    [True, True, True, True, True, True]
    >>> [names_secret(name) for name in ("max_tokens", "pad_token", "tokenizer", "api_key_variable", "answer_key")]
    [False, False, False, False, False]
    """
    return _strength(name, asked) > 0


def _strength(name: str, asked: bool) -> int:
    """Return the certainty that a key holds a secret.

    0: no secret; 1: a secret unless the value is in plain words; 2: a secret with any value.
    """
    words = [word.lower() for word in WORDS.findall(name)]
    while len(words) > 1 and (words[-1] in FORMS or words[-1].isdigit()):
        del words[-1]
    if not words or words[-1] in NAMES_ANOTHER:
        return 0
    last, before = words[-1], set(words[-2:-1])
    if last in ALWAYS or ANYWHERE & {*words, "".join(words[-2:])}:
        return 2
    if last in ("key", "keys"):
        return 2 if KEYS_OF & before else int(asked and not KEYS_TO & before)
    if last in ("token", "tokens") and not OF_VOCABULARY & before:
        return 2 if (asked and last == "token") or (KEYS_OF | {"bearer", "refresh"}) & before else 1
    if last in OF_SERVERS:
        return 2 if asked else 1
    if last == "secrets":  # elsewhere these are texts that agents must not reveal
        return 2 if asked else 0
    return int(asked and last in ("sig", "signature", "sas"))


def secrets_at(value: object, place: str = "", named: int = 0, asked: bool = False) -> Iterator[str]:
    """Yield the dotted keys for all secrets in a table.

    Args:
        named: certainty that an enclosing key names a secret: 0, 1 or 2.
        asked: the value is in a table whose keys belong to a server.
    """
    if isinstance(value, Mapping):
        yield from _in_table(value, place, named, asked)
    elif isinstance(value, list | tuple):
        for number, inner in enumerate(value):
            yield from secrets_at(inner, f"{place}.{number}", named, asked)
        yield from _after_flags(value, place)
    elif _is_literal(value, named) or (isinstance(value, str) and _holds_secret(value, place, asked)):
        yield place


def _in_table(table: Mapping[object, object], place: str, named: int, asked: bool) -> Iterator[str]:
    for key, inner in table.items():
        where = f"{place}.{censored(str(key))}".removeprefix(".")
        if SHAPES.search(str(key)):
            yield where
        words, secret, sent = where.split("."), named, asked
        for before, word in pairwise(["", *words][-len(str(key).split(".")) - 1 :]):
            of_user = before in NAMED and isinstance(inner, Mapping)
            if not (of_user or before.endswith("_variables")):  # the values of such tables are names of variables
                secret = max(secret, _strength(word, sent))
            sent |= word.lower() in REQUESTED and (before, word) not in (
                ("", "environment"),
                ("changes", "environment"),
            )
        yield from secrets_at(inner, where, secret, sent)
    name, value = table.get("name", table.get("key")), table.get("value")  # name and value of a header or a variable
    if isinstance(name, str) and _is_literal(value, _strength(name, asked=True)):
        yield f"{place}.value".removeprefix(".")


def _after_flags(words: Sequence[object], place: str) -> Iterator[str]:
    """Yield the positions for secrets in a command's words, ``["server", "--api-key", "…"]``, or in a header."""
    for number, (flag, word) in enumerate(pairwise(words), 1):
        is_flag = isinstance(flag, str) and "=" not in flag and (flag.startswith("-") or len(words) == 2)
        is_value = isinstance(word, str) and not word.startswith("-")
        if is_flag and is_value and _is_literal(word, _strength(str(flag), asked=True)):
            yield f"{place}.{number}"
    for number, word in enumerate(words):
        if isinstance(word, str) and _is_assigned(word):
            yield f"{place}.{number}"
    if place.rpartition(".")[2] in ("command", "args"):
        yield from _logins_in(words, place)


def _logins_in(words: Sequence[object], place: str) -> Iterator[str]:
    """Yield the positions for passwords in a command: ``curl -u me:…``, ``--user=me:…``, ``me:…@host/path``."""
    for number, (flag, word) in enumerate(pairwise(["", *words])):
        if not isinstance(word, str):
            continue
        name, equals, value = word.partition("=") if word.startswith("-") else (str(flag), "", word)
        if word.startswith("-u") and not equals:
            name, value = "-u", word[2:]
        password = value.partition(":")[2] if name in LOGIN_FLAGS else ""
        if _is_password(password) or _is_login(value):
            yield f"{place}.{number}"


def _is_login(text: str) -> bool:
    """Return True for an address without a scheme that contains a password."""
    found = LOGIN.fullmatch(text.strip())
    return found is not None and _is_password(found[1])


def _is_password(text: str) -> bool:
    """Return True for a password after ``user:``, as opposed to a user number or a variable name."""
    return bool(text) and not text.isdigit() and _is_literal(text, 2)


def _is_assigned(text: str) -> bool:
    """Return True for a secret assignment: ``API_KEY=…``, ``X-Api-Key: …``, ``--header=X-Api-Key: …``."""
    found = ASSIGNED.fullmatch(text)
    return found is not None and (_is_literal(found[2], _strength(found[1], asked=True)) or _is_assigned(found[2]))


def _is_literal(value: object, named: int) -> bool:
    """Return True for a literal secret, as opposed to a reference.

    Args:
        named: certainty that its key names a secret: 0, 1 or 2.
    """
    if isinstance(value, int) and value >= LEAST_NUMBER:
        return named == 2
    if not isinstance(value, str) or not named:
        return False
    text = value.strip()
    in_vocabulary = re.fullmatch(r"<[^<>]*>|\[[A-Z]*\]", text)
    in_words = named == 1 and (PLAIN.fullmatch(text) or " " in text)
    return text.lower() not in NO_SECRET and not VARIABLE.fullmatch(text) and not in_vocabulary and not in_words


def _holds_secret(text: str, place: str, asked: bool) -> bool:
    """Return True if a text contains a secret, by its shape or by an assigned name."""
    if censored(text) != text or (_names_address(place) and _is_login(text)):
        return True
    command = place.rpartition(".")[2] == "command"
    parts = text.split() if command else SEPARATORS.split(text.strip("; "))
    if (command or all("=" in part for part in parts)) and any(_after_flags(parts, place)):
        return True
    return (asked and _is_assigned(text)) or any(secrets_at(_table_in(text), asked=asked))


def _names_address(place: str) -> bool:
    """Return True if the last key in a dotted place, before list indices, names an address."""
    keys = [key for key in place.split(".") if not key.isdigit()]
    words = [word.lower().removesuffix("s") for word in WORDS.findall(keys[-1] if keys else "")]
    return bool(words) and words[-1] in ADDRESSES


def _table_in(text: str) -> object:
    """Return the table that a text contains as JSON; None otherwise."""
    try:
        return json.loads(text) if text.lstrip().startswith(("{", "[{")) else None
    except (ValueError, RecursionError):
        return None


def censored(text: str) -> str:
    """Replace passwords and tokens in URLs, and texts with the shape of a key, by ``***``.

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
    return found[0].replace(value, MASK) if secret and _is_literal(value, 2) else found[0]


def refuse_secrets(table: Mapping[str, object], source: str) -> None:
    """Reject a recipe, or another table that is written to files, that contains a secret.

    The message never repeats the secret.

    Raises:
        ValueError: a secret was found; the message names the keys.
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
