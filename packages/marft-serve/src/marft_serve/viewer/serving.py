"""Opens the viewer and waits until it is told to end."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from marft_serve.gateway.listening import Listener
from marft_serve.viewer.app import build
from marft_serve.viewer.indexing import IndexCache
from marft_serve.viewer.library import Library

WHAT = "marft view"


class Viewer:
    """Answers at ``address``. Close it.

    Args:
        places: runs, and folders of runs.
        host: where it listens; port 0 is any that is free.
        with_token: ask for a token, which is in ``url``.
        cache: where indices of episodes are kept; None is the user's cache.

    Raises:
        ValueError: no run is at one of the places, or it cannot listen there.
    """

    def __init__(
        self, places: Sequence[Path], host: str, port: int, with_token: bool = True, cache: IndexCache | None = None
    ) -> None:
        if not with_token and host not in ("127.0.0.1", "::1", "localhost"):
            raise ValueError(f"--no-token: others could read runs at {host}; leave it out, or listen on 127.0.0.1")
        cache = cache or IndexCache.of_user()
        cache.prune()
        self.token = secrets.token_urlsafe(24) if with_token else ""
        self.library = Library(places, cache)
        self._listener = Listener(build(self.library, self.token, host), host, port, WHAT)
        self.address = self._listener.address
        self.url = f"{self.address}/" + (f"?token={self.token}" if self.token else "")

    def close(self) -> None:
        """End: connections are cut."""
        self._listener.close()


def view(places: Sequence[Path], host: str, port: int, with_token: bool, ready: Callable[[str], None]) -> None:
    """Answer until Ctrl-C.

    Args:
        ready: told the address.

    Raises:
        ValueError: as :class:`Viewer`.
    """
    viewer = Viewer(places, host, port, with_token)
    try:
        ready(viewer.url)
        threading.Event().wait()
    finally:
        viewer.close()
