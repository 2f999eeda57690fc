"""Models behind an OpenAI-compatible endpoint: connection settings and local reader."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Annotated, Protocol
from urllib.parse import urlsplit

from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError

from marft.config.settings import Count, Names, NonNegative, PlainTable, Positive, Settings, did_you_mean

MIN_REQUEST_RATE = 1 / (24 * 60)  # requests per minute
VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
OMITTABLE_FIELDS = ("temperature", "top_p", "top_k", "max_tokens", "seed", "stop", "response_format")
RESERVED_FIELDS = {  # request fields that a recipe can neither set nor omit, with the reason
    "messages": "they are what the agent sees",
    "model": "it has a key of its own, the name of the model",
    "stream": "answers are read whole",
    "n": "one answer is read",
    "tools": "they are those of the agent",
}


def is_server_url(url: str) -> bool:
    """Return True for a plain server URL, with an optional path and nothing else.

    >>> is_server_url("http://[::1]:8000/v1"), is_server_url("http://["), is_server_url("http://me:secret@host")
    (True, False, False)
    """
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
    extra = parts.username or parts.password or parts.query or parts.fragment
    return valid and url.isprintable() and " " not in url and not extra


def check_url(url: str, key: str) -> str:
    """Return a server URL after a check for validity and secrets.

    Args:
        key: recipe key that names the environment variable for the secret; shown in the error.

    Raises:
        PydanticCustomError: the URL is invalid, or may contain a secret.
    """
    if not is_server_url(url):
        raise PydanticCustomError(
            "url", "must look like https://host/v1, with the key in an environment variable ({key})", {"key": key}
        )
    return url


class EndpointSettings(Settings):
    """Chat-completions endpoint. The recipe names the environment variable that holds the API key."""

    url: str = Field(description='base URL, without /chat/completions: "http://127.0.0.1:8000/v1"')
    api_key_variable: str = Field(default="", description='environment variable with the API key; "": no key')
    timeout_seconds: Positive = Field(
        default=60.0, description="timeout of one reply in seconds, retries included; time in the queue does not count"
    )
    max_retries: Annotated[int, Field(ge=0, le=1000)] = Field(
        default=5, description="maximum retries of a request, with growing waits or the server's Retry-After"
    )
    requests_per_minute: NonNegative = Field(default=0.0, description="maximum requests per minute; 0: no limit")
    max_concurrent_requests: Count = Field(default=8, description="maximum concurrent requests")
    price_per_million_prompt_tokens: NonNegative = Field(
        default=0.0, description="price for cost metrics, in any currency"
    )
    price_per_million_completion_tokens: NonNegative = Field(default=0.0, description="price in the same currency")
    extra_body: PlainTable = Field(default={}, description="additional fields of the request body")
    omit: Names = Field(default=(), description='request fields to omit for lack of server support, such as "seed"')

    @field_validator("requests_per_minute")
    @classmethod
    def _check_rate(cls, rate: float) -> float:
        if 0 < rate < MIN_REQUEST_RATE:
            raise PydanticCustomError("rate", "lets less than one request a day through; 0 is no limit")
        return rate

    @field_validator("api_key_variable")
    @classmethod
    def _check_variable(cls, name: str) -> str:
        if name and not VARIABLE_NAME.fullmatch(name):
            raise PydanticCustomError(
                "variable", "is the name of an environment variable, such as MY_KEY, never the key"
            )
        return name

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str) -> str:
        return check_url(url, "api_key_variable").rstrip("/")

    @field_validator("extra_body")
    @classmethod
    def _check_options(cls, options: dict[str, object]) -> dict[str, object]:
        for name in RESERVED_FIELDS:
            if name in options:
                raise PydanticCustomError(
                    "option", "must not hold {name}: {why}", {"name": name, "why": RESERVED_FIELDS[name]}
                )
        return options

    @field_validator("omit")
    @classmethod
    def _check_omit(cls, omit: tuple[str, ...]) -> tuple[str, ...]:
        for name in omit:
            if name not in OMITTABLE_FIELDS:
                reason = RESERVED_FIELDS.get(name) or "no such field is sent" + did_you_mean(name, OMITTABLE_FIELDS)
                raise PydanticCustomError("omit", "cannot leave out {name}: {why}", {"name": repr(name), "why": reason})
        return omit


class TeammateEndpoint(EndpointSettings):
    """Endpoint whose model acts in a team. Its text is tokenized locally only for the critic."""

    local_model: str = Field(
        default="",
        description=(
            "local model that counts tokens and provides the critic's input; \"\": the recipe's first local model"
        ),
    )


class RequestLimits(Protocol):
    """Request limits, for use on the endpoint's own thread."""

    def slot(self) -> AbstractAsyncContextManager[object]:
        """Return a context manager that occupies a concurrent request slot."""
        ...

    async def turn(self) -> None:
        """Wait until the rate limit permits another request."""
        ...


LimitsFactory = Callable[[str, EndpointSettings], RequestLimits]  # the argument is the endpoint's unique name
