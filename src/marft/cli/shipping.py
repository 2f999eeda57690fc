"""``marft export``, ``push`` and ``serve``, and ``eval`` of an export."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

from marft.cli.commands import bar, console, quieten, show_evaluations
from marft.cli.errors import beside
from marft.cli.output import How, output
from marft.runs.folder import RunFolder
from marft.serving.offering import Also, Place, announced


def export(run: Path, checkpoint: str, output: Path | None, *, merged: bool, force: bool) -> None:
    """``marft export``."""
    folder = RunFolder.open(run)
    beside(folder.path)
    quieten()
    from marft.export.manifest import RECIPE
    from marft.export.recipe import trust_flag
    from marft.export.writing import export_run

    written = export_run(
        folder, checkpoint, output, merged=merged, force=force, note=lambda text: console.print(text, soft_wrap=True)
    )
    trust = trust_flag(tomllib.loads((written / RECIPE).read_text(encoding="utf-8")))
    console.print(f"wrote {written}. See {written / 'README.md'}, or:  marft serve {written}{trust}", soft_wrap=True)


def evaluate(
    path: Path, overrides: Sequence[str], mode: str, tasks: int, shuffle_messages: bool, trust_code: bool,
    how: How = "",
) -> None:  # fmt: skip
    """``marft eval`` of an export: of the weights in it, and of no others."""
    quieten()
    from marft.evaluation.evaluate import modes_in
    from marft.evaluation.session import evaluate_checkpoints
    from marft.export.loading import check_bases, settings_of
    from marft.export.manifest import load_export

    export = load_export(path)
    run = settings_of(export, overrides, trust_code)
    modes = modes_in(mode.split(","), "--mode") if mode else run.evaluation.modes
    with output(how) as out:
        with bar("evaluating", shown=not how) as advance:
            results = evaluate_checkpoints(
                run, None, ["base"], modes, tasks or run.evaluation.tasks, shuffle_messages, advance,
                loaded=lambda models: check_bases(export, models.digests()),
            )  # fmt: skip
        show_evaluations(out, [replace(result, checkpoint=export.manifest.checkpoint.name) for result in results])
        out.tell("done", evaluations=len(results), run=None)


def push(path: Path, repo_id: str, *, private: bool, token: str) -> None:
    """``marft push``."""
    quieten()
    from marft.export.push import push as run_push

    console.print(f"see {run_push(path, repo_id, private=private, token=token)}", soft_wrap=True)


def serve(
    path: Path, overrides: Sequence[str], checkpoint: str, place: tuple[str, int, str, bool],
    limits: tuple[int, int, float], *, grace: int, record: Path | None, also: tuple[str, bool, str], trust_code: bool,
) -> None:  # fmt: skip
    """``marft serve``."""
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

    def ready(address: str, models: Sequence[str]) -> None:
        if mcp != "stdio":  # where standard output is the protocol's
            lines = announced(address, models, where, offered, record)
            console.print("\n".join(lines), soft_wrap=True, markup=False)

    run_server(
        served(path, checkpoint, overrides, trust_code), where, Limits(*limits), grace=grace, record=record,
        also=offered, ready=ready,
    )  # fmt: skip
