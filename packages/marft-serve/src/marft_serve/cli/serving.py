"""``marft serve``."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from itertools import islice
from pathlib import Path

from marft.cli.handlers import console, silence_transformers
from marft.common.errors import UserError
from marft.common.packages import install_command
from marft_serve.serving.options import ServeOptions, ShadowTeam, SidecarSpec, format_startup, load_sidecar

SHADOW_PREFIX = "--shadow."


def serve(
    path: Path,
    overrides: Sequence[str],
    options: ServeOptions,
    *,
    checkpoint: str = "best",
    trust_code: bool = False,
    shadow: ShadowTeam | None = None,
) -> None:
    """``marft serve``."""
    missing = [name for name in ("starlette", "uvicorn", "prometheus_client") if find_spec(name) is None]
    if missing:
        raise UserError(f"serving needs packages that are not installed: {install_command('serve')}")
    if options.mcp not in ("", "http", "stdio"):
        raise UserError(f"--mcp: {options.mcp!r} is none of http, stdio")
    if options.mcp and find_spec("mcp") is None:
        raise UserError(f"MCP needs a package that is not installed: {install_command('mcp')}")
    if options.a2a and (find_spec("a2a") is None or find_spec("sse_starlette") is None):
        raise UserError(f"A2A needs packages that are not installed: {install_command('a2a')}")
    options.check()
    silence_transformers()
    from marft_serve.serving.server import run_server
    from marft_serve.serving.settings import load_served_team

    observer = SidecarSpec()
    if shadow is not None:
        observer = load_sidecar("shadow", shadow)

    def ready(address: str, models: Sequence[str]) -> None:
        if options.mcp != "stdio":  # with stdio, standard output belongs to the protocol
            lines = [*format_startup(address, models, options)]
            lines += [observer.announcement] if observer.announcement else []
            console.print("\n".join(lines), soft_wrap=True, markup=False)

    run_server(load_served_team(path, checkpoint, overrides, trust_code), options, ready, observer.begin)


def split_overrides(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the overrides for the served team and for the shadow team."""
    served, shadow = list[str](), list[str]()
    remaining = iter(arguments)
    for argument in remaining:
        team = shadow if argument.startswith(SHADOW_PREFIX) else served
        team.append(argument)
        if argument.startswith("--") and "=" not in argument:
            team.extend(islice(remaining, 1))  # its value
    return served, shadow
