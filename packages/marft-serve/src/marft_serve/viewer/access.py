"""Who is answered: this machine's own browser, with the token that ``marft view`` printed, and nobody else's page.

A page of somebody else's can make a browser ask an address on this machine. It gets nothing: it has no cookie (which is
``SameSite=Strict``), no answer allows another origin to read it, and a name that was bound to 127.0.0.1 for the purpose
(DNS rebinding) is no host that is answered to.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from marft_serve.gateway.hosts import is_ours

TOKEN = "token"  # the parameter of the first address
POLICY = (
    "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}


class Access:
    """Stands before an app: checks host, method and token, and adds the headers that keep a page to itself.

    Args:
        token: what ``/api`` asks for, as a cookie or a bearer; "" for none.
        host: the name that the server listens by, beside addresses and ``localhost``.
    """

    def __init__(self, app: ASGIApp, token: str, host: str = "") -> None:
        self._app, self._token, self._host = app, token, host.lower()
        self._session = secrets.token_urlsafe(32)
        mark = hashlib.sha256(token.encode()).hexdigest()[:12]  # a browser keeps one jar for all ports of a host
        self.cookie = f"marft_view_{mark}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        refused = self._answered(scope)
        await (refused or self._app)(scope, receive, _closed_in(send))

    def _answered(self, scope: Scope) -> Response | None:
        """What is answered in the app's place; None where the app may answer."""
        headers = Headers(scope=scope)
        if not is_ours(headers.get("host", ""), self._host):
            return refusal(421, "this host is not answered to; use the address that marft view printed")
        if scope["method"] != "GET":
            return refusal(405, "only GET is answered: the viewer changes nothing", {"allow": "GET"})
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        path = scope["path"]
        if not path.startswith("/api") and TOKEN in dict(query):
            return self._signed_in(path, query)
        if path.startswith("/api") and not self._may_ask(headers):
            return refusal(401, "this needs the viewer's token; open the address that marft view printed")
        return None

    def _signed_in(self, path: str, query: list[tuple[str, str]]) -> Response:
        """The same address without the token, which the cookie stands for from here on."""
        rest = urlencode([(name, value) for name, value in query if name != TOKEN])
        there = RedirectResponse("/" + path.lstrip("/") + (f"?{rest}" if rest else ""), 303)
        if self._token and _same(dict(query)[TOKEN], self._token):
            there.set_cookie(self.cookie, self._session, httponly=True, samesite="strict", path="/")
        return there

    def _may_ask(self, headers: Headers) -> bool:
        if not self._token:
            return True
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and _same(bearer.strip(), self._token):
            return True
        try:
            given = SimpleCookie(headers.get("cookie", "")).get(self.cookie)
        except CookieError:
            return False
        return given is not None and _same(given.value, self._session)


def refusal(status: int, sentence: str, headers: dict[str, str] | None = None) -> Response:
    """An error as the page reads it."""
    return JSONResponse({"error": sentence}, status, headers)


def _same(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "replace"), wanted.encode())


def _closed_in(send: Send) -> Send:
    """Sends answers with the headers that keep a page to itself."""

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers[name] = value
            if "cache-control" not in headers:
                headers["cache-control"] = "no-store"
        await send(message)

    return sending
