"""Conversion of endpoint errors to episode failures with a hint for the user."""

from __future__ import annotations

from collections.abc import Collection

from marft.common.errors import EpisodeFailedError
from marft.common.texts import cut, one_line
from marft.config.endpoint import EndpointSettings
from marft.config.keys import masked, without

LONGEST = 300  # maximum length of a server's error message, in characters


def as_failure(
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

    who = f"endpoint {name!r} ({settings.url})"
    if isinstance(error, TimeoutError | openai.APITimeoutError):
        limit = f"{settings.timeout_seconds:g} s"
        return EpisodeFailedError("timed_out", f"{who} gave no whole answer in {limit}, retries included")
    if isinstance(error, openai.APIStatusError):
        said = clean(error.message, secrets)
        reason = f"{who} answered {error.status_code}{_remedy(error.status_code, settings, model)}. It said: {said}"
    elif isinstance(error, openai.APIConnectionError):
        cause = clean(str(error.__cause__ or error), secrets)
        reason = f"{who} cannot be reached, after {settings.retries} retries: {cause}; check its url and that it runs"
    else:
        reason = f"{who} cannot be used: {type(error).__name__}: {clean(str(error), secrets)}"
    return EpisodeFailedError("failed", reason)


def _remedy(status: int, settings: EndpointSettings, model: str) -> str:
    if status in (401, 403):
        variable = settings.api_key_variable
        where = f"the key in ${variable}" if variable else "whether it needs a key (api_key_variable)"
        return f"; check {where} and what it may do"
    if status == 404:
        return f"; check the url and that it has a model called {model!r}"
    if status in (400, 422):
        return '; a field that it does not take can be left out with omit = ["…"]'
    if status == 429 or status >= 500:
        return f", after {settings.retries} retries"
    return ""


def clean(text: str, secrets: Collection[str]) -> str:
    """Clean external text for storage and display: single line, limited length, no secrets.

    Secrets are masked whatever their length.
    """
    text = masked(secrets, text)
    for secret in secrets:
        text = without(secret, text)
    return cut(one_line(text), LONGEST)
