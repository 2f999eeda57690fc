"""How much an MCP server may send, and what is kept of what it should not have sent."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path

from marft.common.texts import one_line, raised
from marft.common.types import Tool

MESSAGE_BYTES = 8 << 20  # of one message
UNASKED_BYTES = 32 << 20  # of all that comes after the last request of ours
UNASKED_LINES = 10_000
MOST_TOOLS = 1_000  # that a server lists
MOST_PAGES = 100  # of that list
NAME_CHARACTERS = 200
DESCRIPTION_CHARACTERS = 16_384
SCHEMA_CHARACTERS = 65_536  # of the JSON of a tool's arguments
LISTED_CHARACTERS = 1 << 20  # of all tools that agents get from a server
QUOTED = 120  # characters


class TooMuchError(ValueError):
    """A server sends more than it may."""


class Intake:
    """Counts what a server sends. ``fault`` says what was too much; after that, nothing is read from it."""

    def __init__(self) -> None:
        self.fault = ""
        self._lines = self._bytes = self._noise = 0
        self._last = ""
        self._logged = _of_library.count

    def asked(self) -> None:
        """Note a request of ours: what comes now may be the answer."""
        self._lines = self._bytes = 0

    def took(self, size: int, lines: int = 0) -> None:
        """Count what was read.

        Raises:
            TooMuchError: nothing of it was asked for.
        """
        self._bytes += size
        self._lines += lines
        if self._bytes > UNASKED_BYTES or self._lines > UNASKED_LINES:
            raise self.refused(
                f"it sent more than {UNASKED_LINES:,} lines or {UNASKED_BYTES >> 20} MiB after a single request"
            )

    def noted(self, line: bytes) -> None:
        """Remember a line that is no message."""
        self._noise += 1
        self._last = line[:QUOTED].decode("utf-8", "replace")

    def refused(self, fault: str) -> TooMuchError:
        """Return the error for what is too much, which is kept as the fault."""
        self.fault = self.fault or fault
        return TooMuchError(self.told())

    def too_long(self) -> TooMuchError:
        """Return the error for a message of more than ``MESSAGE_BYTES``."""
        return self.refused(f"it sent a message of more than {MESSAGE_BYTES >> 20} MiB")

    def told(self) -> str:
        """Return the fault, what else it wrote, and what the library has logged last; ``""`` where there is nothing."""
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
    """Counts what the ``mcp`` package logs, and keeps the last of it, in the place of writing it to the terminal."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.count, self.last = 0, ""

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        said = f"{record.getMessage()[:QUOTED]}: {raised(error)[:QUOTED]}" if error else record.getMessage()[:QUOTED]
        self.count, self.last = self.count + 1, one_line(said)


_of_library = _Heard()


def quiet_library() -> None:
    """Keep the log of the ``mcp`` package off the terminal."""
    import mcp

    logger, folder = logging.getLogger("mcp"), str(Path(mcp.__file__).parent)

    def others(record: logging.LogRecord) -> bool:
        if not record.pathname.startswith(folder):
            return True
        _of_library.handle(record)
        return False

    if _of_library not in logger.handlers:
        logger.addHandler(_of_library)
        logger.propagate = False
        logging.getLogger("client").addFilter(others)  # its sessions log under this name, as others may


def refuse_many(tools: int, pages: int) -> None:
    """Check how far a server's list goes.

    Raises:
        TooMuchError: further than it may.
    """
    if tools > MOST_TOOLS or pages > MOST_PAGES:
        raise TooMuchError(
            f"it lists more than {MOST_TOOLS:,} tools or {MOST_PAGES} pages of them; "
            "use a server that offers fewer, or start it so that it does"
        )


def refuse_large(tools: Sequence[Tool], server: str) -> None:
    """Check the tools that agents get.

    Raises:
        ValueError: one of them is larger than a tool may be, or all are together; it says which, and what to do.
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
