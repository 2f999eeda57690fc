"""Repetition of tasks and episodes in new processes with different hash seeds."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from marft.agents.environment import Split
from marft.common.processes.python_here import module_path
from marft.common.types import Profile, ToolCall
from marft_envs.vetting.limits import Limits
from marft_envs.vetting.loading import SPLITS, load, written
from marft_envs.vetting.players import repeating
from marft_envs.vetting.plays import Play, Said
from marft_envs.vetting.stage import Stage, reseeded
from marft_envs.vetting.subject import Subject, of_table

HASHES = ("1", "2")  # PYTHONHASHSEED per process
MOST_PLAYED = 12  # maximum repeated episodes
SECONDS = 300.0
START = """\
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from marft_envs.vetting.fresh import main
main(sys.argv[2])
"""


@dataclass(frozen=True, slots=True, eq=False)
class Fresh:
    """Results from a new process.

    Args:
        tasks: serialized tasks by split.
        outcomes: outcomes of the episodes, in order.
    """

    tasks: Mapping[str, Sequence[str]]
    outcomes: Sequence[list[str]]


def ask(subject: Subject, roles: Sequence[Profile], plays: Sequence[Play], limits: Limits) -> list[Fresh] | str:
    """Repeat episodes in two new processes; return their results, or the reason for a failure.

    Args:
        subject: environment with its team.
        roles: profiles of the team.
        plays: episodes to repeat, with the same actions.
        limits: limits of the checks.
    """
    table = subject.table
    if table is None:
        return "its class lies in no module that another process can import"
    asked = {
        "table": table, "folder": subject.folder, "most_steps": subject.most_steps or limits.most_steps,
        "call_seconds": limits.call_seconds, "roles": [[profile.role, profile.answers] for profile in roles],
        "plays": [_asked(play) for play in plays[:MOST_PLAYED]],
    }  # fmt: skip
    path = json.dumps(module_path())
    with tempfile.TemporaryDirectory() as folder:
        running = [_begun(Path(folder, hashes), json.dumps(asked), path, hashes) for hashes in HASHES]
        found = [_answer(Path(folder, hashes), process) for hashes, process in zip(HASHES, running, strict=True)]
    failed = next((one for one in found if isinstance(one, str)), "")
    return failed or [one for one in found if isinstance(one, Fresh)]


def main(folder: str) -> None:
    """Run a new process: read the request from ``folder``, and write the results there."""
    asked = json.loads(Path(folder, "asked.json").read_text(encoding="utf-8"))
    subject = of_table(asked["table"], asked["folder"])
    profiles = tuple(Profile(role, answers=answers) for role, answers in asked["roles"])
    subject = Subject(subject.environment, profiles, asked["most_steps"], folder=asked["folder"])
    loaded = load(subject.environment)
    outcomes = asyncio.run(_played(subject, asked))
    found = {"tasks": {split: written(loaded.tasks.get(split, ())) for split in SPLITS}, "outcomes": outcomes}
    Path(folder, "found.json").write_text(json.dumps(found), encoding="utf-8")


async def _played(subject: Subject, asked: Mapping[str, Any]) -> list[list[str]]:
    stage = Stage(subject, Limits(call_seconds=asked["call_seconds"]))
    tasks = {split: {task.id: task for task in load(subject.environment).tasks.get(split, ())} for split in SPLITS}
    outcomes = []
    for play in asked["plays"]:
        split: Split = play["split"]
        task = tasks[split].get(play["task"])
        if task is None:
            outcomes.append(["no such task"])
            continue
        said = [{role: _said(one) for role, one in step.items()} for step in play["said"]]
        again = await stage.play(task, split, play["seed"], "a fresh process", repeating(said), reseeded(0))
        outcomes.append(again.outcome)
    stage.close()
    return outcomes


def _asked(play: Play) -> dict[str, Any]:
    said = [{role: asdict(one) for role, one in step.items()} for step in play.said]
    return {"task": play.task.id, "split": play.split, "seed": play.seed, "said": said}


def _said(table: Mapping[str, Any]) -> Said:
    return Said(table["text"], tuple(ToolCall(**call) for call in table["calls"]))


def _begun(folder: Path, asked: str, path: str, hashes: str) -> subprocess.Popen[bytes]:
    folder.mkdir()
    (folder / "asked.json").write_text(asked, encoding="utf-8")
    return subprocess.Popen(
        [sys.executable, "-P", "-c", START, path, str(folder)], env={**os.environ, "PYTHONHASHSEED": hashes},
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=(folder / "said.txt").open("wb"),
    )  # fmt: skip


def _answer(folder: Path, process: subprocess.Popen[bytes]) -> Fresh | str:
    try:
        status = process.wait(SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return f"a fresh process took over {SECONDS:g} s"
    if status:
        last = (folder / "said.txt").read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
        return f"a fresh process ended with status {status}: {''.join(last)[:300]}"
    found = json.loads((folder / "found.json").read_text(encoding="utf-8"))
    return Fresh(found["tasks"], found["outcomes"])
