"""Writes that are whole or not there (a temporary name, fsync, rename), and reads that end."""

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

OWN = 0o600  # rights of files that could hold what is secret
KINDS = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFDIR: "a folder"}
UNFINISHED = ".unfinished-"
BEFORE = "-before"
DRAFT = re.compile(re.escape(UNFINISHED) + r"[0-9a-f]{16}")  # of a file


def write_file(path: Path, data: bytes | str, rights: int = 0o666) -> None:
    """Replace ``path`` with ``data``; a crash leaves the old file or the new one.

    Args:
        rights: of a new file, less what the process keeps from all files that it makes (its umask).
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
    """Take away what follows the last end of a line, if the file is there: what was being written when its process
    ended, and the next line would be added to."""
    if not path.is_file():
        return
    with path.open("r+b") as file:
        content = file.read()
        if not content.endswith(b"\n"):
            file.truncate(content.rfind(b"\n") + 1)
            os.fsync(file.fileno())


def user_cache() -> Path:
    """Where a user's programs keep what they can make again: ``~/.cache/marft``, or as ``XDG_CACHE_HOME`` says."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(home) if Path(home).is_absolute() else Path.home() / ".cache") / "marft"


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder to fill, which becomes ``path`` when the block ends well and disappears when it does not. What was at
    ``path`` goes aside by its name before it is deleted: it is never there in part.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.parent / f"{UNFINISHED}{secrets.token_hex(8)}"
    before = draft.with_name(f"{draft.name}{BEFORE}")
    draft.mkdir()
    try:
        with _opened(draft) as descriptor:
            with suppress(OSError):  # of a file system without locks
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
    """Return the path, where it is no pipe, device, socket or folder, from which a read could wait for ever.

    Raises:
        OSError: it is one of them, or it cannot be looked at. Nothing is raised where nothing is there.
    """
    path = Path(path)
    with suppress(FileNotFoundError):
        kind = stat.S_IFMT(path.stat().st_mode)
        if kind != stat.S_IFREG:
            what = KINDS.get(kind, "a device")
            raise OSError(errno.EINVAL, f"it is {what}, and only regular files are read", str(path))
    return path


def read_text(path: str | Path) -> str:
    """Return what a text file in UTF-8 holds, without a byte order mark.

    Raises:
        OSError: it is no regular file, or the system does not give it.
        UnicodeDecodeError: it is no UTF-8.
    """
    return regular(path).read_text(encoding="utf-8-sig")


def read_json(path: Path) -> Any:
    """What a JSON file holds.

    Raises:
        ValueError: it holds no JSON, or it is no file: from a pipe nothing may ever come.
        OSError: the system does not give it.
    """
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} is no file")
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except RecursionError:
        raise ValueError(f"{path} has too many tables inside each other") from None


def free_name(path: Path, label: str) -> Path:
    """A name beside ``path`` that nothing has yet: ``metrics.damaged-1.jsonl``."""
    number = 1
    while (free := path.with_name(f"{path.stem}.{label}-{number}{path.suffix}")).exists() or free.is_symlink():
        number += 1
    return free


def remove_unfinished(folder: Path) -> None:
    """Clear what a crash left half-written."""
    for leftover in folder.glob(f"{UNFINISHED}*"):
        shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()


def is_draft(path: Path) -> bool:
    """Whether it is a file that was being written: of one whose writer was killed nobody has anything."""
    return DRAFT.fullmatch(path.name) is not None and path.is_file() and not path.is_symlink()


def remove_drafts(folder: Path) -> None:
    """Clear files that were being written. Nobody may be at work there."""
    for path in folder.glob(f"{UNFINISHED}*"):
        if is_draft(path):
            path.unlink()


def remove_abandoned(folder: Path) -> None:
    """Clear drafts of folders whose makers were killed; what somebody still fills stays, and so does a draft beside
    what was to give way to it. What has given way goes.
    """
    for draft in folder.glob(f"{UNFINISHED}*"):
        if draft.is_symlink() or not draft.is_dir():
            continue
        if draft.name.endswith(BEFORE):
            if not draft.with_name(draft.name.removesuffix(BEFORE)).exists():  # which has taken its place
                shutil.rmtree(draft, ignore_errors=True)
            continue
        if not draft.with_name(f"{draft.name}{BEFORE}").exists():
            with suppress(OSError), _opened(draft) as descriptor:  # it is held, or its maker has just moved it
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(draft)


def sync_folder(folder: Path) -> None:
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
