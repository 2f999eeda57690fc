"""``marft view``."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from marft.cli.console import INTERRUPTED, wide_console
from marft.common.packages import install_command


def run_viewer(runs: Sequence[Path], host: str, port: int, token: bool) -> None:
    """``marft view``.

    Raises:
        ValueError: a package is missing, there is no run, or the server cannot listen on this host and port.
        SystemExit: Ctrl-C.
    """
    if any(find_spec(name) is None for name in ("fastapi", "uvicorn")):
        raise ValueError(f"the viewer needs packages that are not installed: {install_command('viewer')}")
    from marft_serve.viewer.server import run_viewer as run_view

    console = wide_console()

    def ready(url: str) -> None:
        """Print the URL."""
        console.print(f"{url}\nopen it in a browser; Ctrl-C ends it", soft_wrap=True, markup=False)

    try:
        run_view(runs or [Path("runs")], host, port, token, ready)
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None
