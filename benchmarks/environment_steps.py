"""Measure each world's steps per second, played by its script without a model, and how long it blocks the event loop.

    python benchmarks/environment_steps.py
    python benchmarks/environment_steps.py --worlds relay shop --episodes 500

*Alone* counts steps over the seconds in sessions. *Played* covers the whole in one process: prompts are rendered,
actions recorded, rewards composed. *Held* is the longest stretch of a session's reset or step without an await. For
it, the garbage collector is off, and episodes are played one at a time, so that none waits for another's thread.
*Drawn* counts tasks per second. Writes results/environment_steps.json and .md.
"""

from __future__ import annotations

import argparse
import gc
import inspect
import json
import time
from collections.abc import Awaitable, Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import machine

from marft.common.packages import bundled_plugins
from marft.common.types import Task
from marft.config import load_recipe
from marft.config.bundled import bundled_names
from marft.config.interfaces.environment import Environment, Split
from marft.config.models import ModelSettings
from marft.models.tokenizer_format import load_format
from marft_lab.scripted_team import ScriptedTeam

WIDE = 1_000_000  # context in tokens, so that no prompt is truncated


@dataclass
class Stretches:
    """Seconds of each stretch in which a session blocked its thread."""

    seconds: list[float] = field(default_factory=list)
    steps: int = 0

    def timed(self, method: Callable[..., Awaitable[object]], counts: bool) -> Callable[..., Awaitable[object]]:
        """Return the method with timed stretches."""

        async def call(*arguments: object) -> object:
            self.steps += counts
            return await _Timed(method(*arguments), self.seconds)

        return call


class _Timed:
    def __init__(self, inner: Any, seconds: list[float]) -> None:
        self.inner = inner if inspect.iscoroutine(inner) else inner.__await__()
        self.seconds = seconds

    def __await__(self) -> Generator[Any, Any, object]:
        sent: Any = None
        while True:
            began = time.perf_counter()
            try:
                waited = self.inner.send(sent)
            except StopIteration as ended:
                return ended.value
            finally:
                self.seconds.append(time.perf_counter() - began)
            sent = yield waited


class Timing(Environment):
    """Environment with timed sessions."""

    _inner: Environment
    _stretches: Stretches

    def __init__(self, inner: Environment, stretches: Stretches) -> None:
        super().__init__()
        self._inner, self._stretches = inner, stretches

    def tasks(self, split: Split) -> Sequence[Task]:
        """Return the tasks of the timed environment."""
        return self._inner.tasks(split)

    def start(self, task: Task, seed: int) -> Any:
        """Return a timed session."""
        session: Any = self._inner.start(task, seed)
        for name in ("reset", "step"):
            setattr(session, name, self._stretches.timed(getattr(session, name), name == "step"))
        return session


def measured(recipe: str, episodes: int) -> dict[str, float]:
    """Play one world, and return its rates and the longest block."""
    run = load_recipe(recipe)
    environment: Any = run.environment
    began = time.perf_counter()
    tasks = list(environment.tasks("train"))
    drawn = (len(tasks) + 2 * len(environment.tasks("test"))) / (time.perf_counter() - began)
    form = replace(load_format(ModelSettings(path="tiny-tools")), context=WIDE)
    stretches, by_itself = Stretches(), Stretches()
    with ScriptedTeam(run, environment.script(), dict.fromkeys(run.models, form)) as team:
        team.wrap_environment(lambda inner: Timing(inner, stretches))
        gc.collect()
        gc.disable()
        began = time.perf_counter()
        played = list(islice(team.play(tasks, samples=1 + episodes // len(tasks)), episodes))
        seconds, steps, within = time.perf_counter() - began, stretches.steps, sum(stretches.seconds)
        team.wrap_environment(lambda inner: Timing(inner, by_itself))
        for task in tasks[: episodes // 10]:
            list(team.play([task]))
        gc.enable()
    return {
        "drawn": drawn,
        "alone": steps / within,
        "played": steps / seconds,
        "held": 1000 * max(by_itself.seconds),
        "steps": steps / len(played),
        "solved": sum(bool(one.success) for one in played) / len(played),
    }


def worlds() -> list[str]:
    """Return the bundled recipes named after their environment, if it has a script."""
    named = [name for name in bundled_names() if name in bundled_plugins("environments")]
    found: dict[str, Any] = {name: load_recipe(name).environment for name in named}
    return [name for name, environment in found.items() if environment.script() is not None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", nargs="+", choices=worlds(), default=worlds())
    parser.add_argument("--episodes", type=int, default=500)
    parser.add_argument("--results", type=Path, default=machine.RESULTS)
    arguments = parser.parse_args()
    rows = {world: measured(world, arguments.episodes) for world in arguments.worlds}
    heads = ["world", "tasks drawn a second", "steps a second, alone", "played", "held at most, ms", "steps", "solved"]
    lines = [f"| {' | '.join(heads)} |", f"| --- |{' ---: |' * 6}"]
    for world, row in rows.items():
        cells = [f"{row[name]:,.0f}" for name in ("drawn", "alone", "played")]
        cells += [f"{row['held']:.1f}", f"{row['steps']:.1f}", f"{row['solved']:.0%}"]
        lines.append(f"| {world} | {' | '.join(cells)} |")
    whole = {"machine": machine.describe(), "episodes": arguments.episodes, "worlds": rows}
    (arguments.results / "environment_steps.json").write_text(json.dumps(whole, indent=2) + "\n", encoding="utf-8")
    (arguments.results / "environment_steps.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
