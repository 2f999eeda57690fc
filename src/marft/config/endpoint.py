"""Models behind an OpenAI-compatible endpoint: how it is reached, and who reads for them here."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

from pydantic import Field, Strict, field_validator
from pydantic_core import PydanticCustomError

from marft.config.algorithm import Count, NotNegative, Positive
from marft.config.settings import Settings, did_you_mean

if TYPE_CHECKING:
    from marft.config.run import ModelSettings, RunSettings


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


def local_model(run: RunSettings, model: str) -> str:
    """The local model that stands for ``model`` here: itself, or the reader of a remote one; "" when there is none."""
    endpoint = run.models[model].endpoint
    if endpoint is None:
        return model
    return endpoint.reader or next((name for name, other in run.models.items() if other.endpoint is None), "")


def readers(run: RunSettings) -> set[str]:
    """The local models that read for remote ones."""
    return {local_model(run, name) for name, model in run.models.items() if model.endpoint is not None}


def endpoint_problems(run: RunSettings) -> Iterable[str]:
    """What is wrong with the remote models of a recipe and the policies on them."""
    for name, model in run.models.items():
        if model.endpoint is not None:
            yield from _reader_problems(run, name)
            yield from _key_problems(name, model)
    for name, policy in run.policies.items():
        if policy.model not in run.models or run.models[policy.model].endpoint is None:
            continue
        if policy.train != "frozen":
            yield f"policies.{name}: model {policy.model!r} is remote and cannot be trained here; set train = 'frozen'"
        if policy.adapter:
            yield f"policies.{name}.adapter: model {policy.model!r} is remote and takes no adapter; remove it"
        if run.algorithm.teammate_text.coefficient:
            yield (
                f"algorithm.teammate_text: it asks how likely a teammate's text was to its author, and an endpoint "
                f"(policies.{name}) does not say; set coefficient = 0"
            )


def _reader_problems(run: RunSettings, name: str) -> Iterable[str]:
    reader = local_model(run, name)
    if not reader:
        yield (
            f"models.{name}.endpoint: no local model reads what it says; add one: [models.reader] path = 'tiny', or "
            "any other whose tokenizer counts as you like"
        )
    elif reader not in run.models:
        yield f"models.{name}.endpoint.reader: no model is called {reader!r}{did_you_mean(reader, run.models)}"
    elif run.models[reader].endpoint is not None:
        yield f"models.{name}.endpoint.reader: {reader!r} is remote too; name a local model"


def _key_problems(name: str, model: ModelSettings) -> Iterable[str]:
    for key in ("revision", "dtype", "chat_template", "template_options", "gradient_checkpointing"):
        if getattr(model, key) != type(model).model_fields[key].default:
            yield f"models.{name}.{key}: means something for a local model alone; remove it, the endpoint decides"
