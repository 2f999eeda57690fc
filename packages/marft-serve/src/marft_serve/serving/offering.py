"""Where, to whom and as what a team is offered. Nothing here loads a model, or what models need."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from marft.config.endpoint import names_server
from marft_serve.gateway.hosts import is_loopback

MCP_PATH, A2A_PATH = "/mcp", "/a2a"
TOOL = "ask_team"  # as which MCP clients find it
MCP = Literal["", "http", "stdio"]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a team is served, and to whom.

    Args:
        token: which requests must bring; "" for none.
        open: whether others than this machine are answered without one.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    token: str = ""
    open: bool = False

    def check(self) -> None:
        """
        Raises:
            ValueError: anybody who reaches this machine could ask; or the token cannot be sent.
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
    """As what else a team is offered.

    Args:
        mcp: a tool of the Model Context Protocol, at ``/mcp``, or over standard input and output alone.
        a2a: an agent of the Agent2Agent protocol, at ``/a2a``.
        address: by which others reach the server, for the agent's card; "": the one by which they ask for that.
    """

    mcp: MCP = ""
    a2a: bool = False
    address: str = ""

    def check(self) -> None:
        """
        Raises:
            ValueError: it cannot be offered so.
        """
        if self.a2a and self.mcp == "stdio":
            raise ValueError("--a2a: an agent is asked over HTTP, and --mcp stdio listens nowhere; say --mcp http")
        if self.address and not names_server(self.address):
            raise ValueError(f"--address: {self.address!r} is no address such as https://team.example.org")


def announced(
    address: str, models: Sequence[str], place: Place, also: Also, record: Path | None = None
) -> Iterator[str]:  # fmt: skip
    """What is said once requests are taken, line by line: the addresses, who may ask, and what is kept.

    Args:
        address: where it listens.
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
