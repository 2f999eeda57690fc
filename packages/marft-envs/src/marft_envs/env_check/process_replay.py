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

from marft.common.processes.child_process import module_path
from marft.common.types import AgentProfile, ToolCall
from marft.config.interfaces.environment import Split
from marft_envs.env_check.episode_player import EpisodePlan, EpisodePlayer, seed_before_call
from marft_envs.env_check.loading import SPLITS, load_tasks, serialize_tasks
from marft_envs.env_check.players import replay_player
from marft_envs.env_check.records import AgentReply, EpisodeRecord
from marft_envs.env_check.target import CheckTarget, Limits, target_from_table

HASH_SEEDS = ("1", "2")  # PYTHONHASHSEED per process
MAX_REPLAYED = 12  # maximum repeated episodes
PROCESS_TIMEOUT = 300.0
START_CODE = """\
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from marft_envs.env_check.process_replay import main
main(sys.argv[2])
"""


@dataclass(frozen=True, slots=True, eq=False)
class ProcessResult:
    """Results from a new process.

    Args:
        tasks: serialized tasks by split.
        outcomes: outcomes of the episodes, in order.
    """

    tasks: Mapping[str, Sequence[str]]
    outcomes: Sequence[list[str]]


def replay_in_processes(
    target: CheckTarget, roles: Sequence[AgentProfile], records: Sequence[EpisodeRecord], limits: Limits
) -> list[ProcessResult] | str:
    """Repeat episodes in two new processes; return their results, or the reason for a failure.

    Args:
        target: environment with its team.
        roles: profiles of the team.
        records: episodes to repeat, with the same actions.
        limits: limits of the checks.
    """
    table = target.settings_table
    if table is None:
        return "its class lies in no module that another process can import"
    request = {
        "table": table,
        "folder": target.folder,
        "max_steps": target.max_steps or limits.max_steps,
        "call_timeout_seconds": limits.call_timeout_seconds,
        "roles": [[profile.role, profile.answers] for profile in roles],
        "plays": [_record_to_dict(record) for record in records[:MAX_REPLAYED]],
    }
    path = json.dumps(module_path())
    with tempfile.TemporaryDirectory() as folder:
        running = [_start_process(Path(folder, hashes), json.dumps(request), path, hashes) for hashes in HASH_SEEDS]
        results = [
            _read_result(Path(folder, hashes), process) for hashes, process in zip(HASH_SEEDS, running, strict=True)
        ]
    failed = next((result for result in results if isinstance(result, str)), "")
    return failed or [result for result in results if isinstance(result, ProcessResult)]


def main(folder: str) -> None:
    """Run a new process: read the request from ``folder``, and write the results there."""
    request = json.loads(Path(folder, "asked.json").read_text(encoding="utf-8"))
    target = target_from_table(request["table"], request["folder"])
    profiles = tuple(AgentProfile(role, answers=answers) for role, answers in request["roles"])
    target = CheckTarget(target.environment, profiles, request["max_steps"], folder=request["folder"])
    loaded = load_tasks(target.environment)
    outcomes = asyncio.run(_replay(target, request))
    results = {"tasks": {split: serialize_tasks(loaded.tasks.get(split, ())) for split in SPLITS}, "outcomes": outcomes}
    Path(folder, "found.json").write_text(json.dumps(results), encoding="utf-8")


async def _replay(target: CheckTarget, request: Mapping[str, Any]) -> list[list[str]]:
    player = EpisodePlayer(target, Limits(call_timeout_seconds=request["call_timeout_seconds"]))
    tasks = {split: {task.id: task for task in load_tasks(target.environment).tasks.get(split, ())} for split in SPLITS}
    outcomes = []
    for record_data in request["plays"]:
        split: Split = record_data["split"]
        task = tasks[split].get(record_data["task"])
        if task is None:
            outcomes.append(["no such task"])
            continue
        replies = [{role: _reply_from_dict(reply) for role, reply in step.items()} for step in record_data["said"]]
        plan = EpisodePlan(task, split, record_data["seed"], "a fresh process", replay_player(replies))
        record = await player.play_episode(plan, seed_before_call(0))
        outcomes.append(record.outcome)
    player.close()
    return outcomes


def _record_to_dict(record: EpisodeRecord) -> dict[str, object]:
    replies = [{role: asdict(reply) for role, reply in step.items()} for step in record.replies]
    return {"task": record.task.id, "split": record.split, "seed": record.seed, "said": replies}


def _reply_from_dict(table: Mapping[str, Any]) -> AgentReply:
    return AgentReply(table["text"], tuple(ToolCall(**call) for call in table["calls"]))


def _start_process(folder: Path, request: str, path: str, hashes: str) -> subprocess.Popen[bytes]:
    folder.mkdir()
    (folder / "asked.json").write_text(request, encoding="utf-8")
    return subprocess.Popen(
        [sys.executable, "-P", "-c", START_CODE, path, str(folder)],
        env={**os.environ, "PYTHONHASHSEED": hashes},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=(folder / "said.txt").open("wb"),
    )


def _read_result(folder: Path, process: subprocess.Popen[bytes]) -> ProcessResult | str:
    try:
        status = process.wait(PROCESS_TIMEOUT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return f"a fresh process took over {PROCESS_TIMEOUT:g} s"
    if status:
        last = (folder / "said.txt").read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
        return f"a fresh process ended with status {status}: {''.join(last)[:300]}"
    results = json.loads((folder / "found.json").read_text(encoding="utf-8"))
    return ProcessResult(results["tasks"], results["outcomes"])
