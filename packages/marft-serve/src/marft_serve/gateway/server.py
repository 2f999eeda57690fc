"""The gateway's server: one a process, on a thread of its own, as long as the episodes that use it are played."""

from __future__ import annotations

from collections import deque

from marft_serve.gateway.app import App
from marft_serve.gateway.http import Bounds
from marft_serve.gateway.listening import Listener
from marft_serve.gateway.refusals import closed, unknown
from marft_serve.gateway.session import Session

CLOSED = 10_000  # secrets of episodes that are over, which are told so


class Gateway:
    """Listens, and leads clients to their sessions. Close it.

    Args:
        host: where it listens; port 0 is any that is free.
        address: by which clients reach it; "": as it listens.

    Raises:
        ValueError: it cannot listen there.
    """

    def __init__(self, host: str, port: int, bounds: Bounds, address: str = "") -> None:
        self.overdue = 0
        self._sessions: dict[str, Session] = {}
        self._closed: deque[str] = deque(maxlen=CLOSED)
        self._listener = Listener(App(self._session, bounds).asgi, host, port, "team: the gateway")
        self.address, self.port = address.rstrip("/") or self._listener.address, self._listener.port

    def open(self, session: Session) -> str:
        """Lead clients to a session → its address."""
        self._sessions[session.secret] = session
        return f"{self.address}/e/{session.secret}"

    def leave(self, session: Session) -> None:
        """The session's step is over: nothing is reached by its secret any more."""
        if self._sessions.pop(session.secret, None):
            self._closed.append(session.secret)

    def forget(self, session: Session) -> None:
        """The session's episode is over."""
        self.leave(session)
        self.overdue += session.overdue

    def counts(self) -> dict[str, float]:
        """What was lost, by the name of a metric."""
        return {"gateway/overdue": float(self.overdue)}

    def close(self) -> None:
        """End: connections are cut."""
        self._listener.close()

    def _session(self, secret: str) -> Session:
        session = self._sessions.get(secret)
        if session is None:
            raise closed() if secret in self._closed else unknown()
        return session
