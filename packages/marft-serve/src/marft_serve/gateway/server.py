"""Gateway HTTP server: one per process, on a separate thread, while its episodes run."""

from __future__ import annotations

from collections import deque

from marft_serve.gateway.app import App
from marft_serve.gateway.http import Bounds
from marft_serve.gateway.listening import Listener
from marft_serve.gateway.refusals import closed, unknown
from marft_serve.gateway.session import Session

CLOSED = 10_000  # number of closed sessions to remember, for a specific error message


class Gateway:
    """HTTP server with a route to each client's session. Call :meth:`close` at the end.

    Args:
        host: host to listen on.
        port: port to listen on; 0 selects a free port.
        bounds: limits on request bodies.
        address: public URL for clients; "" for the host and port.

    Raises:
        ValueError: the server cannot listen on this host and port.
    """

    def __init__(self, host: str, port: int, bounds: Bounds, address: str = "") -> None:
        self.overdue = 0
        self._sessions: dict[str, Session] = {}
        self._closed: deque[str] = deque(maxlen=CLOSED)
        self._listener = Listener(App(self._session, bounds).asgi, host, port, "team: the gateway")
        self.address, self.port = address.rstrip("/") or self._listener.address, self._listener.port

    def open(self, session: Session) -> str:
        """Route clients to a session; return the session's URL."""
        self._sessions[session.secret] = session
        return f"{self.address}/e/{session.secret}"

    def leave(self, session: Session) -> None:
        """Stop routing to the session's current secret at the end of a step."""
        if self._sessions.pop(session.secret, None):
            self._closed.append(session.secret)

    def forget(self, session: Session) -> None:
        """Remove the session after its episode."""
        self.leave(session)
        self.overdue += session.overdue

    def counts(self) -> dict[str, float]:
        """Return timeout counts by metric name."""
        return {"gateway/overdue": float(self.overdue)}

    def close(self) -> None:
        """Stop the server and cut open connections."""
        self._listener.close()

    def _session(self, secret: str) -> Session:
        session = self._sessions.get(secret)
        if session is None:
            raise closed() if secret in self._closed else unknown()
        return session
