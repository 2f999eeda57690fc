"""A run that goes on says which files of users' parts have changed since."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from marft.common.callbacks import Callback
from marft.runs.changes import code_notes, hash_user_code
from marft.runs.run_folder import RunFolder
from marft.trainer.train import train
from tests.helpers import settings

REWARD = "def brief(episode):\n    return -0.01\n"


class Listening(Callback):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def on_note(self, text: str) -> None:
        self.notes.append(text)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module that no other test has imported."""
    monkeypatch.syspath_prepend(tmp_path)
    written = tmp_path / f"brevity_{uuid.uuid4().hex}.py"
    written.write_text(REWARD)
    return written


def test_the_files_of_users_parts_are_known_and_ours_are_not(file: Path, tmp_path: Path) -> None:
    run = settings("tiny", tmp_path, rewards=[{"name": "function", "call": f"{file.stem}:brief"}])
    known = hash_user_code(run)
    assert known.keys() == {file.stem}
    assert list(code_notes(known, run, 4)) == []
    file.write_text(REWARD.replace("0.01", "0.02"))
    (note,) = code_notes(known, run, 4)
    assert note.startswith(f"{file} has changed since step 4")
    assert list(code_notes({}, run, 4)) == []  # nothing is known of before


@pytest.mark.slow
def test_a_run_that_goes_on_with_another_reward_says_so(file: Path, tmp_path: Path) -> None:
    rewards = [{"name": "function", "call": f"{file.stem}:brief"}]
    run = settings("tiny", tmp_path, "--training.steps", "1", rewards=rewards)
    folder = RunFolder.create(run)
    train(run, folder)
    again = settings("tiny", tmp_path, "--training.steps", "2", rewards=rewards)
    file.write_text(REWARD.replace("0.01", "0.02"))
    listening = Listening()
    train(again, folder, resume=True, callbacks=[listening])
    assert [f"{file} has changed since step 1" in note for note in listening.notes] == [True]
