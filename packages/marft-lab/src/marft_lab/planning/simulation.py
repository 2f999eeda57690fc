"""Discrete-event simulation of a run on many GPUs: engines, tool waits, a learner and weight updates.

Time is simulated, and randomness is seeded. The simulation shows effects hidden by a plan's averages: long episodes
that block others, half-empty engines, and the effect of a lag on both.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count

import numpy as np

Rate = Callable[[int], float]  # function from an engine's row count to seconds per token of each row
CAME, DONE = 0, 1


@dataclass(frozen=True, slots=True)
class Turn:
    """Turn of an episode: sampled tokens, and seconds for tools or environment afterwards."""

    tokens: float
    wait: float


@dataclass(frozen=True, slots=True)
class Scene:
    """Configuration of a simulation.

    A group contains all attempts at a task. Whole groups are trained in the order of their starts. A group may start
    while fewer than ``(version + lag + 1) · groups_per_step`` groups have started. So training data are never older
    than ``lag`` steps.

    Args:
        engines: number of engines.
        slots: maximum concurrent rows per engine.
        seconds_per_token: seconds per token as a function of an engine's row count.
        draw: function that samples the turns of an episode.
        groups_per_step: groups per training step.
        episodes_per_group: attempts per task.
        learning_seconds: seconds of an update.
        publishing_seconds: seconds of a weight update.
        lag: maximum age of training data, in steps.
        steps: number of training steps.
        seed: seed of the simulation.
    """

    engines: int
    slots: int  # maximum rows of an engine
    seconds_per_token: Rate
    draw: Callable[[np.random.Generator], Sequence[Turn]]
    groups_per_step: int
    episodes_per_group: int
    learning_seconds: float
    publishing_seconds: float = 0.0
    lag: int = 0
    steps: int = 10
    seed: int = 0


@dataclass(slots=True)
class Outcome:
    """Result of a simulation: time by use, in seconds, and the age of the training data."""

    seconds: float = 0.0
    writing: float = 0.0  # engine-seconds with at least one row
    rows: float = 0.0  # row-seconds
    learning: float = 0.0
    started: int = 0  # number of groups
    learned: int = 0
    finished: int = 0
    ages: list[int] = field(default_factory=list)  # steps between a group's start and its update
    ends: list[float] = field(default_factory=list)  # end time of each step's update, in seconds

    def engines_busy(self, scene: Scene) -> float:
        """Return the fraction of time in which an engine has at least one row."""
        return self.writing / (self.seconds * scene.engines) if self.seconds else 0.0

    def slots_busy(self, scene: Scene) -> float:
        """Return the fraction of the engines' rows in use."""
        return self.rows / (self.seconds * scene.engines * scene.slots) if self.seconds else 0.0

    def learner_busy(self) -> float:
        """Return the fraction of time in which the learner is busy."""
        return self.learning / self.seconds if self.seconds else 0.0


@dataclass(slots=True)
class _Episode:
    group: int
    turns: Sequence[Turn]
    at: int = 0


@dataclass(slots=True)
class _Engine:
    """Engine whose rows advance at the same pace; the pace depends on the row count.

    Each row is keyed by the cumulative tokens per row at its end.
    """

    written: float = 0.0  # cumulative tokens per row so far
    since: float = 0.0
    waiting: deque[_Episode] = field(default_factory=deque)
    running: list[tuple[float, int, _Episode]] = field(default_factory=list)  # ordered by end
    stamp: int = 0  # number of the last scheduled event


class _Run:
    def __init__(self, scene: Scene) -> None:
        self.scene, self.out = scene, Outcome()
        self.random = np.random.default_rng(scene.seed)
        self.engines = [_Engine() for _ in range(scene.engines)]
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.order = count()
        self.now = 0.0
        self.version = 0
        self.born: dict[int, int] = {}  # version at the start of each group
        self.open: dict[int, int] = {}  # unfinished episodes of each group
        self.ready: set[int] = set()
        self.busy = False  # True while the learner is busy

    def at(self, time: float, act: Callable[[], None]) -> None:
        heapq.heappush(self.events, (time, next(self.order), act))

    def start_groups(self) -> None:
        scene = self.scene
        most = scene.groups_per_step * (self.version + scene.lag + 1)
        while self.out.started < most:
            group = self.out.started
            self.out.started += 1
            self.born[group], self.open[group] = self.version, scene.episodes_per_group
            for _ in range(scene.episodes_per_group):
                self.ask(_Episode(group, scene.draw(self.random)))

    def ask(self, episode: _Episode) -> None:
        """Send the next action of an episode to the engine with the fewest rows."""
        engine = min(self.engines, key=lambda e: len(e.running) + len(e.waiting))
        self.settle(engine)
        engine.waiting.append(episode)
        self.fill(engine)

    def settle(self, engine: _Engine) -> None:
        """Advance an engine to the current time."""
        rows, passed = len(engine.running), self.now - engine.since
        if rows:
            engine.written += passed / self.scene.seconds_per_token(rows)
            self.out.writing += passed
            self.out.rows += passed * rows
        engine.since = self.now

    def fill(self, engine: _Engine) -> None:
        """Fill free slots with waiting rows, and schedule the end of the next row."""
        while engine.waiting and len(engine.running) < self.scene.slots:
            episode = engine.waiting.popleft()
            done = engine.written + episode.turns[episode.at].tokens
            heapq.heappush(engine.running, (done, next(self.order), episode))
        engine.stamp += 1
        if engine.running:
            left = max(0.0, engine.running[0][0] - engine.written)
            stamp = engine.stamp
            self.at(
                self.now + left * self.scene.seconds_per_token(len(engine.running)),
                lambda: self.written(engine, stamp),
            )

    def written(self, engine: _Engine, stamp: int) -> None:
        """Finish an engine's first row, unless its rows have changed since the event was scheduled."""
        if stamp != engine.stamp:
            return
        self.settle(engine)
        done, _, episode = heapq.heappop(engine.running)
        engine.written = max(engine.written, done)  # correct rounding errors
        self.fill(engine)
        wait = episode.turns[episode.at].wait
        self.at(self.now + wait, lambda: self.turned(episode))

    def turned(self, episode: _Episode) -> None:
        """Finish a turn with its tools."""
        episode.at += 1
        if episode.at < len(episode.turns):
            self.ask(episode)
            return
        self.open[episode.group] -= 1
        if not self.open[episode.group]:
            self.out.finished += 1
            self.ready.add(episode.group)
            self.learn()

    def learn(self) -> None:
        """Start a training step when all its groups are ready."""
        scene = self.scene
        mine = range(self.out.learned, self.out.learned + scene.groups_per_step)
        if self.busy or not self.ready.issuperset(mine):
            return
        self.busy = True
        self.ready.difference_update(mine)
        self.out.ages += [self.version - self.born.pop(group) for group in mine]
        self.out.learned += scene.groups_per_step
        self.out.learning += scene.learning_seconds
        self.at(self.now + scene.learning_seconds, self.learned)

    def learned(self) -> None:
        self.at(self.now + self.scene.publishing_seconds, self.published)

    def published(self) -> None:
        self.busy = False
        self.version += 1
        self.out.ends.append(self.now)
        if self.version < self.scene.steps:
            self.start_groups()
            self.learn()


def simulate(scene: Scene) -> Outcome:
    """Run a simulation to the end of its last step."""
    run = _Run(scene)
    run.start_groups()
    while run.version < scene.steps:
        run.now, _, act = heapq.heappop(run.events)
        act()
    run.out.seconds = run.now
    return run.out
