"""Errors that another process of the run reports."""

from __future__ import annotations

import traceback
from dataclasses import dataclass

from marft.common.errors import RunError, UserError


class RemoteFaultError(Exception):
    """Unexpected error in another process of the run; a note holds its traceback."""


@dataclass(frozen=True, slots=True)
class RemoteError:
    """Serialized error, because exceptions may not pickle.

    Args:
        message: error message.
        kind: "value" for a deliberate ValueError, "run" for a RunError, "gone" if other ranks were unreachable, else
            "fault".
        trace: traceback in the other process.
    """

    message: str
    kind: str
    trace: str

    @staticmethod
    def from_error(error: BaseException) -> RemoteError:
        """Serialize an exception."""
        # imported late: engines on another Python import this module
        from marft.common.error_origin import describe_error

        kind = "run" if isinstance(error, RunError) else "fault"
        if isinstance(error, UserError):
            kind = "value"
        message = describe_error(error) if kind == "fault" else str(error)
        return RemoteError(message, kind, "".join(traceback.format_exception(error)))

    def to_error(self, place: str) -> Exception:
        """Return the exception to raise in this process.

        Args:
            place: the other process, for the message of an unexpected error: ``a worker process``, ``rank 1``.
        """
        if self.kind == "value":
            return UserError(self.message)
        if self.kind == "run":
            return RunError(self.message)
        error = RemoteFaultError(f"in {place}: {self.message}")
        error.add_note(self.trace)
        return error
