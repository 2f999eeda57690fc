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
from typing import TYPE_CHECKING

from marft.common.atomic import PRIVATE_MODE, write_file
from marft.common.error_origin import describe_error, error_function, error_location
from marft.common.errors import RunError, UserError
from marft.common.texts import replace_surrogates, sanitize, truncate
from marft.common.version import __version__

if TYPE_CHECKING:
    from marft.runs.run_folder import RunFolder

DEBUG_FLAG = "--debug"  # with any command: print the traceback of an error
MAX_MESSAGE_LENGTH = 4000  # maximum length of a message in the terminal, in characters
ERROR_FILE = Path("marft-error.txt")
RUN_ERROR_FILE = "error.txt"
DISK_FULL_HINTS = {
    errno.ENOSPC: "make room",
    errno.EDQUOT: "make room, or have the quota raised",
    errno.EFBIG: "allow larger files",
}
FILE_ERROR_HINTS = {  # remedies for errors of the file system
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
NO_TEMP_FOLDER = "No usable temporary directory"  # Python's message without a usable temporary folder
SAFETENSORS_ERROR = re.compile(r"os error (\d+)|Os \{ code: (\d+)")  # errors of safetensors are no OSError


@dataclass
class _CommandState:
    """State for the running command: its run, and messages already printed on stderr."""

    folder: Path | None = None
    debug: bool = False
    printed: set[str] = field(default_factory=set)


_state = _CommandState()


def set_run_folder(folder: Path) -> None:
    """Set the run's folder for later error reports."""
    _state.folder = folder


def open_run_for_command(path: Path) -> RunFolder:
    """Open a run, and set its folder for later error reports.

    Raises:
        ValueError: the folder is not a run.
    """
    from marft.runs.run_folder import RunFolder

    folder = RunFolder.open(path)
    set_run_folder(folder.path)
    return folder


def get_run_folder() -> Path | None:
    """Return the current command's run folder; None if unknown."""
    return _state.folder


@contextmanager
def report_errors(debug: bool = False) -> Iterator[None]:
    """Convert errors to a message on stderr, with exit status 2 if the user can fix the cause, else 1.

    The text of a ``UserError`` or ``RunError``, and of file system errors, is the message. All other errors
    are faults, of MARFT or of a user's plugin. The message names the source, and the traceback goes to a file in the
    run's folder.

    Args:
        debug: print the traceback as well.

    Raises:
        SystemExit: the block raised an error.
    """
    _state.folder, _state.debug, _state.printed = None, debug, set()
    before, threading.excepthook = threading.excepthook, _report_thread_error
    try:
        yield
    except Exception as error:  # noqa: BLE001  last handler of every command; the traceback goes to a file
        message, status = _explain(error)
        _print_message(message)
        raise SystemExit(status) from None
    finally:
        threading.excepthook = before


def _report_thread_error(args: threading.ExceptHookArgs) -> None:
    if isinstance(args.exc_value, Exception):
        _print_message(_explain(args.exc_value)[0])


def _explain(error: Exception) -> tuple[str, int]:
    """Return message and exit status for an error."""
    if _state.debug:
        traceback.print_exception(error)
    if file_message := explain_file_error(error):
        return file_message, 2
    if _is_user_error(error):
        return str(error), 2
    return _describe_bug(error), 1


def _print_message(message: str) -> None:
    text = truncate(sanitize(_redact_secrets(message)), MAX_MESSAGE_LENGTH)
    if text not in _state.printed:  # an error that ends a thread is often raised again in the waiting thread
        _state.printed.add(text)
        print(f"marft: {text}", file=sys.stderr)  # noqa: T201


def _redact_secrets(text: str) -> str:
    """Return the text without secrets from the command line, and without texts shaped like secrets."""
    from marft.config.secrets import argv_secret_values, mask_values, redact

    return redact(mask_values(list(argv_secret_values(sys.argv[1:])), text))


def _is_user_error(error: Exception) -> bool:
    """Return True if MARFT raised the error on purpose, with cause and remedy in its message."""
    return isinstance(error, RunError | UserError)


def explain_file_error(error: Exception) -> str:
    """Return message and remedy for a file system error in the chain of causes.

    The text is "" for other errors. For an error that states its own remedy, only a full disk counts.
    """
    only_full = _is_user_error(error)
    cause: BaseException | None = error
    seen: set[int] = set()  # chains of causes can be circular
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        if isinstance(cause, FileNotFoundError) and str(cause.strerror).startswith(NO_TEMP_FOLDER):
            return f"{cause.strerror}: make room in one of them, or set TMPDIR to a folder that has some"
        number = _error_number(cause)
        if number in DISK_FULL_HINTS or (number in FILE_ERROR_HINTS and not only_full and not error_location(error)):
            # the target, if there are two
            written = getattr(cause, "filename2", None) or getattr(cause, "filename", None)
            return _format_file_error(number, written or _state.folder)
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    return ""


def _error_number(error: BaseException) -> int:
    if isinstance(error, OSError):
        return error.errno or 0
    match = SAFETENSORS_ERROR.search(str(error)) if type(error).__name__ == "SafetensorError" else None
    return int(match[1] or match[2]) if match else 0


def _format_file_error(number: int, file: str | bytes | Path | int | None) -> str:
    path = None if file is None or isinstance(file, int) else Path(os.fsdecode(file))
    location = f" ({path})" if path else ""
    if number not in DISK_FULL_HINTS:
        if path and _is_unreadable(path):
            return f"cannot read: {os.strerror(number)}{location}"
        return f"cannot write: {os.strerror(number)}{location}: {FILE_ERROR_HINTS[number]}"
    inode_note = (
        " No inodes are left: it holds too many files." if number == errno.ENOSPC and _out_of_inodes(path) else ""
    )
    saved = f"Everything saved before is whole; {DISK_FULL_HINTS[number]} and go on (train and sft: --resume)"
    return f"cannot write: {os.strerror(number)}{location}.{inode_note} {saved}"


def _is_unreadable(path: Path) -> bool:
    with suppress(OSError, ValueError):
        return path.is_file() and not os.access(path, os.R_OK, effective_ids=os.access in os.supports_effective_ids)
    return False


def _out_of_inodes(path: Path | None) -> bool:
    for folder in [path, *path.parents] if path else []:
        with suppress(OSError, ValueError):
            numbers = os.statvfs(folder)
            return numbers.f_files > 0 and numbers.f_favail == 0
    return False


def _describe_bug(error: Exception) -> str:
    """Return a message for an unexpected error: source, location and traceback file."""
    function = error_function(error)
    source = f"{function} raised " if function else "unforeseen: "
    path = _save_traceback(error)
    trace_note = f"The traceback is in {path}; --debug prints it" if path else "--debug prints the traceback"
    saved = " Everything saved before is whole; --resume goes on from there." if _has_checkpoints() else ""
    return f"{source}{describe_error(error)}. {trace_note}.{saved}"


def _has_checkpoints() -> bool:
    folder = _state.folder
    with suppress(OSError):
        return folder is not None and any((folder / "checkpoints").glob("step_*"))
    return False


def _save_traceback(error: Exception) -> str:
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
    text = _redact_secrets(text)
    folder = _state.folder
    places = [ERROR_FILE]
    with suppress(OSError):  # no usable temporary folder
        places.append(Path(tempfile.gettempdir()) / ERROR_FILE)
    if folder is not None and folder.is_dir():
        places.insert(0, folder / RUN_ERROR_FILE)
    for place in places:
        with suppress(OSError):
            write_file(place, replace_surrogates(text), PRIVATE_MODE)  # replaces a symlink instead of following it
            return str(place)
    return ""
