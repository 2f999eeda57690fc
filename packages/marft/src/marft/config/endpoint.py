"""Models behind an OpenAI-compatible endpoint: how it is reached, and who reads for them here."""

from __future__ import annotations

import re
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError

from marft.config.settings import Count, Names, NotNegative, Plain, Positive, Settings, did_you_mean

SLOWEST = 1 / (24 * 60)  # requests a minute
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
OMISSIBLE = ("temperature", "top_p", "top_k", "max_tokens", "seed", "stop", "response_format")
OURS = {  # fields of a request, and why a recipe neither sets them as an option nor leaves them out
    "messages": "they are what the agent sees",
    "model": "it has a key of its own, the name of the model",
    "stream": "answers are read whole",
    "n": "one answer is read",
    "tools": "they are those of the agent",
}


def names_server(url: str) -> bool:
    """Whether a url is that of a server, or of a path there, and says nothing else.

    >>> names_server("http://[::1]:8000/v1"), names_server("http://["), names_server("http://me:secret@host")
    (True, False, False)
    """
    try:
        parts = urlsplit(url)
        whole = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
    more = parts.username or parts.password or parts.query or parts.fragment
    return whole and url.isprintable() and " " not in url and not more


def checked_url(url: str, key: str) -> str:
    """The url of a server, where it is one and holds no secret.

    Args:
        key: of the recipe, which names the environment variable of what must not be in a url.

    Raises:
        PydanticCustomError: it is none, or may hold one.
    """
    if not names_server(url):
        raise PydanticCustomError(
            "url", "must look like https://host/v1, with the key in an environment variable ({key})", {"key": key}
        )
    return url


class EndpointSettings(Settings):
    """An endpoint that takes chat completions. The API key is named by the environment variable that holds it."""

    url: str  # up to and without /chat/completions: "http://127.0.0.1:8000/v1"
    api_key_variable: str = ""  # the environment variable that holds the key; "": none is asked for
    timeout_seconds: Positive = 60.0  # for one answer, retries included; waiting for a turn is not counted
    retries: Annotated[int, Field(ge=0, le=1000)] = 5  # of a request, with growing waits or those that the server names
    requests_per_minute: NotNegative = 0.0  # 0: no limit
    concurrent_requests: Count = 8  # that are under way at a time
    price_per_million_prompt_tokens: NotNegative = 0.0  # in any currency; counted as cost
    price_per_million_completion_tokens: NotNegative = 0.0  # in the same currency
    options: Plain = {}  # further fields of the request's body
    omit: Names = ()  # fields that this server does not take, such as "seed"

    @field_validator("requests_per_minute")
    @classmethod
    def _lets_requests_through(cls, rate: float) -> float:
        if 0 < rate < SLOWEST:
            raise PydanticCustomError("rate", "lets less than one request a day through; 0 is no limit")
        return rate

    @field_validator("api_key_variable")
    @classmethod
    def _is_a_variable(cls, name: str) -> str:
        if name and not VARIABLE.fullmatch(name):
            raise PydanticCustomError(
                "variable", "is the name of an environment variable, such as MY_KEY, never the key"
            )
        return name

    @field_validator("url")
    @classmethod
    def _can_be_reached(cls, url: str) -> str:
        return checked_url(url, "api_key_variable").rstrip("/")

    @field_validator("options")
    @classmethod
    def _leaves_what_is_ours(cls, options: dict[str, object]) -> dict[str, object]:
        for name in OURS:
            if name in options:
                raise PydanticCustomError("option", "must not hold {name}: {why}", {"name": name, "why": OURS[name]})
        return options

    @field_validator("omit")
    @classmethod
    def _is_sent(cls, omit: tuple[str, ...]) -> tuple[str, ...]:
        for name in omit:
            if name not in OMISSIBLE:
                why = OURS.get(name) or "no such field is sent" + did_you_mean(name, OMISSIBLE)
                raise PydanticCustomError("omit", "cannot leave out {name}: {why}", {"name": repr(name), "why": why})
        return omit


class TeammateEndpoint(EndpointSettings):
    """An endpoint whose model acts in a team. Its text is tokenised for the critic alone."""

    reader: str = ""  # a local model: counts tokens, and reads for the critic; "": the recipe's first one
