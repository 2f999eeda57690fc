"""Connections whose server has so long for the head of its answer: also one that sends it a byte at a time."""

from __future__ import annotations

import socket
import threading
import urllib.request
from contextlib import suppress
from http.client import HTTPConnection, HTTPResponse, HTTPSConnection
from urllib.request import Request


class _Timed(HTTPConnection):
    """``timeout`` is for each read as everywhere, and for the whole head of the answer."""

    _late = False

    def getresponse(self) -> HTTPResponse:
        """
        Raises:
            TimeoutError: the head has not come in time.
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
        if self._late:  # what had come by then looks like a head
            raise TimeoutError
        return response

    def _end(self) -> None:
        self._late, connected = True, self.sock
        with suppress(OSError):
            if connected:
                connected.shutdown(socket.SHUT_RDWR)


class _TimedSecure(_Timed, HTTPSConnection):
    """The same over TLS."""


class Timed(urllib.request.HTTPHandler):
    """Opens ``http``."""

    def http_open(self, req: Request) -> HTTPResponse:
        return self.do_open(_Timed, req)


class TimedSecure(urllib.request.HTTPSHandler):
    """Opens ``https``; certificates are checked."""

    def https_open(self, req: Request) -> HTTPResponse:
        return self.do_open(_TimedSecure, req)
