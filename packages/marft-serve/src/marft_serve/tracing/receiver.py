"""OTLP exporter over HTTP with protobuf.

Retries follow the protocol (https://opentelemetry.io/docs/specs/otlp/#otlphttp-response): after status 429, 502,
503 and 504, and after connection errors. The delay grows with each attempt, unless the endpoint sets it. All other
failures are errors.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from email.message import Message
from email.utils import parsedate_to_datetime
from http.client import HTTPException
from ssl import SSLCertVerificationError
from typing import Any
from urllib.parse import unquote, urlsplit

from marft.common.errors import RunError
from marft.common.texts import one_line
from marft.common.version import __version__
from marft.config.endpoint import names_server
from marft.config.keys import masked
from marft_serve.tracing.patience import Timed, TimedSecure

PATH = "/v1/traces"
HEADERS = ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS")
AGAIN = (429, 502, 503, 504)
FIRST_WAIT, LONGEST_WAIT = 0.5, 60.0  # seconds between attempts
LARGEST = 2**16  # maximum response bytes to read
SHOWN = 300  # maximum characters of a response to show
NAME = re.compile(r"[-!#$%&'*+.^_`|~0-9A-Za-z]+")  # name of a header


class UnsentError(RunError):
    """Export failure; the message gives the reason."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """OTLP endpoint.

        Args:
            url: complete URL; see :func:`traces_url`.
            headers: headers for each request.
            timeout: timeout in seconds, for the head and for the body of a response separately.
            tries: maximum number of attempts per request.
            wait: function that waits for a number of seconds before a retry.
        """
        return  # urllib would redirect the request without its body


@dataclass(frozen=True, slots=True)
class Receiver:
    """OTLP endpoint.

    Args:
        url: complete URL; see :func:`traces_url`.
        headers: headers for each request.
        timeout: timeout of a request, in seconds.
        tries: maximum number of attempts per request.
        wait: function that waits for a number of seconds before a retry.
    """

    url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    timeout: float = 10.0
    tries: int = 5
    wait: Callable[[float], object] = time.sleep

    def send(self, body: bytes) -> str:
        """Send a single request; return the endpoint's message about rejected spans, or "" without rejections.

        Raises:
            UnsentError: the request failed.
        """
        said = ""
        for number in range(self.tries):
            try:
                return self._sent(body)
            except _AgainError as error:
                said = str(error)
                if number + 1 < self.tries:
                    backoff = FIRST_WAIT * 2**number * secrets.SystemRandom().uniform(1.0, 1.5)
                    self.wait(min(LONGEST_WAIT, backoff if error.after is None else error.after))
        raise UnsentError(f"{self.url}: {said} (asked {self.tries} times)")

    def _sent(self, body: bytes) -> str:
        headers = {
            "User-Agent": f"marft/{__version__}",
            **self.headers,
            "Content-Type": "application/x-protobuf",
        }
        request = urllib.request.Request(self.url, body, headers, method="POST")
        said = ""
        try:
            with urllib.request.build_opener(_NoRedirect, Timed, TimedSecure).open(
                request, timeout=self.timeout
            ) as response:
                return self._rejected(response.headers, self._read(response))
        except urllib.error.HTTPError as error:
            with error, suppress(OSError, HTTPException):
                said = self._in_words(self._read(error.fp))
            why = f"it answered {error.code}{f' ({said})' if said else ''}"
            if error.code in AGAIN:
                raise _AgainError(why, _seconds(error.headers)) from None
            raise UnsentError(f"{self.url}: {why}") from None
        except (OSError, HTTPException) as error:
            reason = getattr(error, "reason", error)
            if isinstance(reason, SSLCertVerificationError):
                raise UnsentError(
                    f"{self.url}: its certificate is not trusted ({reason.verify_message}); SSL_CERT_FILE names a file "
                    "of authorities that are"
                ) from None
            late = isinstance(reason, TimeoutError)
            said = f"no answer within {self.timeout:g} s" if late else one_line(str(reason) or type(reason).__name__)
            raise _AgainError(said[:SHOWN]) from None
        except ValueError as error:  # invalid host name, or invalid redirect target
            raise UnsentError(f"{self.url}: it cannot be asked: {one_line(str(error))[:SHOWN]}") from None

    def _read(self, response: Any) -> bytes:
        """Read the start of a response.

        Raises:
            TimeoutError: the response did not end within the timeout, for example because it arrives one byte at a
                time.
        """
        body, until = b"", time.perf_counter() + self.timeout
        while len(body) < LARGEST and (part := response.read1(LARGEST)):
            body += part
            if time.perf_counter() > until:
                raise TimeoutError
        return body

    def _in_words(self, body: bytes) -> str:
        """Return the text of a response, with echoed header values masked."""
        return one_line(masked(list(self.headers.values()), body.decode("utf-8", "replace")))[:SHOWN]

    def _rejected(self, headers: Message, body: bytes) -> str:
        """Return a response's message about rejected spans (``partial_success``).

        Raises:
            UnsentError: the response is not from an OTLP endpoint.
        """
        kind = headers.get_content_type()
        if not body.strip():
            return ""
        try:
            count, said = _of_json(body) if kind == "application/json" else _of_protobuf(body)
        except ValueError:
            count, said = -1, ""
        if count < 0 or kind not in ("application/json", "application/x-protobuf", "application/octet-stream"):
            raise UnsentError(
                f"{self.url}: it answered with {one_line(kind)[:40]} that is no answer of a receiver of traces "
                f"({self._in_words(body)[:80]!r}); is this the address of one?"
            )
        said = one_line(masked(list(self.headers.values()), said))[:SHOWN]
        return f"{count} spans{f': {said}' if said else ''}" if count else ""


class _AgainError(Exception):
    """Temporary failure, with the endpoint's delay in seconds if set."""

    def __init__(self, said: str, after: float | None = None) -> None:
        super().__init__(said)
        self.after = after


