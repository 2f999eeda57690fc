"""``marft serve``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

from marft.cli.handlers import console, silence_transformers
from marft.common.packages import install_command
from marft_serve.serving.options import ListenOptions, ProtocolOptions, format_startup
from marft_serve.serving.sidecars import ShadowTeam, SidecarSpec, load_sidecar

SHADOW_PREFIX = "--shadow."


def serve(
    path: Path,
    overrides: Sequence[str],
    checkpoint: str,
    listen: tuple[str, int, str, bool],
    limits: tuple[int, int, float],
    *,
    grace: int,
    record: Path | None,
    protocols: tuple[str, bool, str],
    trust_code: bool,
    shadow: Path | None = None,
    shadow_checkpoint: str = "best",
    shadow_output: Path | None = None,
    grade: Path | None = None,
) -> None:
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
    mcp, a2a, _ = protocols
    if mcp not in ("", "http", "stdio"):
        raise ValueError(f"--mcp: {mcp!r} is none of http, stdio")
    if mcp and find_spec("mcp") is None:
        raise ValueError(f"MCP needs a package that is not installed: {install_command('mcp')}")
    if a2a and (find_spec("a2a") is None or find_spec("sse_starlette") is None):
        raise ValueError(f"A2A needs packages that are not installed: {install_command('a2a')}")
    listen_options, protocol_options = ListenOptions(*listen), ProtocolOptions(cast("Any", mcp), *protocols[1:])
    listen_options.check()
    protocol_options.check()
    silence_transformers()
    from marft_serve.serving.app import Limits
    from marft_serve.serving.server import run_server
    from marft_serve.serving.settings import load_served_team

    observer = SidecarSpec()
    if shadow is not None and record is not None:
        shadow_overrides = [*select_shadow_overrides(overrides)]
        second = ShadowTeam(shadow, shadow_checkpoint, shadow_overrides, trust_code, record, shadow_output, grade)
        observer, overrides = load_sidecar("shadow", second), [*select_served_overrides(overrides)]

    def ready(address: str, models: Sequence[str]) -> None:
        if mcp != "stdio":  # with stdio, standard output belongs to the protocol
            lines = [*format_startup(address, models, listen_options, protocol_options, record)]
            lines += [observer.announcement] if observer.announcement else []
            console.print("\n".join(lines), soft_wrap=True, markup=False)

    run_server(
        load_served_team(path, checkpoint, overrides, trust_code),
        listen_options,
        Limits(*limits),
        grace=grace,
        record=record,
        protocol_options=protocol_options,
        ready=ready,
        begin=observer.begin,
    )


def select_shadow_overrides(arguments: Sequence[str]) -> Iterator[str]:
    """Return the overrides for the shadow team."""
    return (argument for pair in _iter_pairs(arguments) if pair[0].startswith(SHADOW_PREFIX) for argument in pair)


def select_served_overrides(arguments: Sequence[str]) -> Iterator[str]:
    """Return the overrides for the served team."""
    return (argument for pair in _iter_pairs(arguments) if not pair[0].startswith(SHADOW_PREFIX) for argument in pair)


def _iter_pairs(arguments: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yield overrides in pairs: ``--key value``, or a single ``--key=value``."""
    remaining = iter(arguments)
    for argument in remaining:
        value = None if "=" in argument or not argument.startswith("--") else next(remaining, None)
        yield (argument,) if value is None else (argument, value)
