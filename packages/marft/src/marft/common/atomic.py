"""Atomic file writes (temporary name, fsync, rename) and reads that cannot block forever."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

OWN = 0o600  # mode of files that may contain secrets
KINDS = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFDIR: "a folder"}
UNFINISHED = ".unfinished-"
BEFORE = "-before"
DRAFT = re.compile(re.escape(UNFINISHED) + r"[0-9a-f]{16}")  # name of an unfinished file


def write_file(path: Path, data: bytes | str, rights: int = 0o666) -> None:
    """Replace ``path`` with ``data``; a crash leaves the old file or the new one.

    Args:
        data: content; a string is encoded as UTF-8.
        rights: mode of a new file, before the umask of the process is applied.
    """
    content = data.encode() if isinstance(data, str) else data
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.parent / f"{UNFINISHED}{secrets.token_hex(8)}"
    try:
        with open(draft, "xb", opener=lambda name, flags: os.open(name, flags, rights)) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def drop_unfinished_line(path: Path) -> None:
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


def user_cache() -> Path:
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
    draft = path.parent / f"{UNFINISHED}{secrets.token_hex(8)}"
    before = draft.with_name(f"{draft.name}{BEFORE}")
    draft.mkdir()
    try:
        with _opened(draft) as descriptor:
            with suppress(OSError):  # the file system has no locks
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield draft
            _sync(draft)
            if path.exists():
                path.replace(before)
            draft.replace(path)
    except BaseException:
        if before.exists() and not path.exists():
            before.replace(path)
        shutil.rmtree(draft, ignore_errors=True)
        raise
    sync_folder(path.parent)
    if before.exists():
        shutil.rmtree(before)


def regular(path: str | Path) -> Path:
    """Return the path of a regular or missing file.

    A read from a pipe, device or socket could block forever.

    Raises:
        OSError: ``path`` is not a regular file, or its status cannot be read.
    """
    path = Path(path)
    with suppress(FileNotFoundError):
        kind = stat.S_IFMT(path.stat().st_mode)
        if kind != stat.S_IFREG:
            what = KINDS.get(kind, "a device")
            raise OSError(errno.EINVAL, f"it is {what}, and only regular files are read", str(path))
    return path


def read_text(path: str | Path) -> str:
    """Return the content of a UTF-8 text file, without a byte order mark.

    Raises:
        OSError: ``path`` is not a regular file, or cannot be read.
        UnicodeDecodeError: the content is not UTF-8.
    """
    return regular(path).read_text(encoding="utf-8-sig")


def read_json(path: Path) -> Any:
    """Return the parsed content of a JSON file.

    Raises:
        ValueError: the content is not JSON or is nested too deeply, or ``path`` is not a file (a pipe could block
            forever).
        OSError: the file cannot be read.
    """
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} is no file")
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except RecursionError:
        raise ValueError(f"{path} has too many tables inside each other") from None


def free_name(path: Path, label: str) -> Path:
    """Return an unused name next to ``path``: ``metrics.damaged-1.jsonl``."""
    number = 1
    while (free := path.with_name(f"{path.stem}.{label}-{number}{path.suffix}")).exists() or free.is_symlink():
        number += 1
    return free


def remove_unfinished(folder: Path) -> None:
    """Delete temporary files and folders that a crash left in ``folder``."""
    for leftover in folder.glob(f"{UNFINISHED}*"):
        shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()


def is_draft(path: Path) -> bool:
    """Return True for a temporary file of an interrupted write."""
    return DRAFT.fullmatch(path.name) is not None and path.is_file() and not path.is_symlink()


def remove_drafts(folder: Path) -> None:
    """Delete temporary files of interrupted writes; no process may be writing in ``folder``."""
    for path in folder.glob(f"{UNFINISHED}*"):
        if is_draft(path):
            path.unlink()


def remove_abandoned(folder: Path) -> None:
    """Delete temporary folders from killed writers.

    A folder that another process still fills stays, and so does a temporary folder next to the old folder that it was
    about to replace. An old folder is deleted once its replacement is in place.
    """
    for draft in folder.glob(f"{UNFINISHED}*"):
        if draft.is_symlink() or not draft.is_dir():
            continue
        if draft.name.endswith(BEFORE):
            if not draft.with_name(draft.name.removesuffix(BEFORE)).exists():  # the replacement is in place
                shutil.rmtree(draft, ignore_errors=True)
            continue
        if not draft.with_name(f"{draft.name}{BEFORE}").exists():
            # the folder is locked, or its writer has just renamed it
            with suppress(OSError), _opened(draft) as descriptor:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(draft)


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries to disk (fsync)."""
    with _opened(folder) as descriptor:
        os.fsync(descriptor)


def _sync(folder: Path) -> None:
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            with file.open("rb") as handle:
                os.fsync(handle.fileno())
        else:
            sync_folder(file)
    sync_folder(folder)


@contextmanager
def _opened(folder: Path) -> Iterator[int]:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
