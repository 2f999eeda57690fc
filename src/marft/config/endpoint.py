"""Models behind an OpenAI-compatible endpoint: how it is reached, and who reads for them here."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import Field, Strict, field_validator
from pydantic_core import PydanticCustomError

from marft.config.algorithm import Count, NotNegative, Positive
from marft.config.settings import Settings


class EndpointSettings(Settings):
    """An endpoint that takes chat completions. The API key is named by the environment variable that holds it."""

    url: str  # up to and without /chat/completions: "http://127.0.0.1:8000/v1"
    api_key_variable: str = ""  # "": the server asks for no key
    timeout_seconds: Positive = 60.0  # for one answer, retries included; waiting for a turn is not counted
    retries: Annotated[int, Field(ge=0)] = 5
    requests_per_minute: NotNegative = 0.0  # 0: no limit
    concurrent_requests: Count = 8
    price_per_million_prompt_tokens: NotNegative = 0.0
    price_per_million_completion_tokens: NotNegative = 0.0
    options: dict[str, Any] = {}  # further fields of the request's body
    omit: Annotated[tuple[str, ...], Strict(False)] = ()  # fields that this server does not take, such as "seed"

    @field_validator("url")
    @classmethod
    def _can_be_reached(cls, url: str) -> str:
        try:
            parts = urlsplit(url)
            whole = parts.scheme in ("http", "https") and bool(parts.hostname)
        except ValueError:
            whole = False
        if not whole or parts.username or parts.password or parts.query or parts.fragment:
            raise PydanticCustomError(
                "url", "must look like https://host/v1, with the key in an environment variable (api_key_variable)"
            )
        return url.rstrip("/")


class TeammateEndpoint(EndpointSettings):
    """An endpoint whose model acts in a team. Its text is tokenised for the critic alone."""

    reader: str = ""  # a local model: counts tokens, and reads for the critic; "": the recipe's first one
