"""Error reports for users: one message with cause and remedy, an exit status, and a traceback file for faults."""

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
LONGEST = 4000  # maximum length of a message in the terminal, in characters
NO_RUN = Path("marft-error.txt")
IN_A_RUN = "error.txt"
FULL = {
    errno.ENOSPC: "make room",
    errno.EDQUOT: "make room, or have the quota raised",
    errno.EFBIG: "allow larger files",
}
REMEDIES = {  # remedies for errors of the file system
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
NO_TEMPORARY = "No usable temporary directory"  # Python's message without a usable temporary folder
IN_SAFETENSORS = re.compile(r"os error (\d+)|Os \{ code: (\d+)")  # errors of safetensors are no OSError


@dataclass
class _Command:
    """State for the running command: its run, and messages already printed on stderr."""

    folder: Path | None = None
    debug: bool = False
    said: set[str] = field(default_factory=set)


_now = _Command()


def beside(folder: Path) -> None:
    """Set the run's folder for later error reports."""
    _now.folder = folder


def folder_of_run() -> Path | None:
    """Return the current command's run folder; None if unknown."""
    return _now.folder


@contextmanager
def friendly(debug: bool = False) -> Iterator[None]:
    """Convert errors to a message on stderr, with exit status 2 if the user can fix the cause, else 1.

    The text of MARFT's own ``ValueError`` and ``RunError``, and of file system errors, is the message. All other errors
    are faults, of MARFT or of a user's plugin. The message names the source, and the traceback goes to a file in the
    run's folder.

    Args:
        debug: print the traceback as well.

    Raises:
        SystemExit: the block raised an error.
    """
    _now.folder, _now.debug, _now.said = None, debug, set()
    before, threading.excepthook = threading.excepthook, _in_a_thread
    try:
        yield
    except Exception as error:  # noqa: BLE001  last handler of every command; the traceback goes to a file
        message, status = _explained(error)
        _say(message)
        raise SystemExit(status) from None
    finally:
        threading.excepthook = before


def about_files(error: Exception) -> str:
    """Return message and remedy for a file system error; "" for other errors, and for errors with their own remedy."""
    return _about_files(error, only_full=_is_deliberate(error))


def _in_a_thread(what: threading.ExceptHookArgs) -> None:
    if isinstance(what.exc_value, Exception):
        _say(_explained(what.exc_value)[0])


def _explained(error: Exception) -> tuple[str, int]:
    """Return message and exit status for an error."""
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
    if shown not in _now.said:  # an error that ends a thread is often raised again in the waiting thread
        _now.said.add(shown)
        print(f"marft: {shown}", file=sys.stderr)  # noqa: T201


def _without_secrets(text: str) -> str:
    """Return the text without secrets from the command line, and without texts shaped like secrets."""
    from marft.config.keys import masked, secrets_typed
    from marft.config.secrets import censored

    return censored(masked(list(secrets_typed(sys.argv[1:])), text))


def _is_deliberate(error: Exception) -> bool:
    """Return True if MARFT raised the error on purpose, with cause and remedy in its message."""
    return isinstance(error, RunError) or (isinstance(error, ValueError) and deliberate(error))


def _about_files(error: BaseException, only_full: bool = False) -> str:
    """Return a message with remedy for a file system error in the chain of causes; "" for other errors."""
    cause: BaseException | None = error
    seen: set[int] = set()  # chains of causes can be circular
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        if isinstance(cause, FileNotFoundError) and str(cause.strerror).startswith(NO_TEMPORARY):
            return f"{cause.strerror}: make room in one of them, or set TMPDIR to a folder that has some"
        number = _number(cause)
        if number in FULL or (number in REMEDIES and not only_full and not place_of(error)):
            # the target, if there are two
            written = getattr(cause, "filename2", None) or getattr(cause, "filename", None)
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
    """Return a message for an unexpected error: source, location and traceback file."""
    part = _part(error)
    who = f"{part} raised " if part and place_of(error) else f"unforeseen, in {part}: " if part else "unforeseen: "
    kept = _keep(error)
    where = f"The traceback is in {kept}; --debug prints it" if kept else "--debug prints the traceback"
    saved = " Everything saved before is whole; --resume goes on from there." if _has_checkpoints() else ""
    return f"{who}{described(error)}. {where}.{saved}"


def _part(error: BaseException) -> str:
    """Return the innermost plugin in the traceback: ``credit 'my_package.credits:Median'``."""
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
    """Write the traceback to a file and return its path; "" on failure.

    Candidates: the run's folder, the working folder, and the system's temporary folder.
    """
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
    with suppress(OSError):  # no usable temporary folder
        places.append(Path(tempfile.gettempdir()) / NO_RUN)
    if folder is not None and folder.is_dir():
        places.insert(0, folder / IN_A_RUN)
    for place in places:
        with suppress(OSError):
            write_file(place, storable(text), OWN)  # replaces a symlink instead of following it
            return str(place)
    return ""
