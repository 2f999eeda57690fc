"""Data sets that the datasets package reads: of the Hugging Face hub, or a folder of files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping


def read_dataset(path: str, subset: str, split: str) -> Iterable[Mapping[str, object]]:
    """Rows of one split.

    Args:
        path: an id on the hub, or a folder.
        subset: of the data set; "" where it has none.

    Raises:
        ValueError: the package is missing, or the data set cannot be loaded.
    """
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise ValueError(
            f"environment: reading {path!r} needs the datasets package: pip install 'marft[datasets]'; "
            "a .jsonl file needs nothing"
        ) from error
    try:
        rows: Iterable[Mapping[str, object]] = load_dataset(path, subset or None, split=split)
    except Exception as error:  # whatever the package raises at files that it cannot read
        first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ValueError(f"environment: cannot load data set {path!r}: {first_line}") from error
    return rows
