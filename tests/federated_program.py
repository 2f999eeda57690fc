"""What stands for a site in tests of those who ask it: it answers with what it was given, ends, or says nothing."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

from marft_lab.federated.messages import TrainFailure, TrainRequest, Update, pack_files, receive, send, unpack_files


def main(descriptor: int) -> None:
    with socket.socket(fileno=descriptor) as end:
        about = receive(end)
        does, place = about.site["recipe"], Path(about.site["folder"])
        while True:
            try:
                asked = receive(end)
            except EOFError:
                return
            assert isinstance(asked, TrainRequest)
            send(end, _answer(does, place, asked))


def _answer(does: str, place: Path, asked: TrainRequest) -> Update | TrainFailure:
    if does == "hangs":
        time.sleep(600)
    if does == "fails":
        return TrainFailure(asked.round)
    times = place.with_suffix(".times")
    times.write_text(times.read_text() + "." if times.exists() else ".")
    if does == "ends" or (does == "ends once" and times.read_text() == "."):
        os._exit(3)
    return Update(asked.round, {"models": {}}, *pack_files(unpack_files(asked)))
