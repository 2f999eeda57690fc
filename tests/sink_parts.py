"""Sinks that do what sinks do on a bad day."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, ClassVar

from marft.config.interfaces.metric_logger import MetricLogger, RunInfo

NEVER = threading.Event()


class Keeps(MetricLogger):
    """Takes everything, and keeps it for whoever looks."""

    heard: ClassVar[list[tuple[Any, ...]]] = []
    close_seconds: float = 5.0

    def open(self, run: RunInfo) -> Keeps:
        self.heard.append(("open", run))
        return self

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self.heard.append(("log", step, dict(metrics)))

    def note(self, step: int, text: str) -> None:
        self.heard.append(("note", step, text))

    def close(self) -> None:
        self.heard.append(("close",))


class Bad(Keeps):
    """Goes wrong in one of its methods, in one of these ways."""

    where: str = "log"
    how: str = "raise"
    close_seconds: float = 0.05

    def _go_wrong(self, where: str) -> None:
        if where == self.where:
            if self.how == "hang":
                NEVER.wait()
            raise (SystemExit(3) if self.how == "exit" else ConnectionError("nobody\x1b[2J there"))

    def open(self, run: RunInfo) -> Bad:
        self._go_wrong("open")
        return self

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._go_wrong("log")

    def note(self, step: int, text: str) -> None:
        self._go_wrong("note")

    def close(self) -> None:
        self._go_wrong("close")


class Needy(Keeps):
    package: ClassVar[str] = "tests_need_this"
    extra: ClassVar[str] = "needy"
