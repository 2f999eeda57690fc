"""Small runs for tests: trained, listened to, compared byte by byte."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

from marft.common.callbacks import Callback, CallbackList
from marft.common.log import receive_logs
from marft.config import RunSettings
from marft.runs.logger_callback import LoggerCallback
from marft.runs.metrics_log import MetricsLog
from marft.runs.run_folder import RunFolder
from marft.trainer.train import train
from tests.helpers import settings


class Listening(Callback):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def on_note(self, text: str) -> None:
        self.notes.append(text)


class Told(NamedTuple):
    write: Callable[[int, dict[str, float]], None]
    note: Callable[[str], None]


@contextmanager
def telling(run: RunSettings, folder: RunFolder, done: int, listening: Callback) -> Iterator[Told]:
    """The log and the sinks of a run, told of steps and notes as a training loop tells them."""
    with (
        receive_logs(listening.on_note),
        closing(MetricsLog(folder.metrics_path)) as log,
        CallbackList([listening]) as callbacks,
        receive_logs(callbacks.on_note),
    ):
        callbacks.add(LoggerCallback(run, folder, done))

        def write(step: int, metrics: dict[str, float]) -> None:
            log.append({"step": step, **metrics})
            callbacks.on_step_end(step, metrics)

        yield Told(write, callbacks.on_note)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def finished(output: Path, *overrides: str) -> tuple[RunSettings, RunFolder]:
    """A run of two steps, with a checkpoint of each."""
    run = settings("tiny", output, *overrides)
    folder = RunFolder.create(run)
    train(run, folder)
    return run, folder
