"""Parquet files with arbitrary bytes in their paths."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa


def open_parquet(path: Path) -> pa.NativeFile:
    """Open a file for Arrow, which otherwise accepts UTF-8 paths only. Close it after use.

    Raises:
        OSError: the file cannot be opened.
    """
    return pa.OSFile(os.fsencode(path))
