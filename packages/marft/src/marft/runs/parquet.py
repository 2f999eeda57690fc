"""Parquet files by their paths, whatever bytes those are of."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa


def opened(path: Path) -> pa.NativeFile:
    """A file for Arrow to read, which takes paths as text in UTF-8 alone. Close it.

    Raises:
        OSError: it cannot be opened.
    """
    return pa.OSFile(os.fsencode(path))
