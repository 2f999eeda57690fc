"""Limits on an MCP server's traffic, and a short record of invalid data."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path

from marft.common.texts import one_line, raised
from marft.common.types import Tool

MESSAGE_BYTES = 8 << 20  # maximum size of one message
UNASKED_BYTES = 32 << 20  # maximum size of all data after our last request
UNASKED_LINES = 10_000
MOST_TOOLS = 1_000  # maximum tools in a server's list
MOST_PAGES = 100  # maximum pages of the list
NAME_CHARACTERS = 200
DESCRIPTION_CHARACTERS = 16_384
SCHEMA_CHARACTERS = 65_536  # maximum JSON size of a tool's argument schema
LISTED_CHARACTERS = 1 << 20  # maximum total size of all tools that agents get from a server
QUOTED = 120  # characters quoted in messages


class TooMuchError(ValueError):
    """MCP server exceeded a limit."""


class Intake:
    """Traffic counter for one server. ``fault`` describes the exceeded limit; afterwards, no more data is read."""

    def __init__(self) -> None:
        self.fault = ""
        self._lines = self._bytes = self._noise = 0
        self._last = ""
        self._logged = _of_library.count

    def asked(self) -> None:
        """Reset the counters at our request: the following data may be its response."""
        self._lines = self._bytes = 0

    def took(self, size: int, lines: int = 0) -> None:
        """Count received data.

        Raises:
            TooMuchError: the server sent too much after a single request.
        """
        self._bytes += size
        self._lines += lines
        if self._bytes > UNASKED_BYTES or self._lines > UNASKED_LINES:
            raise self.refused(
                f"it sent more than {UNASKED_LINES:,} lines or {UNASKED_BYTES >> 20} MiB after a single request"
            )

    def noted(self, line: bytes) -> None:
        """Store a line outside the protocol."""
        self._noise += 1
        self._last = line[:QUOTED].decode("utf-8", "replace")

    def refused(self, fault: str) -> TooMuchError:
        """Store the first fault, and return an error."""
        self.fault = self.fault or fault
        return TooMuchError(self.told())

    def too_long(self) -> TooMuchError:
        """Return the error for a message larger than ``MESSAGE_BYTES``."""
        return self.refused(f"it sent a message of more than {MESSAGE_BYTES >> 20} MiB")

    def told(self) -> str:
        """Return the fault, invalid lines and the library's last log message, or ""."""
        parts = [self.fault] if self.fault else []
        if self._noise:
            parts.append(
                f"{self._noise:,} of its lines on standard output are no messages of the protocol, the last "
                f"{one_line(self._last)!r}; only messages belong there, all else on standard error"
            )
        elif _of_library.count > self._logged:
            parts.append(f"the mcp package says: {_of_library.last}")
        return "; ".join(parts)


class _Heard(logging.Handler):
    """Log handler for the ``mcp`` package: counts messages and stores the last, instead of printing."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.count, self.last = 0, ""

    def emit(self, record: logging.LogRecord) -> None:
        """Count and store a message."""
        error = record.exc_info[1] if record.exc_info else None
        said = f"{record.getMessage()[:QUOTED]}: {raised(error)[:QUOTED]}" if error else record.getMessage()[:QUOTED]
        self.count, self.last = self.count + 1, one_line(said)


_of_library = _Heard()


def quiet_library() -> None:
    """Redirect the ``mcp`` package's log away from the terminal."""
    import mcp

    logger, folder = logging.getLogger("mcp"), str(Path(mcp.__file__).parent)

    def others(record: logging.LogRecord) -> bool:
        """Return false for messages from the package's files."""
        if not record.pathname.startswith(folder):
            return True
        _of_library.handle(record)
        return False

    if _of_library not in logger.handlers:
        logger.addHandler(_of_library)
        logger.propagate = False
        # the package's sessions use this logger name, as other packages may
        logging.getLogger("client").addFilter(others)


def refuse_many(tools: int, pages: int) -> None:
    """Check the length of a server's tool list.

    Raises:
        TooMuchError: the list has too many tools or pages.
    """
    if tools > MOST_TOOLS or pages > MOST_PAGES:
        raise TooMuchError(
            f"it lists more than {MOST_TOOLS:,} tools or {MOST_PAGES} pages of them; "
            "use a server that offers fewer, or start it so that it does"
        )


def refuse_large(tools: Sequence[Tool], server: str) -> None:
    """Check the sizes of an agent's tools.

    Raises:
        ValueError: a tool, or all tools together, exceed a size limit. The message names the tool and a remedy.
    """
    total = 0
    for tool in tools:
        sizes = {
            "name": (len(tool.name), NAME_CHARACTERS),
            "description": (len(tool.description), DESCRIPTION_CHARACTERS),
            "schema of arguments": (len(json.dumps(tool.parameters)), SCHEMA_CHARACTERS),
        }
        for part, (size, most) in sizes.items():
            if size > most:
                raise ValueError(
                    f"{server}: the {part} of its tool {one_line(tool.name[:QUOTED])!r} has {size:,} characters, "
                    f"more than {most:,}; name in only the tools that agents need, without this one"
                )
        total += sum(size for size, _ in sizes.values())
    if total > LISTED_CHARACTERS:
        raise ValueError(
            f"{server}: its {len(tools):,} tools have {total:,} characters, more than {LISTED_CHARACTERS:,}; "
            "name in only those that agents need"
        )
