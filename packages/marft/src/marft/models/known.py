"""What the models of a run are known by, remembered with the files that they are read from: whoever asks again need not
load them. It imports no torch.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

from marft.common import atomic
from marft.common.version import __version__
from marft.config.models import ModelSettings
from marft.config.run import RunSettings
from marft.models.paths import resolve_path

MOST_FILES = 1000  # of a model: a folder of more holds other things too, and is not looked through
KEPT = 256  # answers, the newest
SETTLED = 2.0  # seconds: what was written less long ago may be written again without its time showing it
File = tuple[str, int, int, int]  # path, size, time in ns, inode


def files_of(run: RunSettings) -> list[File] | None:
    """Every file that the models and frozen adapters of a run are read from; None where some are not on this disk, so
    that loading alone would tell. A model of the hub is the one that was downloaded last."""
    found: list[File] = []
    try:
        for model in run.models.values():
            if model.endpoint is None:
                found += _files_in(_folder_of(model))
                found += [_stamp(Path(model.chat_template))] if model.chat_template else []
        for policy in run.policies.values():
            found += _files_in(Path(policy.adapter)) if policy.adapter else []
    except OSError:
        return None
    return found


def known(run: RunSettings, files: list[File] | None) -> dict[str, str] | None:
    """What models that are read from these files are known by (:meth:`marft.models.pool.Models.digests`); None where
    nobody has loaded them yet."""
    try:
        found = atomic.read_json(_place(run, files)) if files is not None else None
    except (OSError, ValueError):
        return None
    return {str(name): str(digest) for name, digest in found.items()} if isinstance(found, dict) else None


def remember(run: RunSettings, files: list[File] | None, digests: Mapping[str, str]) -> None:
    """Remember what models are known by that were loaded from these files.

    Args:
        files: before they were loaded: where they are others now, nothing is remembered.
    """
    if files is None or files != files_of(run):
        return
    if max((changed for _, _, changed, _ in files), default=0) / 1e9 > time.time() - SETTLED:
        return
    place = _place(run, files)
    with suppress(OSError):  # a full disk, or a home that takes nothing: they are loaded again
        atomic.write_file(place, json.dumps(dict(digests)))
        for old in sorted(place.parent.glob("*.json"), key=lambda path: path.stat().st_mtime)[:-KEPT]:
            old.unlink()


def _place(run: RunSettings, files: list[File] | None) -> Path:
    """Where it is remembered: by the files, how they are read, and by what."""
    table = {
        "files": files,
        "read": run.model_dump(mode="json", include={"models", "policies"}),
        "by": [__version__, version("torch"), version("transformers")],
    }
    digest = hashlib.sha256(json.dumps(table, sort_keys=True, default=str).encode("utf-8", "surrogateescape"))
    return atomic.user_cache() / "models" / f"{digest.hexdigest()[:32]}.json"


def _folder_of(model: ModelSettings) -> Path:
    """
    Raises:
        OSError: it is not on this disk.
    """
    path = resolve_path(model.path)
    if Path(path).is_dir():
        return Path(path)
    from huggingface_hub import try_to_load_from_cache

    try:
        config = try_to_load_from_cache(path, "config.json", revision=model.revision)
    except ValueError:  # no id of the hub
        config = None
    if not isinstance(config, str):
        raise FileNotFoundError(path)
    return Path(config).parent


def _files_in(folder: Path) -> Iterator[File]:
    """
    Raises:
        OSError: it cannot be looked through, or holds too many.
    """
    number = 0
    for place, _, names in os.walk(folder, onerror=_raise):
        for name in sorted(names):
            number += 1
            if number > MOST_FILES:
                raise OSError(f"{folder} holds more than a model")
            yield _stamp(Path(place) / name)


def _raise(error: OSError) -> None:
    raise error


def _stamp(path: Path) -> File:
    """Of the file that a link leads to, under the link's own name, which decides what it is read as."""
    stat = path.stat()
    return str(path.absolute()), stat.st_size, stat.st_mtime_ns, stat.st_ino
