"""Collection of evidence on an environment. Checks judge it later."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field

import numpy as np

from marft.agents.environment import Split
from marft.common.seeds import derive_seed
from marft.common.types import Profile, Task, ToolCall
from marft.envs.scripts import Script
from marft_envs.vetting import left_open, odd
from marft_envs.vetting.fresh import Fresh, ask
from marft_envs.vetting.limits import Limits
from marft_envs.vetting.loading import Loaded, load
from marft_envs.vetting.players import (
    FEW_VALUES,
    ODD,
    Moment,
    Performer,
    Player,
    knowing,
    repeating,
    saying,
    scripted,
    silent,
    wandering,
)
from marft_envs.vetting.plays import Play, Said
from marft_envs.vetting.stage import Before, Gate, Stage, in_turns, reseeded
from marft_envs.vetting.subject import Subject
from marft_envs.vetting.terms import writers
from marft_envs.vetting.watching import heard

SKILLS = (1.0, 0.5)
ODD_TASKS = 1
MOST_HUNG = 2  # maximum hung episodes: each takes a full call timeout
Advance = Callable[[], object]


@dataclass(frozen=True, slots=True, eq=False)
class Evidence:
    """Evidence on an environment.

    Args:
        subject: environment with its team.
        limits: limits of the checks.
        loaded: loaded tasks.
        profiles: profiles of the team.
        plays: one episode per played task and player.
        calm: repeatable episodes among ``plays``: no call hung, and the script returned every reply.
        again: repetitions of ``calm``, with the same actions, after all of them.
        reseeded: repetitions of ``calm`` with other seeds of the global random generators.
        together: concurrent repetitions of ``calm``.
        odd: episodes with odd outputs.
        fresh: results of two new processes, or the reason why none ran.
        outside: descriptions of external access by sessions.
        left: resources that grew with each round of the same episodes.
        writers: reward terms that write into the data of tasks, with those tasks.
        scripted: True if the environment has its own scripted policy.
        most_steps: maximum steps per episode.
    """

    subject: Subject
    limits: Limits
    loaded: Loaded
    profiles: tuple[Profile, ...] = ()
    plays: Sequence[Play] = ()
    calm: Sequence[Play] = ()
    again: Sequence[Play] = ()
    reseeded: Sequence[Play] = ()
    together: Sequence[Play] = ()
    odd: Sequence[Play] = ()
    fresh: Sequence[Fresh] | str = "nothing was played"
    outside: Sequence[str] = ()
    left: Counter[str] = field(default_factory=Counter)
    scripted: bool = False
    most_steps: int = 0
    writers: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def played(self) -> list[Play]:
        """Return the valid episodes among the first attempts."""
        return [play for play in self.plays if play.whole]


async def gather(subject: Subject, limits: Limits, advance: Advance = lambda: None) -> Evidence:
    """Load the tasks, play episodes, and repeat them.

    Args:
        subject: environment with its team.
        limits: limits of the checks.
        advance: function called after each episode.
    """
    loaded = load(subject.environment)
    tasks = _chosen(loaded, limits)
    if not tasks:
        return Evidence(subject, limits, loaded)
    stage = Stage(subject, limits)
    with _shared_numbers_kept(), heard() as outside:
        try:
            if stage.guessed:
                for split, task in tasks:  # the first observations name the roles
                    await stage.play(task, split, _seed(task), "nobody", silent, reseeded(0), most_steps=0)
            return await _seen(stage, loaded, tasks, outside, advance)
        finally:
            stage.close()


async def _seen(
    stage: Stage, loaded: Loaded, tasks: Sequence[tuple[Split, Task]], outside: Sequence[str], advance: Advance
) -> Evidence:
    scripts = {skill: await scripted(stage.subject.environment, skill) for skill in SKILLS}
    cast = [(split, task, name, player) for split, task in tasks for name, player in _players(stage, task, scripts)]
    plays, hung = list[Play](), 0
    for split, task, name, player in cast:
        plays.append(await stage.play(task, split, _seed(task), name, player, reseeded(0)))
        hung += not _comes_back(plays[-1])
        advance()
        if hung == MOST_HUNG:
            break
    calm = [play for play in plays if _comes_back(play) and all(fault.call != "script" for fault in play.faults)]

    async def replayed(numbers: int) -> list[Play]:
        return [await _again(stage, play, reseeded(numbers), advance) for play in calm]

    again = await replayed(0)
    before = left_open.opened()
    other_numbers = await replayed(1)
    left = left_open.more_than(before) if calm == plays else Counter[str]()
    gate = in_turns()
    together = await asyncio.gather(*(_again(stage, play, reseeded(0), advance, gate) for play in calm))
    strange = [play async for play in _odd(stage, tasks[: 0 if hung else ODD_TASKS], advance)]
    in_processes: list[Fresh] | str = "left out, as was asked for"
    if stage.limits.processes:
        in_processes = await asyncio.to_thread(ask, stage.subject, stage.profiles, calm, stage.limits)
    return Evidence(
        stage.subject,
        stage.limits,
        loaded,
        stage.profiles,
        plays,
        calm,
        again,
        other_numbers,
        together,
        strange,
        in_processes,
        list(outside),
        left,
        any(scripts.values()),
        stage.most_steps,
        await writers(stage, calm),
    )


async def _again(stage: Stage, play: Play, before: Before, advance: Advance, gate: Gate = nullcontext) -> Play:
    made = await stage.play(play.task, play.split, play.seed, play.player, repeating(play.said), before, gate)
    advance()
    return made


def _chosen(loaded: Loaded, limits: Limits) -> list[tuple[Split, Task]]:
    """Return tasks from each split, evenly spaced."""
    found: list[tuple[Split, Task]] = []
    for split, tasks in loaded.tasks.items():
        most = limits.tasks if split == "train" else limits.held_out_tasks
        places = sorted({round(at) for at in np.linspace(0, len(tasks) - 1, min(most, len(tasks)))})
        found += [(split, tasks[place]) for place in places]
    return found


def _comes_back(play: Play) -> bool:
    return all(fault.wrong != "hung" for fault in play.faults)


def _seed(task: Task) -> int:
    return derive_seed(0, "vetting", task.id)


def _players(stage: Stage, task: Task, scripts: Mapping[float, Script | None]) -> Iterator[tuple[str, Player]]:
    """Yield the players for a task, by name."""
    seed = _seed(task)
    tools = tuple(stage.tools.tools) if stage.tools else ()
    for skill, script in scripts.items():
        if script is not None:
            yield (
                f"its script of skill {skill:g}",
                Performer(script, stage.subject, tools, task, seed),
            )
    yield "somebody who chooses and says anything", wandering(seed)
    yield "somebody who says 'x'", saying(["x"])
    for first in range(FEW_VALUES):
        yield f"somebody who knows the task's data, from {first} on", knowing(task, first)


async def _odd(stage: Stage, tasks: Sequence[tuple[Split, Task]], advance: Advance) -> AsyncIterator[Play]:
    """Yield episodes with outputs that a model should not give."""
    cast: dict[str, Player] = {name: saying([text]) for name, text in ODD.items()}
    cast["a team that says nothing"] = silent
    for call in [call for tool in (stage.tools.tools if stage.tools else ()) for call in odd.calls_of(tool)]:
        cast[f"somebody who calls {call.name} with {call.arguments:.40}"] = _using(call)
    for split, task in tasks:
        for name, player in cast.items():
            yield await stage.play(task, split, _seed(task), name, player, reseeded(0))
            advance()
        yield await stage.play(task, split, _seed(task), "a team that leaves at once", silent, most_steps=0)


def _using(call: ToolCall) -> Player:
    async def play(moment: Moment) -> dict[str, Said]:
        made = await moment.call(call) if moment.step == 0 else None
        return {role: Said("x", (made,) if made else ()) for role in moment.roles}

    return play


@contextmanager
def _shared_numbers_kept() -> Iterator[None]:
    """Restore the global random generators at the end."""
    kept, arrays = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(kept)
        np.random.set_state(arrays)
