"""Runs to look at that nobody has trained, and a client that asks the viewer's app without a server."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marft.common.types import Episode, Fork, Observation, Task, Transition
from marft.config.load import to_toml
from marft.runs.episode_files import write_episodes
from marft.runs.run_folder import MARKER
from tests.episodes import make_action
from tests.helpers import settings

if TYPE_CHECKING:
    from starlette.testclient import TestClient


def make_run(path: Path, steps: int = 3, episodes: int = 4) -> Path:
    """A run of two agents on the bundled model, with episodes of each step."""
    path.mkdir(parents=True)
    (path / "config.toml").write_text(to_toml(settings("tiny", path.parent)), encoding="utf-8")
    (path / "run.json").write_text(MARKER, encoding="utf-8")
    for step in range(1, steps + 1):
        record(path, step, [attempt(step, number) for number in range(episodes)])
    return path


def record(path: Path, step: int, episodes: Sequence[Episode], **metrics: float | None) -> None:
    """A step as training writes it: its episodes, then its metrics."""
    write_episodes(path / "episodes" / f"step_{step:06d}.parquet", episodes)
    row = {"step": step, "reward": step / 10, "accuracy": None, **metrics}
    with (path / "metrics.jsonl").open("a", encoding="utf-8") as log:
        log.write(json.dumps(row) + "\n")


def attempt(step: int, number: int, said: str = "", **changes: Any) -> Episode:
    """The number-th episode of a step, two attempts a task."""
    task, sample = f"t/{number // 2}", number % 2
    plan = make_action("reasoner", task=task, sample=sample, tokens=(40, 41), text=f"Plan {step}.{number} {said}")
    act = make_action(
        "actor", task=task, sample=sample, index=1, sees=(plan.id,), text=f"Straße {number}", tokens=(50,)
    )
    earned = Transition(Observation("What now?"), float(number), {"actor": 0.5}, {"right": 1.0})
    whole: dict[str, Any] = {
        "task": Task(task, f"Question {task}?"), "stream": f"train/{step - 1}", "sample": sample, "actions": (plan, act),
        "status": "terminated", "transitions": (earned,), "success": bool(number % 2), "seconds": number + 0.5,
    }  # fmt: skip
    return Episode(**{**whole, **changes})


def forked(step: int, number: int) -> Episode:
    """One that was played again from its second action on."""
    origin = attempt(step, number)
    return attempt(step, number, stream=f"train/{step - 1}/fork/0", fork=Fork(origin.name, "0/actor/0"))


def client(*places: Path, token: str = "", cache: Path | None = None, host: str = "127.0.0.1") -> TestClient:
    from starlette.testclient import TestClient

    from marft_serve.viewer.app import build_app
    from marft_serve.viewer.episode_index import IndexCache
    from marft_serve.viewer.library import Library

    app = build_app(Library(places, IndexCache(cache)), token, host)
    return TestClient(app, base_url="http://127.0.0.1:1234", raise_server_exceptions=False)


def asked(client: TestClient, path: str, **query: Any) -> Any:
    """What is answered; all recorded steps are indexed by then."""
    for _ in range(100):
        answer = client.get(f"/api/{path}", params=query)
        assert answer.status_code == 200, answer.text
        said = answer.json()
        if said.get("indexed") == said.get("files"):
            return said
    raise AssertionError("never indexed")
