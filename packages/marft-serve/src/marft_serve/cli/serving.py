"""``marft serve``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

from marft.cli.commands import console, quieten
from marft.common.satellites import install_command
from marft_serve.serving.observers import Observer, SecondTeam, observer_named
from marft_serve.serving.offering import Also, Place, announced

SHADOW = "--shadow."


def serve(
    path: Path, overrides: Sequence[str], checkpoint: str, place: tuple[str, int, str, bool],
    limits: tuple[int, int, float], *, grace: int, record: Path | None, also: tuple[str, bool, str], trust_code: bool,
    shadow: Path | None = None, shadow_checkpoint: str = "best", shadow_output: Path | None = None,
    grade: Path | None = None,
) -> None:  # fmt: skip
    """``marft serve``."""
    if shadow is None and (shadow_output or grade or shadow_checkpoint != "best"):
        raise ValueError(
            "--shadow-checkpoint, --shadow-output and --grade are of a shadow; name the second team with --shadow"
        )
    if shadow is not None and record is None:
        raise ValueError("--shadow: it plays what is recorded, and nothing is; name a folder with --record")
    missing = [name for name in ("starlette", "uvicorn", "prometheus_client") if find_spec(name) is None]
    if missing:
        raise ValueError(f"serving needs packages that are not installed: {install_command('serve')}")
    mcp, a2a, _ = also
    if mcp not in ("", "http", "stdio"):
        raise ValueError(f"--mcp: {mcp!r} is none of http, stdio")
    if mcp and find_spec("mcp") is None:
        raise ValueError(f"MCP needs a package that is not installed: {install_command('mcp')}")
    if a2a and (find_spec("a2a") is None or find_spec("sse_starlette") is None):
        raise ValueError(f"A2A needs packages that are not installed: {install_command('a2a')}")
    where, offered = Place(*place), Also(cast("Any", mcp), *also[1:])
    where.check()
    offered.check()
    quieten()
    from marft_serve.serving.app import Limits
    from marft_serve.serving.server import serve as run_server
    from marft_serve.serving.settings import served

    observer = Observer()
    if shadow is not None and record is not None:
        mine = [*of_shadow(overrides)]
        second = SecondTeam(shadow, shadow_checkpoint, mine, trust_code, record, shadow_output, grade)
        observer, overrides = observer_named("shadow", second), [*others(overrides)]

    def ready(address: str, models: Sequence[str]) -> None:
        if mcp != "stdio":  # with stdio, standard output belongs to the protocol
            lines = [*announced(address, models, where, offered, record)]
            lines += [observer.announcement] if observer.announcement else []
            console.print("\n".join(lines), soft_wrap=True, markup=False)

    run_server(
        served(path, checkpoint, overrides, trust_code), where, Limits(*limits), grace=grace, record=record,
        also=offered, ready=ready, begin=observer.begin,
    )  # fmt: skip


def of_shadow(words: Sequence[str]) -> Iterator[str]:
    """Return the overrides for the shadow team."""
    return (word for pair in _pairs(words) if pair[0].startswith(SHADOW) for word in pair)


def others(words: Sequence[str]) -> Iterator[str]:
    """Return the overrides for the served team."""
    return (word for pair in _pairs(words) if not pair[0].startswith(SHADOW) for word in pair)


def _pairs(words: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yield overrides in pairs: ``--key value``, or a single ``--key=value``."""
    left = iter(words)
    for word in left:
        value = None if "=" in word or not word.startswith("--") else next(left, None)
        yield (word,) if value is None else (word, value)
