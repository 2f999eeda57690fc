"""What a client is told that is not answered: a status, a code that SDKs know, and words for people."""

from __future__ import annotations

from marft.agents.chat import ChatRefusedError

CODES = {"invalid": "invalid_value", "too_long": "context_length_exceeded", "unsupported": "unsupported_parameter"}


class RequestError(Exception):
    """A request that no action answers.

    Args:
        status: of HTTP.
        code: as OpenAI's SDKs know it.
        param: the field that is meant.
    """

    def __init__(self, status: int, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.param = status, code, message, param

    @property
    def kind(self) -> str:
        """The type of error, as OpenAI has it."""
        if self.code == "insufficient_quota":
            return self.code
        return "server_error" if self.status >= 500 else "invalid_request_error"

    @staticmethod
    def of(error: ChatRefusedError) -> RequestError:
        if error.why == "failed":
            return RequestError(500, "not_sampled", f"this request could not be answered: {error}")
        return RequestError(400, CODES[error.why], str(error), None if error.why == "unsupported" else "messages")


def unknown() -> RequestError:
    return RequestError(404, "not_found", "no episode and no agent is reached by this address")


def closed() -> RequestError:
    return RequestError(410, "episode_closed", "the episode is over, or its program has ended")


def spent(what: str, limit: int) -> RequestError:
    return RequestError(429, "insufficient_quota", f"the episode has spent its {what}: {limit}")
