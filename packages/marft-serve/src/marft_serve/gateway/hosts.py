"""Access checks of servers: tokens, and the ``Host`` and ``Origin`` headers against DNS rebinding.

In DNS rebinding, a foreign web page points its own domain at the server's address. The visitor's browser then sends
requests to the server, with the page's domain in ``Host``.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
import socket
from collections.abc import Collection, Mapping

ANY_HOSTS = ("0.0.0.0", "::")
HOST = re.compile(r"(?:([A-Za-z0-9][A-Za-z0-9._-]*)|\[([0-9A-Fa-f:.]+)\])(?::([0-9]{1,5}))?")
ORIGIN = re.compile(r"https?://(.+)", re.IGNORECASE)


def get_bearer_token(headers: Mapping[str, str]) -> str | None:
    """Return the bearer token of a request; None without one."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


def are_secrets_equal(received: str, expected: str) -> bool:
    """Compare two secrets in constant time."""
    return hmac.compare_digest(received.encode("utf-8", "replace"), expected.encode())


def is_loopback(host: str) -> bool:
    """Return True for a host that only this machine can reach."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def is_allowed_host(host: str, listen_host: str, names: Collection[str] = ()) -> bool:
    """Return True if only this server can have the ``Host``: loopback, the listening host or a configured name.

    If the server listens beyond loopback, IP addresses count too, since no page can use an IP address as its
    domain.

    >>> [is_allowed_host(host, "127.0.0.1") for host in ("localhost:8000", "[::1]", "evil.example", "10.0.0.5", "")]
    [True, True, False, False, False]
    >>> [is_allowed_host(host, "127.0.0.1") for host in ("localhost/x", "localhost:evil", "evil.example@localhost")]
    [False, False, False]

    Args:
        host: value of the header.
        listen_host: the host that the server listens on.
        names: further names of the server, in lower case.
    """
    match = HOST.fullmatch(host)
    if match is None or int(match[3] or 0) > 65_535:
        return False
    name = (match[1] or match[2]).lower()
    if match[2] and not _is_address(name):
        return False
    if is_loopback(name) or name == listen_host.lower() or name in names:
        return True
    if is_loopback(listen_host):
        return False
    return _is_address(name) or (listen_host in ANY_HOSTS and name == socket.gethostname().lower())


def is_allowed_origin(origin: str, listen_host: str, names: Collection[str] = ()) -> bool:
    """Return True for an ``Origin`` with only a scheme and a host accepted by :func:`is_allowed_host`.

    >>> [is_allowed_origin(origin, "127.0.0.1") for origin in ("http://localhost:80", "localhost", "null", "http://[::1")]
    [True, False, False, False]
    """
    match = ORIGIN.fullmatch(origin)
    return match is not None and is_allowed_host(match[1], listen_host, names)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
