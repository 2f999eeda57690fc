"""Tasks that come with something else are other tasks: evaluations of them are not compared as if they were the same."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from marft.config.plugins import Plugin
from marft.envs.tasks import digest_tasks
from tests.marft_envs.test_code_world import ROW
from tests.marft_envs.test_code_world import rows as programs
from tests.marft_envs.test_gaia import gaia, metadata, row
from tests.marft_envs.test_mle import folder, mle
from tests.marft_envs.test_remembering_files import locomo, memory


def questions(place: Path, said: str) -> Plugin:
    """The question is the same, and the file that comes with it another."""
    (place / "prices.csv").write_text(f"item,price\n{said},3\n")
    return gaia(path=metadata(place, *(row(n, file_name="prices.csv") for n in range(30))))


def searched(place: Path, said: str) -> Plugin:
    pages = place / "pages"
    pages.mkdir(exist_ok=True)
    (pages / "Ada.txt").write_text(said)
    return gaia(path=metadata(place, *map(row, range(30))), pages=str(pages))


def conversations(place: Path, said: str) -> Plugin:
    """What is asked is the same, and what was told another."""
    talks = [locomo(n) for n in range(12)]
    for talk in talks:
        talk["conversation"]["session_1"][0]["text"] = said
    (place / "talk.json").write_text(json.dumps(talks))
    return memory(path=str(place / "talk.json"))


def competitions(place: Path, said: str, file: str = "prepared__private__test") -> Plugin:
    for name in ("tea", "rice", "salt", "soap", "rope"):
        folder(place, name, **{file: (".csv", f"id,x,y\na,1,{len(said)}\nb,2,2\n")})
    return mle(path=str(place))


def public(place: Path, said: str) -> Plugin:
    return competitions(place, said, "prepared__public__train")


def ranked(place: Path, said: str) -> Plugin:
    for name in ("tea", "rice", "salt", "soap", "rope"):
        folder(place, name, leaderboard=(".csv", f"score\n0.{len(said)}\n0.9\n2\n"))
    return mle(path=str(place))


def hidden_tests(place: Path, said: str) -> Plugin:
    hidden = [{"input": [1, n], "output": 1 + n + len(said)} for n in range(4)]
    return programs(place, *({**ROW, "question": f"Add {n}.", "tests": hidden} for n in range(40)))


@pytest.mark.parametrize("world", [questions, searched, conversations, competitions, public, ranked, hidden_tests])
def test_other_contents_are_other_tasks(world: Callable[[Path, str], Any], tmp_path: Path) -> None:
    def of(said: str) -> dict[str, str]:
        made = world(tmp_path, said)
        return {
            task.id: digest_tasks([task]) for split in ("train", "validation", "test") for task in made.tasks(split)
        }

    first, again, other = of("tea"), of("tea"), of("salted")
    assert first == again
    assert first.keys() == other.keys()
    assert all(first[task] != other[task] for task in first)
