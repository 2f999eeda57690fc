"""Atomic file writes (temporary name, fsync, rename) and reads that cannot block forever."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import math
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from marft.common.errors import UserError

PRIVATE_MODE = 0o600  # mode of files that may contain secrets
FILE_KINDS = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFDIR: "a folder"}
TEMP_PREFIX = ".unfinished-"
BACKUP_SUFFIX = "-before"
TEMP_NAME = re.compile(re.escape(TEMP_PREFIX) + r"[0-9a-f]{16}")  # name of an unfinished file


def write_file(path: Path, data: bytes | str, mode: int = 0o666) -> None:
    """Replace ``path`` with ``data``; a crash leaves the old file or the new one.

    Args:
        data: content; a string is encoded as UTF-8.
        mode: mode of a new file, before the umask of the process is applied.
    """
    content = data.encode() if isinstance(data, str) else data
    path.parent.mkdir(parents=True, exist_ok=True)
    temp_path = path.parent / f"{TEMP_PREFIX}{secrets.token_hex(8)}"
    try:
        with open(temp_path, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temp_path.replace(path)
    except BaseException:
        temp_path.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def truncate_partial_line(path: Path) -> None:
    """Truncate a file after its last line break.

    A process that was killed while writing leaves a partial last line, and the next line would be appended to it. Do
    nothing if ``path`` is not a file.
    """
    if not path.is_file():
        return
    with path.open("r+b") as file:
        content = file.read()
        if not content.endswith(b"\n"):
            file.truncate(content.rfind(b"\n") + 1)
            os.fsync(file.fileno())


def user_cache_dir() -> Path:
    """Return the user's cache folder: ``~/.cache/marft``, or ``marft`` in ``XDG_CACHE_HOME`` if absolute."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(home) if Path(home).is_absolute() else Path.home() / ".cache") / "marft"


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder and rename it to ``path`` on success.

    If the block raises, the temporary folder is deleted. An existing ``path`` is renamed first and deleted last, so
    ``path`` never holds partial content.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temp_folder = path.parent / f"{TEMP_PREFIX}{secrets.token_hex(8)}"
    backup = temp_folder.with_name(f"{temp_folder.name}{BACKUP_SUFFIX}")
    temp_folder.mkdir()
    try:
        with _open_folder(temp_folder) as descriptor:
            with suppress(OSError):  # the file system has no locks
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield temp_folder
            _sync_tree(temp_folder)
            if path.exists():
                path.replace(backup)
            temp_folder.replace(path)
    except BaseException:
        if backup.exists() and not path.exists():
            backup.replace(path)
        shutil.rmtree(temp_folder, ignore_errors=True)
        raise
    sync_folder(path.parent)
    if backup.exists():
        shutil.rmtree(backup)


def check_regular_file(path: str | Path) -> Path:
    """Return the path of a regular or missing file.

    A read from a pipe, device or socket could block forever.

    Raises:
        OSError: ``path`` is not a regular file, or its status cannot be read.
    """
    path = Path(path)
    with suppress(FileNotFoundError):
        kind = stat.S_IFMT(path.stat().st_mode)
        if kind != stat.S_IFREG:
            description = FILE_KINDS.get(kind, "a device")
            raise OSError(errno.EINVAL, f"it is {description}, and only regular files are read", str(path))
    return path


def read_text(path: str | Path) -> str:
    """Return the content of a UTF-8 text file, without a byte order mark.

    Raises:
        OSError: ``path`` is not a regular file, or cannot be read.
        UnicodeDecodeError: the content is not UTF-8.
    """
    return check_regular_file(path).read_text(encoding="utf-8-sig")


def digest_of_file(path: Path) -> str:
    """Return the SHA-256 digest of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest_of_json(value: object) -> str:
    """Return the SHA-256 digest of a value as JSON, in hexadecimal digits; the order of keys does not count."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


def replace_non_finite(value: object) -> object:
    """Return a JSON value with null for each number that is not finite."""
    if isinstance(value, dict):
        return {str(key): replace_non_finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [replace_non_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_json(path: Path) -> Any:
    """Return the parsed content of a JSON file.

    Raises:
        UserError: the content is not JSON or is nested too deeply, or ``path`` is not a file (a pipe could block
            forever).
        OSError: the file cannot be read.
    """
    if path.exists() and not path.is_file():
        raise UserError(f"{path} is no file")
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except RecursionError:
        raise UserError(f"{path} has too many tables inside each other") from None


def unused_path(path: Path, label: str) -> Path:
    """Return an unused name next to ``path``: ``metrics.damaged-1.jsonl``."""
    number = 1
    while (
        candidate := path.with_name(f"{path.stem}.{label}-{number}{path.suffix}")
    ).exists() or candidate.is_symlink():
        number += 1
    return candidate


def remove_temp_entries(folder: Path) -> None:
    """Delete temporary files and folders that a crash left in ``folder``."""
    for entry in folder.glob(f"{TEMP_PREFIX}*"):
        if entry.is_dir():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def is_temp_file(path: Path) -> bool:
    """Return True for a temporary file of an interrupted write."""
    return TEMP_NAME.fullmatch(path.name) is not None and path.is_file() and not path.is_symlink()


def remove_temp_files(folder: Path) -> None:
    """Delete temporary files of interrupted writes; no process may be writing in ``folder``."""
    for path in folder.glob(f"{TEMP_PREFIX}*"):
        if is_temp_file(path):
            path.unlink()


def remove_stale_dirs(folder: Path) -> None:
    """Delete temporary folders from killed writers.

    A folder that another process still fills stays, and so does a temporary folder next to the old folder that it was
    about to replace. An old folder is deleted once its replacement is in place.
    """
    for temp_folder in folder.glob(f"{TEMP_PREFIX}*"):
        if temp_folder.is_symlink() or not temp_folder.is_dir():
            continue
        if temp_folder.name.endswith(BACKUP_SUFFIX):
            if not temp_folder.with_name(
                temp_folder.name.removesuffix(BACKUP_SUFFIX)
            ).exists():  # the replacement is in place
                shutil.rmtree(temp_folder, ignore_errors=True)
            continue
        if not temp_folder.with_name(f"{temp_folder.name}{BACKUP_SUFFIX}").exists():
            # the folder is locked, or its writer has just renamed it
            with suppress(OSError), _open_folder(temp_folder) as descriptor:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(temp_folder)


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries to disk (fsync)."""
    with _open_folder(folder) as descriptor:
        os.fsync(descriptor)


def _sync_tree(folder: Path) -> None:
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            with file.open("rb") as handle:
                os.fsync(handle.fileno())
        else:
            sync_folder(file)
    sync_folder(folder)


@contextmanager
def _open_folder(folder: Path) -> Iterator[int]:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
