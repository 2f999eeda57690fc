"""Options for a server: host, access, limits and protocols; sidecars, which process recorded sessions.

This module loads neither models nor their libraries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from marft.common.errors import UserError
from marft.config.endpoint import is_server_url
from marft.config.plugins import load_registered
from marft_serve.gateway.hosts import is_loopback

MCP_PATH, A2A_PATH = "/mcp", "/a2a"
TOOL_NAME = "ask_team"  # name of the MCP tool


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """Options for a server.

    Args:
        host: host to listen on.
        port: port to listen on; 0 selects a free port.
        token: token that requests must have; "" for none.
        allow_remote: True to accept remote requests without a token.
        concurrency: maximum number of concurrent requests.
        queue: maximum number of waiting requests; further requests are rejected.
        timeout_seconds: timeout of a request in seconds, counted from its turn.
        grace: seconds for pending requests after a signal.
        record: folder for recorded sessions; None to record nothing.
        mcp: ``http`` for a Model Context Protocol tool at ``/mcp``, ``stdio`` for only standard input and output, ""
            for none.
        a2a: True for an Agent2Agent agent at ``/a2a``.
        public_url: public URL of the server for the agent card; "" for the URL in the request for the card.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    token: str = ""
    allow_remote: bool = False
    concurrency: int = 32
    queue: int = 256
    timeout_seconds: float = 600.0
    grace_seconds: int = 30
    record: Path | None = None
    mcp: str = ""
    a2a: bool = False
    public_url: str = ""

    def check(self) -> None:
        """Check the access rules and the combination of protocols.

        Raises:
            UserError: remote requests would need no token, the token has invalid characters, the options exclude each
                other, or the public URL is invalid.
        """
        if self.token and not (self.token.isascii() and self.token.isprintable() and " " not in self.token):
            raise UserError("--token: holds characters that no header can carry")
        if not self.token and not self.allow_remote and not is_loopback(self.host):
            raise UserError(
                f"--host {self.host}: others than this machine could ask, and no token is set; set MARFT_TOKEN, or say "
                "--no-token"
            )
        if self.a2a and self.mcp == "stdio":
            raise UserError("--a2a: an agent is asked over HTTP, and --mcp stdio listens nowhere; say --mcp http")
        if self.public_url and not is_server_url(self.public_url):
            raise UserError(f"--public-url: {self.public_url!r} is no address such as https://team.example.org")


def format_startup(address: str, models: Sequence[str], options: ServeOptions) -> Iterator[str]:
    """Yield the startup messages: addresses, access and recording.

    Args:
        address: URL of the server.
        models: model names.
        options: options for the server.
    """
    yield f"{address}/v1 answers for {', '.join(models)}"
    if options.mcp == "http":
        yield f"{address}{MCP_PATH} offers the team as a tool of MCP: {TOOL_NAME}"
    if options.a2a:
        yield f"{address}{A2A_PATH} offers the team as an agent of A2A"
    if options.token:
        yield "requests need the token, as a bearer token or as x-api-key"
    else:
        clients = "this machine alone" if is_loopback(options.host) else "anybody who reaches it"
        yield f"no token is needed: {clients} may ask"
    yield f"sessions are recorded in {options.record.absolute()}" if options.record else "nothing is recorded"


class Sidecar(Protocol):
    """Sidecar that runs next to a server and yields to its requests."""

    def set_active_requests(self, requests: int) -> None:
        """Report the number of running and waiting requests.

        The server calls this method on its own thread, so it must return immediately.
        """
        ...

    def close(self) -> None:
        """Stop, after the server's end."""
        ...


class NoSidecar:
    """Sidecar without any function."""

    def set_active_requests(self, requests: int) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


@dataclass(frozen=True, slots=True)
class ShadowTeam:
    """Second team for comparison with the served team.

    Args:
        team: run or export.
        checkpoint: checkpoint of a run.
        overrides: overrides of its recipe.
        trust_code: True to run code from an export.
        sessions: folder with the server's recordings.
        output: output folder of the sidecar; None for a subfolder of the sessions.
        grade: recipe, run or export whose environment grades the answers; None for the second team's own.
    """

    team: Path
    checkpoint: str
    overrides: Sequence[str]
    trust_code: bool
    sessions: Path
    output: Path | None
    grade: Path | None


@dataclass(frozen=True, slots=True)
class SidecarSpec:
    """Sidecar ready to start.

    Args:
        begin: function that starts it, called once the served team is loaded.
        announcement: line for the terminal; "" for none.
    """

    begin: Callable[[], Sidecar] = NoSidecar
    announcement: str = ""


def load_sidecar(name: str, shadow_team: ShadowTeam) -> SidecarSpec:
    """Return the sidecar for a second team, from the entry-point group ``marft.observers``.

    Raises:
        UserError: no package registers the name, the second team cannot be served, or its settings are invalid.
    """
    spec: SidecarSpec = load_registered("observers", name)(shadow_team)
    return spec
