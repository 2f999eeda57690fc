"""HTTP connections with a timeout for the complete response head, even if it arrives one byte at a time."""

from __future__ import annotations

import socket
import threading
import urllib.request
from contextlib import suppress
from http.client import HTTPConnection, HTTPResponse, HTTPSConnection
from urllib.request import Request


class _Timed(HTTPConnection):
    """HTTP connection with ``timeout`` for each read and for the complete response head."""

    _late = False

    def getresponse(self) -> HTTPResponse:
        """Read the head of the response.

        Raises:
            TimeoutError: the head did not arrive in time.
        """
        timer = threading.Timer(self.timeout or 0.0, self._end)
        timer.daemon = True
        timer.start()
        try:
            response = super().getresponse()
        except Exception as error:
            if self._late:
                raise TimeoutError from error
            raise
        finally:
            timer.cancel()
        if self._late:  # the partial head was parsed as a whole head
            raise TimeoutError
        return response

    def _end(self) -> None:
        self._late, connected = True, self.sock
        with suppress(OSError):
            if connected:
                connected.shutdown(socket.SHUT_RDWR)


class _TimedSecure(_Timed, HTTPSConnection):
    """HTTPS connection with the same timeout."""


class Timed(urllib.request.HTTPHandler):
    """Handler for ``http`` URLs."""

    def http_open(self, req: Request) -> HTTPResponse:
        """Open the connection."""
        return self.do_open(_Timed, req)


class TimedSecure(urllib.request.HTTPSHandler):
    """Handler for ``https`` URLs; certificates are verified."""

    def https_open(self, req: Request) -> HTTPResponse:
        """Open the connection."""
        return self.do_open(_TimedSecure, req)
