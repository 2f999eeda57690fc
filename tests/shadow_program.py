"""What a test runs in the place of a shadow beside a server: it counts in a file, and ends as its team says."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from pathlib import Path


def main(descriptor: int) -> None:
    server = socket.socket(fileno=descriptor)
    told = json.loads(server.makefile("r").readline())
    server.sendall(f"{os.getpid()}\n".encode())
    folder = Path(told["output"])
    with (folder / "begun").open("a") as file:
        file.write("x")
    if told["team"] == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    if told["team"] == "refuses":
        raise SystemExit(2)
    while True:
        with (folder / "count").open("a") as file:
            file.write("x")
        time.sleep(0.001)
