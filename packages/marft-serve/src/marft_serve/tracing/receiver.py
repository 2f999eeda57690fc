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
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from email.message import Message
from email.utils import parsedate_to_datetime
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from ssl import SSLCertVerificationError
from typing import Any
from urllib.parse import unquote, urlsplit
from urllib.request import Request

from marft.common.errors import RunError, UserError
from marft.common.texts import single_line
from marft.common.version import __version__
from marft.config.endpoint import is_server_url
from marft.config.secrets import mask_values

TRACES_PATH = "/v1/traces"
HEADER_ENV_KEYS = ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS")
RETRY_STATUSES = (429, 502, 503, 504)
MIN_DELAY_SECONDS, MAX_DELAY_SECONDS = 0.5, 60.0  # seconds between attempts
MAX_RESPONSE_BYTES = 2**16  # maximum response bytes to read
MAX_MESSAGE_CHARS = 300  # maximum characters of a response to show
HEADER_NAME = re.compile(r"[-!#$%&'*+.^_`|~0-9A-Za-z]+")  # name of a header


class _TimeoutConnection(HTTPConnection):
    """HTTP connection with ``timeout`` for each read and for the complete response head."""

    _timed_out = False

    def getresponse(self) -> HTTPResponse:
        """Read the head of the response.

        Raises:
            TimeoutError: the head did not arrive in time.
        """
        timer = threading.Timer(self.timeout or 0.0, self._abort)
        timer.daemon = True
        timer.start()
        try:
            response = super().getresponse()
        except Exception as error:  # the abort closes the socket at any point of the read
            if self._timed_out:
                raise TimeoutError from error
            raise
        finally:
            timer.cancel()
        if self._timed_out:  # the partial head was parsed as a whole head
            raise TimeoutError
        return response

    def _abort(self) -> None:
        self._timed_out, sock = True, self.sock
        with suppress(OSError):
            if sock:
                sock.shutdown(socket.SHUT_RDWR)


class _SecureTimeoutConnection(_TimeoutConnection, HTTPSConnection):
    """HTTPS connection with the same timeout."""


class TimeoutHandler(urllib.request.HTTPHandler):
    """Handler for ``http`` URLs."""

    def http_open(self, req: Request) -> HTTPResponse:
        """Open the connection."""
        return self.do_open(_TimeoutConnection, req)


class SecureTimeoutHandler(urllib.request.HTTPSHandler):
    """Handler for ``https`` URLs; certificates are verified."""

    def https_open(self, req: Request) -> HTTPResponse:
        """Open the connection."""
        return self.do_open(_SecureTimeoutConnection, req)


class ExportError(RunError):
    """Export failure; the message gives the reason."""


