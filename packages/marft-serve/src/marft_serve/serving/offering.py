"""Options for a server: host, access and protocols.

This module loads neither models nor their libraries.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from marft.config.endpoint import names_server
from marft_serve.gateway.hosts import is_loopback

MCP_PATH, A2A_PATH = "/mcp", "/a2a"
TOOL = "ask_team"  # name of the MCP tool
MCP = Literal["", "http", "stdio"]


@dataclass(frozen=True, slots=True)
class Place:
    """Listening address and access rules.

    Args:
        host: host to listen on.
        port: port to listen on; 0 selects a free port.
        token: token that requests must have; "" for none.
        open: True to accept remote requests without a token.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    token: str = ""
    open: bool = False

    def check(self) -> None:
        """Check the access rules.

        Raises:
            ValueError: remote requests would need no token, or the token has invalid characters.
        """
        if self.token and not (self.token.isascii() and self.token.isprintable() and " " not in self.token):
            raise ValueError("--token: holds characters that no header can carry")
        if not self.token and not self.open and not is_loopback(self.host):
            raise ValueError(
                f"--host {self.host}: others than this machine could ask, and no token is set; set MARFT_TOKEN, or say "
                "--without-token"
            )


@dataclass(frozen=True, slots=True)
class Also:
    """Additional protocols.

    Args:
        mcp: ``http`` for a Model Context Protocol tool at ``/mcp``, ``stdio`` for only standard input and output, ""
            for none.
        a2a: True for an Agent2Agent agent at ``/a2a``.
        address: public URL of the server for the agent card; "" for the URL in the request for the card.
    """

    mcp: MCP = ""
    a2a: bool = False
    address: str = ""

    def check(self) -> None:
        """Check the combination of protocols.

        Raises:
            ValueError: the options exclude each other, or the public URL is invalid.
        """
        if self.a2a and self.mcp == "stdio":
            raise ValueError("--a2a: an agent is asked over HTTP, and --mcp stdio listens nowhere; say --mcp http")
        if self.address and not names_server(self.address):
            raise ValueError(f"--address: {self.address!r} is no address such as https://team.example.org")


def announced(
    address: str, models: Sequence[str], place: Place, also: Also, record: Path | None = None
) -> Iterator[str]:  # fmt: skip
    """Yield the startup messages: addresses, access and recording.

    Args:
        address: URL of the server.
        models: model names.
        place: listening address and access rules.
        also: additional protocols.
        record: folder for recorded sessions; None without recording.
    """
    yield f"{address}/v1 answers for {', '.join(models)}"
    if also.mcp == "http":
        yield f"{address}{MCP_PATH} offers the team as a tool of MCP: {TOOL}"
    if also.a2a:
        yield f"{address}{A2A_PATH} offers the team as an agent of A2A"
    if place.token:
        yield "requests need the token, as a bearer token or as x-api-key"
    else:
        who = "this machine alone" if is_loopback(place.host) else "anybody who reaches it"
        yield f"no token is needed: {who} may ask"
    yield f"sessions are recorded in {record.absolute()}" if record else "nothing is recorded"
