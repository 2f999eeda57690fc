"""Reader for JSON lines; other lines are skipped and counted."""

from __future__ import annotations

import json
from codecs import BOM_UTF8
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from marft.common.atomic import regular
from marft_serve.traces.record import Tally

LONGEST_LINE = 64 * 2**20  # bytes


def objects(path: Path, tally: Tally) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield ``(place, object)`` for each line; ignore blank lines.

    Args:
        path: the file.
        tally: counter of skipped lines.

    Raises:
        ValueError: the file cannot be opened.
    """
    try:
        file = regular(path).open("rb")
    except OSError as error:
        raise ValueError(f"cannot read the traces of {path}: {error.strerror or error}") from error
    with file:
        for number, line in enumerate(_lines(file), 1):
            place = f"{path.name}:{number}"
            if line is None:
                tally.skip("line", f"it has more than {LONGEST_LINE >> 20} MiB", place)
                continue
            if not line.strip():
                continue
            try:
                found = json.loads(line.removeprefix(BOM_UTF8) if number == 1 else line)
            # truncated, not UTF-8, numbers with thousands of digits, or nested too deep
            except (ValueError, RecursionError):
                tally.skip("line", "it is no JSON; one object a line is read", place)
                continue
            if isinstance(found, dict):
                yield place, found
            else:
                tally.skip("line", f"it is a {type(found).__name__}, not an object", place)


def _lines(file: BinaryIO) -> Iterator[bytes | None]:
    """Yield lines; None replaces a line beyond the length limit, without loading it whole."""
    while line := file.readline(LONGEST_LINE):
        if len(line) < LONGEST_LINE or line.endswith(b"\n"):
            yield line
            continue
        while line and not line.endswith(b"\n"):
            line = file.readline(LONGEST_LINE)
        yield None