class _NoRedirectHandler(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        """Reject the redirect."""
        return  # urllib would redirect the request without its body


@dataclass(frozen=True, slots=True)
class Receiver:
    """OTLP endpoint.

    Args:
        url: complete URL; see :func:`build_traces_url`.
        headers: headers for each request.
        timeout: timeout of a request, in seconds.
        max_attempts: maximum number of attempts per request.
        wait: function that waits for a number of seconds before a retry.
    """

    url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    timeout: float = 10.0
    max_attempts: int = 5
    wait: Callable[[float], object] = time.sleep

    def send(self, body: bytes) -> str:
        """Send a single request; return the endpoint's message about rejected spans, or "" without rejections.

        Raises:
            ExportError: the request failed.
        """
        message = ""
        for number in range(self.max_attempts):
            try:
                return self._post(body)
            except _RetryError as error:
                message = str(error)
                if number + 1 < self.max_attempts:
                    backoff = MIN_DELAY_SECONDS * 2**number * secrets.SystemRandom().uniform(1.0, 1.5)
                    self.wait(min(MAX_DELAY_SECONDS, backoff if error.delay is None else error.delay))
        raise ExportError(f"{self.url}: {message} (asked {self.max_attempts} times)")

    def _post(self, body: bytes) -> str:
        headers = {
            "User-Agent": f"marft/{__version__}",
            **self.headers,
            "Content-Type": "application/x-protobuf",
        }
        request = urllib.request.Request(self.url, body, headers, method="POST")
        message = ""
        try:
            with urllib.request.build_opener(_NoRedirectHandler, TimeoutHandler, SecureTimeoutHandler).open(
                request, timeout=self.timeout
            ) as response:
                return self._parse_rejected(response.headers, self._read_body(response))
        except urllib.error.HTTPError as error:
            with error, suppress(OSError, HTTPException):
                message = self._get_response_text(self._read_body(error.fp))
            status_message = f"it answered {error.code}{f' ({message})' if message else ''}"
            if error.code in RETRY_STATUSES:
                raise _RetryError(status_message, _parse_retry_after(error.headers)) from None
            raise ExportError(f"{self.url}: {status_message}") from None
        except (OSError, HTTPException) as error:
            reason = getattr(error, "reason", error)
            if isinstance(reason, SSLCertVerificationError):
                raise ExportError(
                    f"{self.url}: its certificate is not trusted ({reason.verify_message}); SSL_CERT_FILE names a file "
                    "of authorities that are"
                ) from None
            timed_out = isinstance(reason, TimeoutError)
            message = (
                f"no answer within {self.timeout:g} s"
                if timed_out
                else single_line(str(reason) or type(reason).__name__)
            )
            raise _RetryError(message[:MAX_MESSAGE_CHARS]) from None
        except ValueError as error:  # invalid host name, or invalid redirect target
            raise ExportError(
                f"{self.url}: it cannot be asked: {single_line(str(error))[:MAX_MESSAGE_CHARS]}"
            ) from None

    def _read_body(self, response: Any) -> bytes:
        """Read the start of a response.

        Raises:
            TimeoutError: the response did not end within the timeout, for example because it arrives one byte at a
                time.
        """
        body, until = b"", time.perf_counter() + self.timeout
        while len(body) < MAX_RESPONSE_BYTES and (part := response.read1(MAX_RESPONSE_BYTES)):
            body += part
            if time.perf_counter() > until:
                raise TimeoutError
        return body

    def _get_response_text(self, body: bytes) -> str:
        """Return the text of a response, with echoed header values masked."""
        return single_line(mask_values(list(self.headers.values()), body.decode("utf-8", "replace")))[
            :MAX_MESSAGE_CHARS
        ]

    def _parse_rejected(self, headers: Message, body: bytes) -> str:
        """Return a response's message about rejected spans (``partial_success``).

        Raises:
            ExportError: the response is not from an OTLP endpoint.
        """
        content_type = headers.get_content_type()
        if not body.strip():
            return ""
        try:
            count, message = _parse_json(body) if content_type == "application/json" else _parse_protobuf(body)
        except ValueError:
            count, message = -1, ""
        if count < 0 or content_type not in ("application/json", "application/x-protobuf", "application/octet-stream"):
            raise ExportError(
                f"{self.url}: it answered with {single_line(content_type)[:40]} that is no answer of a receiver of "
                f"traces ({self._get_response_text(body)[:80]!r}); is this the address of one?"
            )
        message = single_line(mask_values(list(self.headers.values()), message))[:MAX_MESSAGE_CHARS]
        return f"{count} spans{f': {message}' if message else ''}" if count else ""


class _RetryError(Exception):
    """Temporary failure, with the endpoint's delay in seconds if set."""

    def __init__(self, message: str, delay: float | None = None) -> None:
        super().__init__(message)
        self.delay = delay


def build_traces_url(url: str) -> str:
    """Return the URL for traces at an endpoint.

    >>> build_traces_url("http://localhost:4318"), build_traces_url("http://localhost:5000/v1/traces")
    ('http://localhost:4318/v1/traces', 'http://localhost:5000/v1/traces')

    Raises:
        UserError: the text is not the URL of a server.
    """
    if not is_server_url(url):
        raise UserError(
            f"{url!r} is no address of a receiver; it looks like http://localhost:4318, with what is secret in the "
            f"environment variable {HEADER_ENV_KEYS[1]}"
        )
    path = urlsplit(url).path.rstrip("/")
    return url if path.endswith(TRACES_PATH) else f"{url.rstrip('/')}{TRACES_PATH}"


def parse_headers(options: Sequence[str] = ()) -> dict[str, str]:
    """Return headers from the environment and from a command.

    The environment has OpenTelemetry's format, ``name=value,…``, with URL-encoded values.

    Raises:
        UserError: a header does not have the form ``name=value``.
    """
    variable = next((os.environ[name] for name in HEADER_ENV_KEYS if os.environ.get(name)), "")
    pairs = [(entry, HEADER_ENV_KEYS[1]) for entry in variable.split(",") if entry.strip()] + [
        (entry, "--header") for entry in options
    ]
    headers = {}
    for pair, source in pairs:
        name, equals, value = pair.partition("=")
        value = unquote(value.strip()) if source != "--header" else value.strip()
        if not (equals and HEADER_NAME.fullmatch(name.strip()) and value.isascii() and value.isprintable()):
            raise UserError(f"{source}: a header is written as name=value, in plain characters")
        headers[name.strip()] = value
    return headers


def _parse_json(body: bytes) -> tuple[int, str]:
    try:
        table = json.loads(body)
    except RecursionError as error:
        raise UserError("nested too deep") from error
    partial_success = table.get("partialSuccess") if isinstance(table, dict) else None
    if not isinstance(table, dict) or not isinstance(partial_success, dict | None):
        raise UserError("no object")
    count, message = (
        (partial_success or {}).get("rejectedSpans") or 0,
        (partial_success or {}).get("errorMessage") or "",
    )
    if not isinstance(count, int | str):  # 64-bit integers are text in JSON
        raise UserError("no number of spans")
    return int(count), str(message)


def _parse_protobuf(body: bytes) -> tuple[int, str]:
    from google.protobuf.message import DecodeError
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

    try:
        partial_success = ExportTraceServiceResponse.FromString(body).partial_success
    except DecodeError as error:
        raise UserError(str(error)) from error
    return int(partial_success.rejected_spans), str(partial_success.error_message)


def _parse_retry_after(headers: Message) -> float | None:
    """Parse ``Retry-After``, seconds or a date; return seconds from now, or None if invalid."""
    value = str(headers.get("Retry-After") or "").strip()
    if value.isascii() and value.isdecimal():
        return float(value[:9])
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except (ValueError, OverflowError):
        return None
