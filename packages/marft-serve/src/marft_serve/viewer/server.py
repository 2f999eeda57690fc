"""Server for the viewer."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from marft_serve.gateway.listener import Listener
from marft_serve.viewer.app import build_app
from marft_serve.viewer.file_index import IndexCache
from marft_serve.viewer.library import Library

SERVER_LABEL = "marft view"


class Viewer:
    """Viewer at ``address``. Call :meth:`close` at the end.

    Args:
        paths: run folders, and folders that contain runs.
        host: host to listen on.
        port: port to listen on; 0 selects a free port.
        with_token: True to require a token, which is part of ``url``.
        cache: cache for episode indexes; None for the user's cache.

    Raises:
        ValueError: a folder has no run, or the server cannot listen on this host and port.
    """

    def __init__(
        self, paths: Sequence[Path], host: str, port: int, with_token: bool = True, cache: IndexCache | None = None
    ) -> None:
        if not with_token and host not in ("127.0.0.1", "::1", "localhost"):
            raise ValueError(f"--no-token: others could read runs at {host}; leave it out, or listen on 127.0.0.1")
        cache = cache or IndexCache.for_user()
        cache.prune()
        self.token = secrets.token_urlsafe(24) if with_token else ""
        self.library = Library(paths, cache)
        self._listener = Listener(build_app(self.library, self.token, host), host, port, SERVER_LABEL)
        self.address = self._listener.address
        self.url = f"{self.address}/" + (f"?token={self.token}" if self.token else "")

    def close(self) -> None:
        """Stop the server; open connections are cut."""
        self._listener.close()


def run_viewer(paths: Sequence[Path], host: str, port: int, with_token: bool, ready: Callable[[str], None]) -> None:
    """Run the viewer until Ctrl-C.

    Args:
        paths: run folders, and folders that contain runs.
        host: host to listen on.
        port: port to listen on; 0 selects a free port.
        with_token: True to require a token.
        ready: callback with the URL.

    Raises:
        ValueError: as for :class:`Viewer`.
    """
    viewer = Viewer(paths, host, port, with_token)
    try:
        ready(viewer.url)
        threading.Event().wait()
    finally:
        viewer.close()