def traces_url(url: str) -> str:
    """Return the URL for traces at an endpoint.

    >>> traces_url("http://localhost:4318"), traces_url("http://localhost:5000/v1/traces")
    ('http://localhost:4318/v1/traces', 'http://localhost:5000/v1/traces')

    Raises:
        ValueError: the text is not the URL of a server.
    """
    if not names_server(url):
        raise ValueError(
            f"{url!r} is no address of a receiver; it looks like http://localhost:4318, with what is secret in the "
            f"environment variable {HEADERS[1]}"
        )
    path = urlsplit(url).path.rstrip("/")
    return url if path.endswith(PATH) else f"{url.rstrip('/')}{PATH}"


def headers_of(given: Sequence[str] = ()) -> dict[str, str]:
    """Return headers from the environment and from a command.

    The environment has OpenTelemetry's format, ``name=value,…``, with URL-encoded values.

    Raises:
        ValueError: a header does not have the form ``name=value``.
    """
    written = next((os.environ[name] for name in HEADERS if os.environ.get(name)), "")
    pairs = [(one, HEADERS[1]) for one in written.split(",") if one.strip()] + [(one, "--header") for one in given]
    found = {}
    for pair, where in pairs:
        name, equals, value = pair.partition("=")
        value = unquote(value.strip()) if where != "--header" else value.strip()
        if not (equals and NAME.fullmatch(name.strip()) and value.isascii() and value.isprintable()):
            raise ValueError(f"{where}: a header is written as name=value, in plain characters")
        found[name.strip()] = value
    return found


def _of_json(body: bytes) -> tuple[int, str]:
    try:
        table = json.loads(body)
    except RecursionError as error:
        raise ValueError("nested too deep") from error
    told = table.get("partialSuccess") if isinstance(table, dict) else None
    if not isinstance(table, dict) or not isinstance(told, dict | None):
        raise ValueError("no object")
    count, said = (told or {}).get("rejectedSpans") or 0, (told or {}).get("errorMessage") or ""
    if not isinstance(count, int | str):  # 64-bit integers are text in JSON
        raise ValueError("no number of spans")
    return int(count), str(said)


def _of_protobuf(body: bytes) -> tuple[int, str]:
    from google.protobuf.message import DecodeError
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

    try:
        told = ExportTraceServiceResponse.FromString(body).partial_success
    except DecodeError as error:
        raise ValueError(str(error)) from error
    return int(told.rejected_spans), str(told.error_message)


def _seconds(headers: Message) -> float | None:
    """Parse ``Retry-After``, seconds or a date; return seconds from now, or None if invalid."""
    said = str(headers.get("Retry-After") or "").strip()
    if said.isascii() and said.isdecimal():
        return float(said[:9])
    try:
        return max(0.0, parsedate_to_datetime(said).timestamp() - time.time())
    except (ValueError, OverflowError):
        return None
