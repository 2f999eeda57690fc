"""Where the source files of the packages are."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[1]
TESTS = ROOT / "tests"
SOURCES = sorted(ROOT.glob("packages/*/src"))


def source(place: str) -> Path:
    """Return the file or folder at a place such as ``marft/trainer/loop.py``."""
    package = place.partition("/")[0].replace("_", "-")
    return ROOT / "packages" / package / "src" / place


def source_files(*suffixes: str) -> dict[str, Path]:
    """Return all source files with one of these suffixes, by place."""
    return {
        file.relative_to(folder).as_posix(): file
        for folder in SOURCES
        for file in sorted(folder.rglob("*"))
        if file.suffix in suffixes and "__pycache__" not in file.parts
    }
