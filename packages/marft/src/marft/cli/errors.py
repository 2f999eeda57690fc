"""Errors for people: one message that names cause and remedy, an exit status, and a file for what nobody foresaw."""

from __future__ import annotations

import errno
import os
import platform
import re
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from marft.common.atomic import OWN, write_file
from marft.common.errors import RunError
from marft.common.faults import deliberate, described, place_of
from marft.common.texts import cut, storable, visible
from marft.common.version import __version__

DEBUG = "--debug"  # with any command: print the traceback of an error
LONGEST = 4000  # characters of a message in the terminal
NO_RUN = Path("marft-error.txt")
IN_A_RUN = "error.txt"
FULL = {
    errno.ENOSPC: "make room",
    errno.EDQUOT: "make room, or have the quota raised",
    errno.EFBIG: "allow larger files",
}
REMEDIES = {  # what the system says about a file, and what can be done
    errno.EROFS: "nothing can be written there; choose another place (--output)",
    errno.EACCES: "allow it, or choose another place (--output)",
    errno.EPERM: "allow it, or choose another place (--output)",
    errno.ENOTDIR: "a file is where a folder should be; move it, or choose another place (--output)",
    errno.EEXIST: "a file is where a folder should be; move it, or choose another place (--output)",
    errno.EISDIR: "a folder is where a file should be; move it, or choose another place (--output)",
    errno.ENOENT: "something has taken it away",
    errno.ENAMETOOLONG: "give it a shorter name",
    errno.ELOOP: "it is a link to itself",
    errno.EMFILE: "allow more open files (ulimit -n)",
    errno.ENFILE: "the system has too many open files",
    errno.EIO: "the disk is damaged, or its connection lost",
}
NO_TEMPORARY = "No usable temporary directory"  # what Python says where none takes anything
IN_SAFETENSORS = re.compile(r"os error (\d+)|Os \{ code: (\d+)")  # their errors are none of the system's


@dataclass
class _Command:
    """The command that runs: whose run it is about, and what has been said on stderr."""

    folder: Path | None = None
    debug: bool = False
    said: set[str] = field(default_factory=set)


_now = _Command()


def beside(folder: Path) -> None:
    """From here on the command is about the run in ``folder``."""
    _now.folder = folder


def folder_of_run() -> Path | None:
    """Return the folder of the run that the command is about."""
    return _now.folder


@contextmanager
def friendly(debug: bool = False) -> Iterator[None]:
    """Turn errors into a message on stderr: exit status 2 where the user can do something about it, else 1.

    What we raise as ``ValueError`` or ``RunError``, and what the system says about files, is the message. All else is a
    fault, ours or that of a part of the user's: it is named, and its traceback goes to a file beside the run.

    Args:
        debug: print the traceback as well.
    """
    _now.folder, _now.debug, _now.said = None, debug, set()
    before, threading.excepthook = threading.excepthook, _in_a_thread
    try:
        yield
    except Exception as error:  # noqa: BLE001  the end of every command; what it was goes to a file
        message, status = _explained(error)
        _say(message)
        raise SystemExit(status) from None
    finally:
        threading.excepthook = before


def about_files(error: Exception) -> str:
    """What the system says about a file, and what to do; "" where an error is of another kind, or says so itself."""
    return _about_files(error, only_full=_is_deliberate(error))


def _in_a_thread(what: threading.ExceptHookArgs) -> None:
    if isinstance(what.exc_value, Exception):
        _say(_explained(what.exc_value)[0])


def _explained(error: Exception) -> tuple[str, int]:
    """What to say of it, and the exit status."""
    if _now.debug:
        traceback.print_exception(error)
    files = about_files(error)
    if files:
        return files, 2
    if _is_deliberate(error):
        return str(error), 2
    return _fault(error), 1


def _say(message: str) -> None:
    shown = cut(visible(_without_secrets(message)), LONGEST)
    if shown not in _now.said:  # what ends a thread often comes back to whoever waits for it
        _now.said.add(shown)
        print(f"marft: {shown}", file=sys.stderr)  # noqa: T201


def _without_secrets(text: str) -> str:
    """Return the text without what the command line says in confidence, and what has the shape of a secret."""
    from marft.config.keys import masked, secrets_typed
    from marft.config.secrets import censored

    return censored(masked(list(secrets_typed(sys.argv[1:])), text))


