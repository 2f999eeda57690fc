"""``marft engine``: Python environments for engines."""

from __future__ import annotations

from marft.cli.commands import console
from marft.inference.apart.installing import install as make_environment


def install(engine: str, *, cpu: bool) -> None:
    """``marft engine install``.

    Args:
        engine: name of the engine.
        cpu: install the CPU build.
    """
    python = make_environment(engine, cpu=cpu, say=lambda text: console.print(text, soft_wrap=True, style="dim"))
    console.print(f"{engine} is there: {python}. Train with it:  marft train RECIPE --engine.kind {engine}")
