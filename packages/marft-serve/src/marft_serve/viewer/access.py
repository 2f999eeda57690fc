"""Access control for the viewer: only a local browser with the token from ``marft view`` gets data.

A foreign web page can make a browser request an address on this machine. Three measures protect the data. The
cookie is ``SameSite=Strict``, so such a request has no cookie. No response allows another origin to read it.
Requests with a foreign domain in ``Host`` (DNS rebinding) are rejected.
"""

from __future__ import annotations

import hashlib
import secrets
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from marft_serve.gateway.hosts import are_secrets_equal, get_bearer_token, is_allowed_host

TOKEN_PARAMETER = "token"  # query parameter in the first URL
CONTENT_POLICY = (
    "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
SECURITY_HEADERS = {
    "content-security-policy": CONTENT_POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}


class AccessMiddleware:
    """ASGI middleware that checks host, method and token, and adds security headers.

    Args:
        app: the protected app.
        token: token for ``/api``, as a cookie or bearer token; "" for none.
        host: listening host name, accepted in addition to IP addresses and ``localhost``.
    """

    def __init__(self, app: ASGIApp, token: str, host: str = "") -> None:
        self._app, self._token, self._host = app, token, host.lower()
        self._session = secrets.token_urlsafe(32)
        token_digest = hashlib.sha256(token.encode()).hexdigest()[
            :12
        ]  # a browser shares cookies between all ports of a host
        self.cookie = f"marft_view_{token_digest}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        response = self._check_request(scope)
        await (response or self._app)(scope, receive, _add_security_headers(send))

    def _check_request(self, scope: Scope) -> Response | None:
        """Return an error or a redirect; None for requests to pass on to the app."""
        headers = Headers(scope=scope)
        if not is_allowed_host(headers.get("host", ""), self._host):
            return build_error_response(421, "this host is not answered to; use the address that marft view printed")
        if scope["method"] != "GET":
            return build_error_response(405, "only GET is answered: the viewer changes nothing", {"allow": "GET"})
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        path = scope["path"]
        if not path.startswith("/api") and TOKEN_PARAMETER in dict(query):
            return self._sign_in(path, query)
        if path.startswith("/api") and not self._is_authorized(headers):
            return build_error_response(401, "this needs the viewer's token; open the address that marft view printed")
        return None

    def _sign_in(self, path: str, query: list[tuple[str, str]]) -> Response:
        """Set the session cookie and redirect to the URL without the token."""
        remaining_query = urlencode([(name, value) for name, value in query if name != TOKEN_PARAMETER])
        response = RedirectResponse("/" + path.lstrip("/") + (f"?{remaining_query}" if remaining_query else ""), 303)
        if self._token and are_secrets_equal(dict(query)[TOKEN_PARAMETER], self._token):
            response.set_cookie(self.cookie, self._session, httponly=True, samesite="strict", path="/")
        return response

    def _is_authorized(self, headers: Headers) -> bool:
        if not self._token:
            return True
        if are_secrets_equal(get_bearer_token(headers) or "", self._token):
            return True
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(self.cookie)
        except CookieError:
            return False
        return cookie is not None and are_secrets_equal(cookie.value, self._session)


def build_error_response(status: int, sentence: str, headers: dict[str, str] | None = None) -> Response:
    """Return an error response in the page's format."""
    return JSONResponse({"error": sentence}, status, headers)


def _add_security_headers(send: Send) -> Send:
    """Wrap ``send`` to add the security headers."""

    async def send_with_headers(message: Message) -> None:
        """Send a message with the security headers."""
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in SECURITY_HEADERS.items():
                headers[name] = value
            if "cache-control" not in headers:
                headers["cache-control"] = "no-store"
        await send(message)

    return send_with_headers
