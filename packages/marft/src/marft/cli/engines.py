"""``marft engine``: Python environments for engines."""

from __future__ import annotations

from marft.cli.handlers import console
from marft.inference.subprocess_engine.installation import install as make_environment


def install_engine(engine: str, *, cpu: bool) -> None:
    """``marft engine install``.

    Args:
        engine: name of the engine.
        cpu: install the CPU build.
    """
    python = make_environment(engine, cpu=cpu, report=lambda text: console.print(text, soft_wrap=True, style="dim"))
    console.print(f"{engine} is there: {python}. Train with it:  marft train RECIPE --engine.kind {engine}")
