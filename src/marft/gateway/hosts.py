"""By which names a server is asked: its own. A page of somebody else's can give its own name the server's address (DNS
rebinding), and a browser then asks it; the name in ``Host`` is still that page's."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Collection
from urllib.parse import urlsplit

EVERYWHERE = ("0.0.0.0", "::")


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine, for this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def is_ours(host: str, listening: str, names: Collection[str] = ()) -> bool:
    """Return whether a ``Host`` can be nobody else's: this machine, where the server listens, or a name of its own. No
    page can have an address for a name; beyond this machine's own they count where the server is reached by others.

    >>> [is_ours(host, "127.0.0.1") for host in ("localhost:8000", "[::1]", "evil.example", "10.0.0.5", "")]
    [True, True, False, False, False]
    >>> [is_ours(host, "127.0.0.1") for host in ("localhost/x", "localhost#evil.example", "evil.example@localhost")]
    [False, False, False]

    Args:
        listening: the host that the server listens on.
        names: others that it is known by.
    """
    try:
        parts = urlsplit(f"//{host}")
        name = (parts.hostname or "").lower()
    except ValueError:
        return False
    if not name or parts.netloc != host or "@" in host:
        return False
    if is_loopback(name) or name == listening.lower() or name in names:
        return True
    if is_loopback(listening):
        return False
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return listening in EVERYWHERE and name == socket.gethostname().lower()
    return True
