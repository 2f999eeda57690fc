"""Gateway HTTP server: one per process, on a separate thread, while its episodes run."""

from __future__ import annotations

from collections import deque

from marft_serve.gateway.app import App
from marft_serve.gateway.errors import episode_closed_error, not_found_error
from marft_serve.gateway.http import BodyLimits
from marft_serve.gateway.listener import Listener
from marft_serve.gateway.session import Session

MAX_CLOSED_SESSIONS = 10_000  # number of closed sessions to remember, for a specific error message


class Gateway:
    """HTTP server with a route to each client's session. Call :meth:`close` at the end.

    Args:
        host: host to listen on.
        port: port to listen on; 0 selects a free port.
        body_limits: limits on request bodies.
        address: public URL for clients; "" for the host and port.

    Raises:
        ValueError: the server cannot listen on this host and port.
    """

    def __init__(self, host: str, port: int, body_limits: BodyLimits, address: str = "") -> None:
        self.wait_timeouts = 0
        self._sessions: dict[str, Session] = {}
        self._closed: deque[str] = deque(maxlen=MAX_CLOSED_SESSIONS)
        self._listener = Listener(App(self._get_session, body_limits).asgi, host, port, "team: the gateway")
        self.address, self.port = address.rstrip("/") or self._listener.address, self._listener.port

    def open_session(self, session: Session) -> str:
        """Route clients to a session; return the session's URL."""
        self._sessions[session.secret] = session
        return f"{self.address}/e/{session.secret}"

    def end_step(self, session: Session) -> None:
        """Stop routing to the session's current secret at the end of a step."""
        if self._sessions.pop(session.secret, None):
            self._closed.append(session.secret)

    def remove_session(self, session: Session) -> None:
        """Remove the session after its episode."""
        self.end_step(session)
        self.wait_timeouts += session.wait_timeouts

    def counts(self) -> dict[str, float]:
        """Return timeout counts by metric name."""
        return {"gateway/idle_timeouts": float(self.wait_timeouts)}

    def close(self) -> None:
        """Stop the server and cut open connections."""
        self._listener.close()

    def _get_session(self, secret: str) -> Session:
        session = self._sessions.get(secret)
        if session is None:
            raise episode_closed_error() if secret in self._closed else not_found_error()
        return session
