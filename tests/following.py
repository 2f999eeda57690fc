"""Follow a page of the docs from top to bottom: write its files, run its commands and its Python."""

from __future__ import annotations

import importlib
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.docs import ROOT

STEP = re.compile(  # a block, with the file that the paragraph before it begins with
    r"(?:^`(?P<file>[\w./]+\.(?:py|toml))`(?:[^\n]|\n(?!\n))*\n\n)?^```(?P<language>\w+)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
NOT_FOLLOWED = ("pip",)  # commands that a test leaves out: an installation needs a network and minutes


@dataclass(frozen=True, slots=True)
class Piece:
    """A file to write, Python to run, or commands."""

    file: str
    language: str
    text: str


def pieces(page: str) -> Iterator[Piece]:
    """Yield the blocks of a page, such as ``docs/real_team.md``, in order."""
    for found in STEP.finditer((ROOT / page).read_text(encoding="utf-8")):
        yield Piece(found["file"] or "", found["language"], found["text"])


def quick(text: str) -> str:
    """Return the text with two training steps of two tasks, few held-out tasks and short turns."""
    for pattern, small in (
        (r"(?m)((?:^|\")steps\"?(?: =|:) )\d+", "2"), (r"(tasks_per_step = )\d+", "2"), (r"(--tasks )\d+", "2"),
        (r"(samples_per_task = )\d+", "2"), (r"(max_new_tokens = )\d+", "4"),
    ):  # fmt: skip
        text = re.sub(pattern, rf"\g<1>{small}", text)
    return text


def unchanged(text: str) -> str:
    """Return the text as it is written."""
    return text


@dataclass(frozen=True, slots=True)
class Reader:
    """A reader who follows pages in the working folder.

    Args:
        folder: the folder in which the reader begins.
        marft: runs ``marft`` with these arguments and returns what it prints.
        change: changes files and commands first: :func:`quick` or :func:`unchanged`.
        unneeded: commands to leave out.
    """

    folder: Path
    marft: Callable[..., str]
    change: Callable[[str], str] = unchanged
    unneeded: Sequence[str] = ()

    def follow(self, page: str) -> str:
        """Do everything on a page; return what the commands printed."""
        printed, places = [], list(sys.path)
        for piece in pieces(page):
            text = self.change(piece.text)
            sys.path[:] = places
            self.forget()
            if piece.file:
                Path(piece.file).write_text(text, encoding="utf-8")
            elif piece.language == "python":
                exec(compile(text, page, "exec"), {"__name__": "__main__"})
            elif piece.language == "sh":
                printed += [self.run(line) for line in text.splitlines()]
        return "\n".join(printed)

    def forget(self) -> None:
        """Forget the modules in the folder, as a new process would."""
        for name, module in list(sys.modules.items()):
            if Path(getattr(module, "__file__", None) or "/").is_relative_to(self.folder):
                del sys.modules[name]
        importlib.invalidate_caches()

    def run(self, line: str) -> str:
        """Run a command; return what it prints."""
        words = shlex.split(line, comments=True)
        if not words or words[0] in NOT_FOLLOWED or line in self.unneeded:
            return ""
        if words[0] == "cd":
            os.chdir(words[1])
            return ""
        if words[0] == "marft":
            said = self.marft(*words[1:])
            if words[1] == "init":
                self._change_recipes()
            return said
        assert words[0] == "python", line
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(
            [sys.executable, *words[1:]], check=False, capture_output=True, text=True, env=environment
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        return done.stdout

    def _change_recipes(self) -> None:
        for recipe in self.folder.rglob("recipe.toml"):
            recipe.write_text(self.change(recipe.read_text(encoding="utf-8")), encoding="utf-8")


def work_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a folder the working folder, in which Python finds no module ``reward`` of other tests."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if not (Path(place) / "reward.py").exists()])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.delitem(sys.modules, "reward", raising=False)
    return folder