def _is_deliberate(error: Exception) -> bool:
    """Whether it was raised by MARFT on purpose, and names cause and remedy itself."""
    return isinstance(error, RunError) or (isinstance(error, ValueError) and deliberate(error))


def _about_files(error: BaseException, only_full: bool = False) -> str:
    """What the system says about a file, and what to do; "" where the error is of another kind."""
    cause: BaseException | None = error
    seen: set[int] = set()  # chains of causes can lead back to where they began
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        if isinstance(cause, FileNotFoundError) and str(cause.strerror).startswith(NO_TEMPORARY):
            return f"{cause.strerror}: make room in one of them, or set TMPDIR to a folder that has some"
        number = _number(cause)
        if number in FULL or (number in REMEDIES and not only_full and not place_of(error)):
            written = getattr(cause, "filename2", None) or getattr(cause, "filename", None)  # of two, the target
            return _about_file(number, written or _now.folder)
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    return ""


def _number(error: BaseException) -> int:
    if isinstance(error, OSError):
        return error.errno or 0
    found = IN_SAFETENSORS.search(str(error)) if type(error).__name__ == "SafetensorError" else None
    return int(found[1] or found[2]) if found else 0


def _about_file(number: int, file: str | bytes | Path | int | None) -> str:
    path = None if file is None or isinstance(file, int) else Path(os.fsdecode(file))
    where = f" ({path})" if path else ""
    if number not in FULL:
        if path and _unreadable(path):
            return f"cannot read: {os.strerror(number)}{where}"
        return f"cannot write: {os.strerror(number)}{where}: {REMEDIES[number]}"
    left = " No inodes are left: it holds too many files." if number == errno.ENOSPC and _no_inodes(path) else ""
    saved = f"Everything saved before is whole; {FULL[number]} and go on (train and sft: --resume)"
    return f"cannot write: {os.strerror(number)}{where}.{left} {saved}"


def _unreadable(path: Path) -> bool:
    with suppress(OSError, ValueError):
        return path.is_file() and not os.access(path, os.R_OK, effective_ids=os.access in os.supports_effective_ids)
    return False


def _no_inodes(path: Path | None) -> bool:
    for folder in [path, *path.parents] if path else []:
        with suppress(OSError, ValueError):
            numbers = os.statvfs(folder)
            return numbers.f_files > 0 and numbers.f_favail == 0
    return False


def _fault(error: Exception) -> str:
    """A sentence on what nobody foresaw, which says whose code it was and where the traceback is."""
    part = _part(error)
    who = f"{part} raised " if part and place_of(error) else f"unforeseen, in {part}: " if part else "unforeseen: "
    kept = _keep(error)
    where = f"The traceback is in {kept}; --debug prints it" if kept else "--debug prints the traceback"
    saved = " Everything saved before is whole; --resume goes on from there." if _has_checkpoints() else ""
    return f"{who}{described(error)}. {where}.{saved}"


def _part(error: BaseException) -> str:
    """The innermost plugin that was at work: ``credit 'my_package.credits:Median'``."""
    from marft.config.plugins import Plugin, called

    found = ""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        part = frame.f_locals.get("self")
        if isinstance(part, Plugin):
            found = called(part)
    return found


def _has_checkpoints() -> bool:
    folder = _now.folder
    with suppress(OSError):
        return folder is not None and any((folder / "checkpoints").glob("step_*"))
    return False


def _keep(error: Exception) -> str:
    """Write the traceback beside the run, else to the current folder, else among temporary files → where it is."""
    text = "\n".join(
        [
            f"{datetime.now().astimezone().isoformat(timespec='seconds')}  marft {__version__}  {platform.platform()}",
            f"python {platform.python_version()}: {' '.join(map(repr, sys.argv[1:]))}",
            "",
            "".join(traceback.format_exception(error)),
        ]
    )
    text = _without_secrets(text)
    folder = _now.folder
    places = [NO_RUN]
    with suppress(OSError):  # no folder for temporary files takes any
        places.append(Path(tempfile.gettempdir()) / NO_RUN)
    if folder is not None and folder.is_dir():
        places.insert(0, folder / IN_A_RUN)
    for place in places:
        with suppress(OSError):
            write_file(place, storable(text), OWN)  # which replaces a link, and does not follow it
            return str(place)
    return ""
