"""Disk cache of model digests, keyed by the model files, to avoid loading models again. Does not import torch."""

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
from marft.config.bundled import resolve_path
from marft.config.models import ModelSettings
from marft.config.run import RunSettings
from marft.models.model_sizes import find_cached_config

MAX_FILES = 1000  # maximum files per model; a folder with more files also holds other content and is not scanned
MAX_ENTRIES = 256  # maximum number of cache entries, the newest
# minimum file age in seconds, because a quick second write may leave the modification time unchanged
MIN_FILE_AGE = 2.0
FileStamp = tuple[str, int, int, int]  # path, size, modification time in ns, inode


def list_model_files(run: RunSettings) -> list[FileStamp] | None:
    """List every file behind a run's models and frozen adapters; None if a file is not on disk.

    A Hugging Face model is represented by its last download. With None, only loading the models can give their digests.
    """
    stamps: list[FileStamp] = []
    try:
        for model in run.models.values():
            if model.endpoint is None:
                stamps += _iter_files(_model_folder(model))
                stamps += [_file_stamp(Path(model.chat_template))] if model.chat_template else []
        for policy in run.policies.values():
            stamps += _iter_files(Path(policy.adapter)) if policy.adapter else []
    except OSError:
        return None
    return stamps


def load_digests(run: RunSettings, files: list[FileStamp] | None) -> dict[str, str] | None:
    """Return the cached model digests for these files; None if missing.

    The digests come from :meth:`marft.models.policy_registry.PolicyRegistry.compute_digests`.
    """
    try:
        table = atomic.read_json(_cache_path(run, files)) if files is not None else None
    except (OSError, ValueError):
        return None
    return {str(name): str(digest) for name, digest in table.items()} if isinstance(table, dict) else None


def save_digests(run: RunSettings, files: list[FileStamp] | None, digests: Mapping[str, str]) -> None:
    """Cache the digests for models loaded from these files.

    Args:
        files: file list from before the load; if the files have changed since, nothing is cached.
    """
    if files is None or files != list_model_files(run):
        return
    if max((modified for _, _, modified, _ in files), default=0) / 1e9 > time.time() - MIN_FILE_AGE:
        return
    cache_file = _cache_path(run, files)
    with suppress(OSError):  # a full disk or a read-only home: the models load again next time
        atomic.write_file(cache_file, json.dumps(dict(digests)))
        for old in sorted(cache_file.parent.glob("*.json"), key=lambda path: path.stat().st_mtime)[:-MAX_ENTRIES]:
            old.unlink()


def _cache_path(run: RunSettings, files: list[FileStamp] | None) -> Path:
    """Return the cache path, a digest over the files, the load settings and the library versions."""
    table = {
        "files": files,
        "read": run.model_dump(mode="json", include={"models", "policies"}),
        "by": [__version__, version("torch"), version("transformers")],
    }
    digest = hashlib.sha256(json.dumps(table, sort_keys=True, default=str).encode("utf-8", "surrogateescape"))
    return atomic.user_cache_dir() / "models" / f"{digest.hexdigest()[:32]}.json"


def _model_folder(model: ModelSettings) -> Path:
    """Return the model's local folder.

    Raises:
        OSError: the model is not on disk.
    """
    folder = Path(resolve_path(model.path))
    if folder.is_dir():
        return folder
    config = find_cached_config(model)
    if config is None:
        raise FileNotFoundError(folder)
    return config.parent


def _iter_files(folder: Path) -> Iterator[FileStamp]:
    """Yield every file in a folder.

    Raises:
        OSError: the folder is unreadable or contains too many files.
    """
    number = 0
    for directory, _, names in os.walk(folder, onerror=_raise_error):
        for name in sorted(names):
            number += 1
            if number > MAX_FILES:
                raise OSError(f"{folder} holds more than a model")
            yield _file_stamp(Path(directory) / name)


def _raise_error(error: OSError) -> None:
    raise error


def _file_stamp(path: Path) -> FileStamp:
    """Return the stamp of a link's target file under the link's own name, which determines the file type."""
    stat = path.stat()
    return str(path.absolute()), stat.st_size, stat.st_mtime_ns, stat.st_ino
