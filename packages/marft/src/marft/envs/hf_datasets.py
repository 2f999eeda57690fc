"""Data sets read by the datasets package: from the Hugging Face Hub, or a folder of files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from marft.common.packages import install_command


def read_dataset(path: str, subset: str, split: str) -> Iterable[Mapping[str, object]]:
    """Return the rows in one split.

    Args:
        path: id on the Hub, or a folder.
        subset: configuration name, or "" for the default.
        split: name of the split.

    Raises:
        ValueError: the package is missing, or the data set cannot be loaded.
    """
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise ValueError(
            f"environment: reading {path!r} needs the datasets package: {install_command('datasets')}; "
            "a .jsonl file needs nothing"
        ) from error
    try:
        rows: Iterable[Mapping[str, object]] = load_dataset(path, subset or None, split=split)
    except Exception as error:  # the package raises many types of errors for unreadable files
        first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ValueError(f"environment: cannot load data set {path!r}: {first_line}") from error
    return rows
