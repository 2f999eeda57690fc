"""Reader for JSON lines; other lines are skipped and counted."""

from __future__ import annotations

import json
from codecs import BOM_UTF8
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from marft.common.atomic import check_regular_file
from marft_serve.traces.types import SkipCounter

MAX_LINE_BYTES = 64 * 2**20  # bytes


def read_objects(path: Path, skip_counter: SkipCounter) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield ``(place, object)`` for each line; ignore blank lines.

    Args:
        path: the file.
        skip_counter: counter of skipped lines.

    Raises:
        ValueError: the file cannot be opened.
    """
    try:
        file = check_regular_file(path).open("rb")
    except OSError as error:
        raise ValueError(f"cannot read the traces of {path}: {error.strerror or error}") from error
    with file:
        for number, line in enumerate(_iter_lines(file), 1):
            location = f"{path.name}:{number}"
            if line is None:
                skip_counter.skip("line", f"it has more than {MAX_LINE_BYTES >> 20} MiB", location)
                continue
            if not line.strip():
                continue
            try:
                parsed = json.loads(line.removeprefix(BOM_UTF8) if number == 1 else line)
            # truncated, not UTF-8, numbers with thousands of digits, or nested too deep
            except (ValueError, RecursionError):
                skip_counter.skip("line", "it is no JSON; one object a line is read", location)
                continue
            if isinstance(parsed, dict):
                yield location, parsed
            else:
                skip_counter.skip("line", f"it is a {type(parsed).__name__}, not an object", location)


def _iter_lines(file: BinaryIO) -> Iterator[bytes | None]:
    """Yield lines; None replaces a line beyond the length limit, without loading it whole."""
    while line := file.readline(MAX_LINE_BYTES):
        if len(line) < MAX_LINE_BYTES or line.endswith(b"\n"):
            yield line
            continue
        while line and not line.endswith(b"\n"):
            line = file.readline(MAX_LINE_BYTES)
        yield None
