"""``marft export``, ``push`` and ``serve``."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

from marft.cli.commands import console, quieten
from marft.cli.errors import beside
from marft.runs.folder import RunFolder
from marft.serving.observers import Observer, SecondTeam, observer_named
from marft.serving.offering import Also, Place, announced

SHADOW = "--shadow."


def export(
    run: Path, checkpoint: str, output: Path | None, *, merged: bool, force: bool, organized: Path | None
) -> None:  # fmt: skip
    """``marft export``."""
    from marft.config.reorganizing import read_reorganization

    into = read_reorganization(organized) if organized else None
    folder = RunFolder.open(run)
    beside(folder.path)
    quieten()
    from marft.export.manifest import RECIPE
    from marft.export.recipe import trust_flag
    from marft.export.writing import export_run

    written = export_run(
        folder, checkpoint, output, merged=merged, force=force, into=into,
        note=lambda text: console.print(text, soft_wrap=True),
    )  # fmt: skip
    trust = trust_flag(tomllib.loads((written / RECIPE).read_text(encoding="utf-8")))
    console.print(f"wrote {written}. See {written / 'README.md'}, or:  marft serve {written}{trust}", soft_wrap=True)


def push(path: Path, repo_id: str, *, private: bool, token: str) -> None:
    """``marft push``."""
    quieten()
    from marft.export.push import push as run_push

    console.print(f"see {run_push(path, repo_id, private=private, token=token)}", soft_wrap=True)


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
        raise ValueError("serving needs packages that are not installed: pip install 'marft[serve]'")
    mcp, a2a, _ = also
    if mcp not in ("", "http", "stdio"):
        raise ValueError(f"--mcp: {mcp!r} is none of http, stdio")
    if mcp and find_spec("mcp") is None:
        raise ValueError("MCP needs a package that is not installed: pip install 'marft[mcp]'")
    if a2a and (find_spec("a2a") is None or find_spec("sse_starlette") is None):
        raise ValueError("A2A needs packages that are not installed: pip install 'marft[a2a]'")
    where, offered = Place(*place), Also(cast("Any", mcp), *also[1:])
    where.check()
    offered.check()
    quieten()
    from marft.serving.app import Limits
    from marft.serving.server import serve as run_server
    from marft.serving.settings import served

    observer = Observer()
    if shadow is not None and record is not None:
        mine = [*of_shadow(overrides)]
        second = SecondTeam(shadow, shadow_checkpoint, mine, trust_code, record, shadow_output, grade)
        observer, overrides = observer_named("shadow", second), [*others(overrides)]

    def ready(address: str, models: Sequence[str]) -> None:
        if mcp != "stdio":  # where standard output is the protocol's
            lines = [*announced(address, models, where, offered, record)]
            lines += [observer.announcement] if observer.announcement else []
            console.print("\n".join(lines), soft_wrap=True, markup=False)

    run_server(
        served(path, checkpoint, overrides, trust_code), where, Limits(*limits), grace=grace, record=record,
        also=offered, ready=ready, begin=observer.begin,
    )  # fmt: skip


def of_shadow(words: Sequence[str]) -> Iterator[str]:
    """Of words that change settings those that are the shadow's."""
    return (word for pair in _pairs(words) if pair[0].startswith(SHADOW) for word in pair)


def others(words: Sequence[str]) -> Iterator[str]:
    """The others."""
    return (word for pair in _pairs(words) if not pair[0].startswith(SHADOW) for word in pair)


def _pairs(words: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Words as they belong together: ``--key value``, or ``--key=value``."""
    left = iter(words)
    for word in left:
        value = None if "=" in word or not word.startswith("--") else next(left, None)
        yield (word,) if value is None else (word, value)
