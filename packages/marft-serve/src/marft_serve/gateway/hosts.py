"""By which names a server is asked: its own. A page of somebody else's can give its own name the server's address (DNS
rebinding), and a browser then asks it; the name in ``Host`` is still that page's."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Collection

EVERYWHERE = ("0.0.0.0", "::")
HOST = re.compile(r"(?:([A-Za-z0-9][A-Za-z0-9._-]*)|\[([0-9A-Fa-f:.]+)\])(?::([0-9]{1,5}))?")
ORIGIN = re.compile(r"https?://(.+)", re.IGNORECASE)


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
    >>> [is_ours(host, "127.0.0.1") for host in ("localhost/x", "localhost:evil", "evil.example@localhost")]
    [False, False, False]

    Args:
        listening: the host that the server listens on.
        names: others that it is known by.
    """
    found = HOST.fullmatch(host)
    if found is None or int(found[3] or 0) > 65_535:
        return False
    name = (found[1] or found[2]).lower()
    if found[2] and not _is_address(name):
        return False
    if is_loopback(name) or name == listening.lower() or name in names:
        return True
    if is_loopback(listening):
        return False
    return _is_address(name) or (listening in EVERYWHERE and name == socket.gethostname().lower())


def is_our_origin(origin: str, listening: str, names: Collection[str] = ()) -> bool:
    """Return whether an ``Origin`` is a page of :func:`is_ours`: a scheme and a host, and nothing else.

    >>> [is_our_origin(origin, "127.0.0.1") for origin in ("http://localhost:80", "localhost", "null", "http://[::1")]
    [True, False, False, False]
    """
    found = ORIGIN.fullmatch(origin)
    return found is not None and is_ours(found[1], listening, names)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
