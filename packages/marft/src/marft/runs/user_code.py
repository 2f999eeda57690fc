"""User code in a recipe: digests of its files, to report changes on resume."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from marft.config.plugins import user_module_name
from marft.config.run import RunSettings


def hash_user_code(run: RunSettings) -> dict[str, str]:
    """Return the file digest for each module named in a recipe by import path.

    Files that such a module imports are not checked.
    """
    hashes = {}
    for text in _iterate_texts(run.model_dump(mode="json")):
        name = user_module_name(text)
        module = sys.modules.get(name)
        if module and module.__file__ and Path(module.__file__).is_file():
            hashes[name] = hashlib.sha256(Path(module.__file__).read_bytes()).hexdigest()
    return hashes


def code_notes(before: Mapping[str, str], run: RunSettings, step: int) -> Iterator[str]:
    """Yield a note for each user file that changed since checkpoint ``step``."""
    for module, digest in hash_user_code(run).items():
        if before.get(module, digest) != digest:
            yield (
                f"{sys.modules[module].__file__} has changed since step {step}: what the run learns from here on, it "
                "learns with the new one"
            )


def _iterate_texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from _iterate_texts(list(value.values()))
    elif isinstance(value, list):
        for part in value:
            yield from _iterate_texts(part)
