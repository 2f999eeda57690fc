"""HTTP connections with a timeout for the complete response head, even if it arrives one byte at a time."""

from __future__ import annotations

import socket
import threading
import urllib.request
from contextlib import suppress
from http.client import HTTPConnection, HTTPResponse, HTTPSConnection
from urllib.request import Request


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
        except Exception as error:
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
