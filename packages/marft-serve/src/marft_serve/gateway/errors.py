"""Errors for clients: HTTP status, an error code that SDKs know, and a message."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from marft.agents.chat import ChatRefusedError

ERROR_CODES = {
    "invalid": "invalid_value",
    "too_long": "context_length_exceeded",
    "unsupported": "unsupported_parameter",
}


class RequestError(Exception):
    """Error response to a request.

    Args:
        status: HTTP status.
        code: error code of OpenAI's API.
        message: text for people.
        param: name of the invalid field; None if no single field is invalid.
    """

    def __init__(self, status: int, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.param = status, code, message, param

    @property
    def kind(self) -> str:
        """Error type in OpenAI's API."""
        if self.code == "insufficient_quota":
            return self.code
        return "server_error" if self.status >= 500 else "invalid_request_error"

    @staticmethod
    def from_chat_error(error: ChatRefusedError) -> RequestError:
        """Convert an error from the chat renderer or the engine."""
        if error.reason == "failed":
            return RequestError(500, "not_sampled", f"this request could not be answered: {error}")
        return RequestError(
            400, ERROR_CODES[error.reason], str(error), None if error.reason == "unsupported" else "messages"
        )


@contextmanager
def convert_chat_errors() -> Iterator[None]:
    """Context manager that converts errors from the chat renderer or the engine."""
    try:
        yield
    except ChatRefusedError as error:
        raise RequestError.from_chat_error(error) from error


def invalid_error(message: str, param: str | None = None) -> RequestError:
    """Return the error for an invalid request."""
    return RequestError(400, "invalid_value", message, param)


def not_found_error() -> RequestError:
    """Return the error for an address without an episode or agent."""
    return RequestError(404, "not_found", "no episode and no agent is reached by this address")


def episode_closed_error() -> RequestError:
    """Return the error for an address of a finished episode or program."""
    return RequestError(410, "episode_closed", "the episode is over, or its program has ended")


def episode_limit_error(resource: str, limit: int) -> RequestError:
    """Return the error for an episode beyond a limit."""
    return RequestError(429, "insufficient_quota", f"the episode has spent its {resource}: {limit}")
