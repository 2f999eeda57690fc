"""Errors for people: one message that names cause and remedy, and an exit status."""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from marft.errors import RunError


@contextmanager
def friendly() -> Iterator[None]:
    """Turn the errors that a user can do something about into a message on stderr and exit status 2.

    Our own broken invariants (``AssertionError``) and everything unforeseen keep their traceback.
    """
    try:
        yield
    except (ValueError, RunError) as error:
        fail(str(error))
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES):
            raise
        where = f" ({error.filename})" if error.filename else ""
        fail(f"cannot write: {error.strerror}{where}. Everything saved before is whole; make room and use --resume")


def fail(message: str) -> None:
    print(f"marft: {message}", file=sys.stderr)  # noqa: T201
    raise SystemExit(2)
