"""Conversion of endpoint errors to episode failures with a hint for the user."""

from __future__ import annotations

from collections.abc import Collection

from marft.common.errors import EpisodeFailedError
from marft.common.texts import single_line, truncate
from marft.config.api_keys import mask_key, mask_values
from marft.config.endpoint import EndpointSettings

MAX_MESSAGE_LENGTH = 300  # maximum length of a server's error message, in characters


def to_episode_failure(
    error: Exception, name: str, settings: EndpointSettings, model: str, secrets: Collection[str]
) -> EpisodeFailedError:
    """Convert an error to an episode failure.

    Args:
        error: error raised during the request.
        name: endpoint name, for messages.
        model: model name on the server.
        secrets: API key and other secrets, masked in every message.
    """
    import openai

    endpoint_name = f"endpoint {name!r} ({settings.url})"
    if isinstance(error, TimeoutError | openai.APITimeoutError):
        limit = f"{settings.timeout_seconds:g} s"
        return EpisodeFailedError("timed_out", f"{endpoint_name} gave no whole answer in {limit}, retries included")
    if isinstance(error, openai.APIStatusError):
        server_message = clean_text(error.message, secrets)
        hint = _hint(error.status_code, settings, model)
        reason = f"{endpoint_name} answered {error.status_code}{hint}. It said: {server_message}"
    elif isinstance(error, openai.APIConnectionError):
        cause = clean_text(str(error.__cause__ or error), secrets)
        reason = (
            f"{endpoint_name} cannot be reached, after {settings.max_retries} retries: {cause}; check its url and that "
            "it runs"
        )
    else:
        reason = f"{endpoint_name} cannot be used: {type(error).__name__}: {clean_text(str(error), secrets)}"
    return EpisodeFailedError("failed", reason)


def _hint(status: int, settings: EndpointSettings, model: str) -> str:
    if status in (401, 403):
        variable = settings.api_key_variable
        check_target = f"the key in ${variable}" if variable else "whether it needs a key (api_key_variable)"
        return f"; check {check_target} and what it may do"
    if status == 404:
        return f"; check the url and that it has a model called {model!r}"
    if status in (400, 422):
        return '; a field that it does not take can be left out with omit = ["…"]'
    if status == 429 or status >= 500:
        return f", after {settings.max_retries} retries"
    return ""


def clean_text(text: str, secrets: Collection[str]) -> str:
    """Clean external text for storage and display: single line, limited length, no secrets.

    Secrets are masked whatever their length.
    """
    text = mask_values(secrets, text)
    for secret in secrets:
        text = mask_key(secret, text)
    return truncate(single_line(text), MAX_MESSAGE_LENGTH)
