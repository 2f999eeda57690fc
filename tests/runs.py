"""Small runs for tests: trained, listened to, compared byte by byte."""

from __future__ import annotations

from pathlib import Path

from marft.config import RunSettings
from marft.runs.run_folder import RunFolder
from marft.trainer.loop import NullCallback, train
from tests.helpers import settings


class Listening(NullCallback):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def on_note(self, text: str) -> None:
        self.notes.append(text)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def finished(output: Path, *overrides: str) -> tuple[RunSettings, RunFolder]:
    """A run of two steps, with a checkpoint of each."""
    run = settings("tiny", output, *overrides)
    folder = RunFolder.create(run)
    train(run, folder)
    return run, folder
