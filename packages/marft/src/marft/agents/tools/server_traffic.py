"""Limits on an MCP server's traffic, and a short record of invalid data."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path

from marft.common.texts import format_error, single_line
from marft.common.types import Tool

MAX_MESSAGE_BYTES = 8 << 20  # maximum size of one message
MAX_RESPONSE_BYTES = 32 << 20  # maximum size of all data after our last request
MAX_RESPONSE_LINES = 10_000
MAX_TOOLS = 1_000  # maximum tools in a server's list
MAX_PAGES = 100  # maximum pages of the list
MAX_NAME_CHARACTERS = 200
MAX_DESCRIPTION_CHARS = 16_384
MAX_SCHEMA_CHARACTERS = 65_536  # maximum JSON size of a tool's argument schema
MAX_TOTAL_CHARACTERS = 1 << 20  # maximum total size of all tools that agents get from a server
MAX_QUOTED_CHARACTERS = 120  # characters quoted in messages


class LimitExceededError(ValueError):
    """MCP server exceeded a limit."""


class ServerTraffic:
    """Traffic counter for one server. ``fault`` describes the exceeded limit; afterwards, no more data is read."""

    def __init__(self) -> None:
        self.fault = ""
        self._lines = self._bytes = self._invalid_lines = 0
        self._last_invalid = ""
        self._logged = _library_log.count

    def reset(self) -> None:
        """Reset the counters at our request: the following data may be its response."""
        self._lines = self._bytes = 0

    def count(self, size: int, lines: int = 0) -> None:
        """Count received data.

        Raises:
            LimitExceededError: the server sent too much after a single request.
        """
        self._bytes += size
        self._lines += lines
        if self._bytes > MAX_RESPONSE_BYTES or self._lines > MAX_RESPONSE_LINES:
            raise self.record_fault(
                f"it sent more than {MAX_RESPONSE_LINES:,} lines or {MAX_RESPONSE_BYTES >> 20} MiB after a single "
                "request"
            )

    def add_invalid_line(self, line: bytes) -> None:
        """Store a line outside the protocol."""
        self._invalid_lines += 1
        self._last_invalid = line[:MAX_QUOTED_CHARACTERS].decode("utf-8", "replace")

    def record_fault(self, fault: str) -> LimitExceededError:
        """Store the first fault, and return an error."""
        self.fault = self.fault or fault
        return LimitExceededError(self.describe_faults())

    def message_too_long(self) -> LimitExceededError:
        """Return the error for a message larger than ``MAX_MESSAGE_BYTES``."""
        return self.record_fault(f"it sent a message of more than {MAX_MESSAGE_BYTES >> 20} MiB")

    def describe_faults(self) -> str:
        """Return the fault, invalid lines and the library's last log message, or ""."""
        parts = [self.fault] if self.fault else []
        if self._invalid_lines:
            parts.append(
                f"{self._invalid_lines:,} of its lines on standard output are no messages of the protocol, the last "
                f"{single_line(self._last_invalid)!r}; only messages belong there, all else on standard error"
            )
        elif _library_log.count > self._logged:
            parts.append(f"the mcp package says: {_library_log.last}")
        return "; ".join(parts)


class _LogHandler(logging.Handler):
    """Log handler for the ``mcp`` package: counts messages and stores the last, instead of printing."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.count, self.last = 0, ""

    def emit(self, record: logging.LogRecord) -> None:
        """Count and store a message."""
        error = record.exc_info[1] if record.exc_info else None
        message = (
            f"{record.getMessage()[:MAX_QUOTED_CHARACTERS]}: {format_error(error)[:MAX_QUOTED_CHARACTERS]}"
            if error
            else record.getMessage()[:MAX_QUOTED_CHARACTERS]
        )
        self.count, self.last = self.count + 1, single_line(message)


_library_log = _LogHandler()


def redirect_library_log() -> None:
    """Redirect the ``mcp`` package's log away from the terminal."""
    import mcp

    logger, folder = logging.getLogger("mcp"), str(Path(mcp.__file__).parent)

    def keep_foreign(record: logging.LogRecord) -> bool:
        """Return false for messages from the package's files."""
        if not record.pathname.startswith(folder):
            return True
        _library_log.handle(record)
        return False

    if _library_log not in logger.handlers:
        logger.addHandler(_library_log)
        logger.propagate = False
        # the package's sessions use this logger name, as other packages may
        logging.getLogger("client").addFilter(keep_foreign)


def check_tool_count(tools: int, pages: int) -> None:
    """Check the length of a server's tool list.

    Raises:
        LimitExceededError: the list has too many tools or pages.
    """
    if tools > MAX_TOOLS or pages > MAX_PAGES:
        raise LimitExceededError(
            f"it lists more than {MAX_TOOLS:,} tools or {MAX_PAGES} pages of them; "
            "use a server that offers fewer, or start it so that it does"
        )


def check_tool_sizes(tools: Sequence[Tool], server: str) -> None:
    """Check the sizes of an agent's tools.

    Raises:
        ValueError: a tool, or all tools together, exceed a size limit. The message names the tool and a remedy.
    """
    total = 0
    for tool in tools:
        sizes = {
            "name": (len(tool.name), MAX_NAME_CHARACTERS),
            "description": (len(tool.description), MAX_DESCRIPTION_CHARS),
            "schema of arguments": (len(json.dumps(tool.parameters)), MAX_SCHEMA_CHARACTERS),
        }
        for part, (size, max_size) in sizes.items():
            if size > max_size:
                raise ValueError(
                    f"{server}: the {part} of its tool {single_line(tool.name[:MAX_QUOTED_CHARACTERS])!r} has {size:,} "
                    f"characters, more than {max_size:,}; name in only the tools that agents need, without this one"
                )
        total += sum(size for size, _ in sizes.values())
    if total > MAX_TOTAL_CHARACTERS:
        raise ValueError(
            f"{server}: its {len(tools):,} tools have {total:,} characters, more than {MAX_TOTAL_CHARACTERS:,}; "
            "name in only those that agents need"
        )
