"""Collection of evidence on an environment. Checks judge it later.

The evidence includes external access by sessions (connections and started programs), resources that stay open, and
reward terms that change the data of tasks.
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import numpy as np

from marft.agents.loop_threads import CallTimeoutError, UserCodeError
from marft.agents.task_copies import copy_task
from marft.common.seeds import derive_seed
from marft.common.types import AgentProfile, Episode, Status, Task, ToolCall, Transition
from marft.config.interfaces.environment import Split
from marft.envs.scripted_policy import ScriptedPolicy
from marft_envs.env_check.episode_player import (
    STREAM,
    BeforeCall,
    CallGate,
    EpisodePlan,
    EpisodePlayer,
    seed_before_call,
    serial_gate,
)
from marft_envs.env_check.loading import LoadedTasks, load_tasks, serialize_tasks
from marft_envs.env_check.players import (
    FEW_VALUES,
    ODD_PLAYERS,
    Player,
    ScriptPlayer,
    StepInput,
    fixed_player,
    load_script,
    odd_calls,
    random_player,
    replay_player,
    silent_player,
    task_data_player,
)
from marft_envs.env_check.process_replay import ProcessResult, replay_in_processes
from marft_envs.env_check.records import AgentReply, EpisodeRecord
from marft_envs.env_check.target import CheckTarget, Limits

OUTSIDE_EVENTS = {
    "socket.connect": "connects to",
    "socket.getaddrinfo": "looks up",
    "subprocess.Popen": "starts",
    "os.system": "starts",
    "os.posix_spawn": "starts",
    "os.fork": "forks",
}
SESSION_THREADS = "marft-session"  # name of session threads
_LISTENERS: list[list[str]] = []


@contextmanager
def watch_outside_access() -> Iterator[list[str]]:
    """Collect descriptions for external access by sessions, until the context exits."""
    _install_hook()
    outside_events: list[str] = []
    _LISTENERS.append(outside_events)
    try:
        yield outside_events
    finally:
        _LISTENERS.remove(outside_events)


@cache
def _install_hook() -> None:
    """Install the audit hook once per process. Python cannot remove audit hooks."""
    sys.addaudithook(_on_event)


def _on_event(event: str, arguments: tuple[object, ...]) -> None:
    if _LISTENERS and event in OUTSIDE_EVENTS and threading.current_thread().name == SESSION_THREADS:
        target = arguments[1] if event == "socket.connect" else arguments[0] if arguments else "itself"
        for outside_events in _LISTENERS:
            outside_events.append(f"{OUTSIDE_EVENTS[event]} {target!s:.80}")


def count_resources() -> Counter[str]:
    """Count threads, child processes and file descriptors. Session threads are excluded."""
    threads = sum(thread.name != SESSION_THREADS for thread in threading.enumerate())
    return Counter({"threads": threads, "processes": _count_children(), "files": _count_descriptors()})


def find_resource_leaks(before: Counter[str]) -> Counter[str]:
    """Return resources leaked since a count. Unreferenced resources are collected first and do not count."""
    if count_resources() - before:
        gc.collect()
    return count_resources() - before


def _count_children() -> int:
    own_pid, count = str(os.getpid()), 0
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            count += entry.read_text().rpartition(")")[2].split()[1] == own_pid
        except OSError:  # the process has exited
            continue
    return count


def _count_descriptors() -> int:
    folder = Path("/proc/self/fd")
    return len(list(folder.iterdir())) if folder.is_dir() else 0


MAX_SCORED = 12  # maximum scored episodes


async def find_writing_terms(player: EpisodePlayer, records: Sequence[EpisodeRecord]) -> dict[str, list[str]]:
    """Return the reward terms that write into ``Task.data``, each with the tasks whose data it changed.

    Terms that call an endpoint are skipped. Errors in a term are ignored, because terms are written for model outputs.
    """
    writing_terms: dict[str, list[str]] = {}
    timed_out = set[str]()
    for record in [record for record in records if record.is_valid and record.steps][:MAX_SCORED]:
        for name, term in player.target.terms.items():
            if term.own_timeout or name in timed_out:
                continue
            episode = replace(_make_episode(player, record), task=copy_task(record.task))
            thread = player.threads.acquire()
            overdue = False
            try:
                await thread.call_user_code(term.score, episode, timeout=player.limits.call_timeout_seconds)
            except CallTimeoutError:
                overdue = True
                timed_out.add(name)
            except UserCodeError:
                pass
            finally:
                await player.threads.release(thread, failed=overdue)
            if not overdue and serialize_tasks([episode.task]) != serialize_tasks([record.task]):
                writing_terms.setdefault(name, []).append(record.task.id)
    return writing_terms


def _make_episode(player: EpisodePlayer, record: EpisodeRecord) -> Episode:
    """Return an episode record as in a run, with replies as actions."""
    observations = record.observations[: len(record.steps)]
    transitions = [
        Transition(observation, step.reward, step.agent_rewards)
        for observation, step in zip(observations, record.steps, strict=True)
    ]
    actions = [
        action
        for place, replies in enumerate(record.replies[: len(record.steps)])
        for action in player.build_joint_action(record.task, place, replies).actions
    ]
    status: Status = "terminated" if record.ended else "truncated"
    return Episode(record.task, STREAM, 0, tuple(actions), status, tuple(transitions), record.success)


def format_terms(terms: Mapping[str, Sequence[str]]) -> str:
    """Describe terms and their tasks: ``'brevity' (sum/0, sum/1)``."""
    return ", ".join(f"{name!r} ({', '.join(list(dict.fromkeys(tasks))[:3])})" for name, tasks in terms.items())


SKILLS = (1.0, 0.5)
MAX_ODD_TASKS = 1
MAX_TIMEOUTS = 2  # maximum hung episodes: each takes a full call timeout
ProgressCallback = Callable[[], object]


@dataclass(frozen=True, slots=True, eq=False)
class CheckData:
    """Evidence on an environment.

    Args:
        target: environment with its team.
        limits: limits of the checks.
        loaded: loaded tasks.
        profiles: profiles of the team.
        records: one episode per played task and player.
        repeatable: repeatable episodes among ``records``: no call hung, and the script returned every reply.
        repeated: repetitions of ``repeatable``, with the same actions, after all of them.
        reseeded: repetitions of ``repeatable`` with other seeds of the global random generators.
        concurrent: concurrent repetitions of ``repeatable``.
        odd_records: episodes with odd outputs.
        process_results: results of two new processes, or the reason why none ran.
        outside_events: descriptions of external access by sessions.
        leaks: resources that grew with each round of the same episodes.
        writing_terms: reward terms that write into the data of tasks, with those tasks.
        has_script: True if the environment has its own scripted policy.
        max_steps: maximum steps per episode.
    """

    target: CheckTarget
    limits: Limits
    loaded: LoadedTasks
    profiles: tuple[AgentProfile, ...] = ()
    records: Sequence[EpisodeRecord] = ()
    repeatable: Sequence[EpisodeRecord] = ()
    repeated: Sequence[EpisodeRecord] = ()
    reseeded: Sequence[EpisodeRecord] = ()
    concurrent: Sequence[EpisodeRecord] = ()
    odd_records: Sequence[EpisodeRecord] = ()
    process_results: Sequence[ProcessResult] | str = "nothing was played"
    outside_events: Sequence[str] = ()
    leaks: Counter[str] = field(default_factory=Counter)
    has_script: bool = False
    max_steps: int = 0
    writing_terms: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def valid_records(self) -> list[EpisodeRecord]:
        """Return the valid episodes among the first attempts."""
        return [record for record in self.records if record.is_valid]


async def collect_check_data(
    target: CheckTarget, limits: Limits, advance: ProgressCallback = lambda: None
) -> CheckData:
    """Load the tasks, play episodes, and repeat them.

    Args:
        target: environment with its team.
        limits: limits of the checks.
        advance: function called after each episode.
    """
    loaded = load_tasks(target.environment)
    tasks = _choose_tasks(loaded, limits)
    if not tasks:
        return CheckData(target, limits, loaded)
    player = EpisodePlayer(target, limits)
    with _preserve_global_rng(), watch_outside_access() as outside_events:
        try:
            if player.team_unknown:
                for split, task in tasks:  # the first observations name the roles
                    plan = _make_plan(task, split, "nobody", silent_player)
                    await player.play_episode(plan, seed_before_call(0), max_steps=0)
            return await _collect_records(player, loaded, tasks, outside_events, advance)
        finally:
            player.close()


async def _collect_records(
    runner: EpisodePlayer,
    loaded: LoadedTasks,
    tasks: Sequence[tuple[Split, Task]],
    outside: Sequence[str],
    advance: ProgressCallback,
) -> CheckData:
    scripts = {skill: await load_script(runner.target.environment, skill) for skill in SKILLS}
    plans = [
        _make_plan(task, split, name, player)
        for split, task in tasks
        for name, player in _make_players(runner, task, scripts)
    ]
    records, timeouts = list[EpisodeRecord](), 0
    for plan in plans:
        records.append(await runner.play_episode(plan, seed_before_call(0)))
        timeouts += not _is_responsive(records[-1])
        advance()
        if timeouts == MAX_TIMEOUTS:
            break
    repeatable = [
        record
        for record in records
        if _is_responsive(record) and all(fault.call != "script" for fault in record.faults)
    ]

    async def replay(seed: int) -> list[EpisodeRecord]:
        return [await _replay(runner, record, seed_before_call(seed), advance) for record in repeatable]

    repeated = await replay(0)
    before = count_resources()
    reseeded_records = await replay(1)
    grown_resources = find_resource_leaks(before) if repeatable == records else Counter[str]()
    gate = serial_gate()
    concurrent = await asyncio.gather(
        *(_replay(runner, record, seed_before_call(0), advance, gate) for record in repeatable)
    )
    odd_records = [record async for record in _play_odd(runner, tasks[: 0 if timeouts else MAX_ODD_TASKS], advance)]
    process_results: list[ProcessResult] | str = "left out, as was asked for"
    if runner.limits.use_processes:
        process_results = await asyncio.to_thread(
            replay_in_processes, runner.target, runner.profiles, repeatable, runner.limits
        )
    return CheckData(
        runner.target,
        runner.limits,
        loaded,
        runner.profiles,
        records,
        repeatable,
        repeated,
        reseeded_records,
        concurrent,
        odd_records,
        process_results,
        list(outside),
        grown_resources,
        any(scripts.values()),
        runner.max_steps,
        await find_writing_terms(runner, repeatable),
    )


async def _replay(
    player: EpisodePlayer,
    play: EpisodeRecord,
    before: BeforeCall,
    advance: ProgressCallback,
    gate: CallGate = nullcontext,
) -> EpisodeRecord:
    plan = EpisodePlan(play.task, play.split, play.seed, play.player, replay_player(play.replies))
    record = await player.play_episode(plan, before, gate)
    advance()
    return record


def _choose_tasks(loaded: LoadedTasks, limits: Limits) -> list[tuple[Split, Task]]:
    """Return tasks from each split, evenly spaced."""
    tasks_found: list[tuple[Split, Task]] = []
    for split, tasks in loaded.tasks.items():
        count = limits.tasks if split == "train" else limits.held_out_tasks
        positions = sorted({round(at) for at in np.linspace(0, len(tasks) - 1, min(count, len(tasks)))})
        tasks_found += [(split, tasks[place]) for place in positions]
    return tasks_found


def _is_responsive(record: EpisodeRecord) -> bool:
    return all(fault.kind != "hung" for fault in record.faults)


def _session_seed(task: Task) -> int:
    return derive_seed(0, "vetting", task.id)


def _make_plan(task: Task, split: Split, name: str, player: Player) -> EpisodePlan:
    return EpisodePlan(task, split, _session_seed(task), name, player)


def _make_players(
    runner: EpisodePlayer, task: Task, scripts: Mapping[float, ScriptedPolicy | None]
) -> Iterator[tuple[str, Player]]:
    """Yield the players for a task, by name."""
    seed = _session_seed(task)
    tools = tuple(runner.tools.tools) if runner.tools else ()
    for skill, script in scripts.items():
        if script is not None:
            yield f"its script of skill {skill:g}", ScriptPlayer(script, runner.target, tools, task, seed)
    yield "somebody who chooses and says anything", random_player(seed)
    yield "somebody who says 'x'", fixed_player(["x"])
    for first in range(FEW_VALUES):
        yield f"somebody who knows the task's data, from {first} on", task_data_player(task, first)


async def _play_odd(
    runner: EpisodePlayer, tasks: Sequence[tuple[Split, Task]], advance: ProgressCallback
) -> AsyncIterator[EpisodeRecord]:
    """Yield episodes with outputs that a model should not give."""
    players: dict[str, Player] = {name: fixed_player([text]) for name, text in ODD_PLAYERS.items()}
    players["a team that says nothing"] = silent_player
    for call in [call for tool in (runner.tools.tools if runner.tools else ()) for call in odd_calls(tool)]:
        players[f"somebody who calls {call.name} with {call.arguments:.40}"] = _calling_player(call)
    for split, task in tasks:
        for name, player in players.items():
            yield await runner.play_episode(_make_plan(task, split, name, player), seed_before_call(0))
            advance()
        plan = _make_plan(task, split, "a team that leaves at once", silent_player)
        yield await runner.play_episode(plan, max_steps=0)


def _calling_player(call: ToolCall) -> Player:
    async def act(step_input: StepInput) -> dict[str, AgentReply]:
        call_result = await step_input.call(call) if step_input.step == 0 else None
        return {role: AgentReply("x", (call_result,) if call_result else ()) for role in step_input.roles}

    return act


@contextmanager
def _preserve_global_rng() -> Iterator[None]:
    """Restore the global random generators at the end."""
    state, arrays = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(state)
        np.random.set_state(arrays)
