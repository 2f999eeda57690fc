"""Options for a server: host, access and protocols.

This module loads neither models nor their libraries.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from marft.config.endpoint import is_server_url
from marft_serve.gateway.hosts import is_loopback

MCP_PATH, A2A_PATH = "/mcp", "/a2a"
TOOL_NAME = "ask_team"  # name of the MCP tool
McpTransport = Literal["", "http", "stdio"]


@dataclass(frozen=True, slots=True)
class ListenOptions:
    """Listening address and access rules.

    Args:
        host: host to listen on.
        port: port to listen on; 0 selects a free port.
        token: token that requests must have; "" for none.
        allow_remote: True to accept remote requests without a token.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    token: str = ""
    allow_remote: bool = False

    def check(self) -> None:
        """Check the access rules.

        Raises:
            ValueError: remote requests would need no token, or the token has invalid characters.
        """
        if self.token and not (self.token.isascii() and self.token.isprintable() and " " not in self.token):
            raise ValueError("--token: holds characters that no header can carry")
        if not self.token and not self.allow_remote and not is_loopback(self.host):
            raise ValueError(
                f"--host {self.host}: others than this machine could ask, and no token is set; set MARFT_TOKEN, or say "
                "--no-token"
            )


@dataclass(frozen=True, slots=True)
class ProtocolOptions:
    """Additional protocols.

    Args:
        mcp: ``http`` for a Model Context Protocol tool at ``/mcp``, ``stdio`` for only standard input and output, ""
            for none.
        a2a: True for an Agent2Agent agent at ``/a2a``.
        address: public URL of the server for the agent card; "" for the URL in the request for the card.
    """

    mcp: McpTransport = ""
    a2a: bool = False
    address: str = ""

    def check(self) -> None:
        """Check the combination of protocols.

        Raises:
            ValueError: the options exclude each other, or the public URL is invalid.
        """
        if self.a2a and self.mcp == "stdio":
            raise ValueError("--a2a: an agent is asked over HTTP, and --mcp stdio listens nowhere; say --mcp http")
        if self.address and not is_server_url(self.address):
            raise ValueError(f"--public-url: {self.address!r} is no address such as https://team.example.org")


def format_startup(
    address: str,
    models: Sequence[str],
    listen_options: ListenOptions,
    protocol_options: ProtocolOptions,
    record: Path | None = None,
) -> Iterator[str]:
    """Yield the startup messages: addresses, access and recording.

    Args:
        address: URL of the server.
        models: model names.
        listen_options: listening address and access rules.
        protocol_options: additional protocols.
        record: folder for recorded sessions; None without recording.
    """
    yield f"{address}/v1 answers for {', '.join(models)}"
    if protocol_options.mcp == "http":
        yield f"{address}{MCP_PATH} offers the team as a tool of MCP: {TOOL_NAME}"
    if protocol_options.a2a:
        yield f"{address}{A2A_PATH} offers the team as an agent of A2A"
    if listen_options.token:
        yield "requests need the token, as a bearer token or as x-api-key"
    else:
        clients = "this machine alone" if is_loopback(listen_options.host) else "anybody who reaches it"
        yield f"no token is needed: {clients} may ask"
    yield f"sessions are recorded in {record.absolute()}" if record else "nothing is recorded"
