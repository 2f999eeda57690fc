"""A run on many GPUs as events: engines that write, episodes that wait for tools, a learner, weights published.

Time is simulated, randomness seeded. What it adds to a plan's arithmetic is what averages hide: long episodes that
others wait for, engines that are half empty, and how far a lag makes up for both.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count

import numpy as np

Rate = Callable[[int], float]  # rows that an engine has → seconds of a token of each
CAME, DONE = 0, 1


@dataclass(frozen=True, slots=True)
class Turn:
    """One action of an episode: tokens that are written, and seconds of tools or environment after it."""

    tokens: float
    wait: float


@dataclass(frozen=True, slots=True)
class Scene:
    """What is simulated.

    ``draw`` makes an episode's turns. A group is the attempts at a task, and is learned from whole, in the order that
    groups were started in. Groups are started while no more than ``(version + lag + 1) · groups_per_step`` were, so
    that none is learned from that is older than ``lag`` steps.
    """

    engines: int
    slots: int  # rows of an engine
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
    """What came of it: seconds by use, and the age of what was learned from."""

    seconds: float = 0.0
    writing: float = 0.0  # engine-seconds with any row
    rows: float = 0.0  # row-seconds
    learning: float = 0.0
    started: int = 0  # groups
    learned: int = 0
    finished: int = 0
    ages: list[int] = field(default_factory=list)  # steps between a group's first token and its update
    ends: list[float] = field(default_factory=list)  # when each step's update was over

    def engines_busy(self, scene: Scene) -> float:
        """The share of time in which an engine has any row."""
        return self.writing / (self.seconds * scene.engines) if self.seconds else 0.0

    def slots_busy(self, scene: Scene) -> float:
        """The share of an engine's rows that are in use."""
        return self.rows / (self.seconds * scene.engines * scene.slots) if self.seconds else 0.0

    def learner_busy(self) -> float:
        return self.learning / self.seconds if self.seconds else 0.0


@dataclass(slots=True)
class _Episode:
    group: int
    turns: Sequence[Turn]
    at: int = 0


@dataclass(slots=True)
class _Engine:
    """Rows that are written at the same pace, which depends on how many they are: so a row is known by the amount of
    writing per row at which it will be done."""

    written: float = 0.0  # tokens that each row so far could have had
    since: float = 0.0
    waiting: deque[_Episode] = field(default_factory=deque)
    running: list[tuple[float, int, _Episode]] = field(default_factory=list)  # by when it is done
    stamp: int = 0  # of the last event that was announced


class _Run:
    def __init__(self, scene: Scene) -> None:
        self.scene, self.out = scene, Outcome()
        self.random = np.random.default_rng(scene.seed)
        self.engines = [_Engine() for _ in range(scene.engines)]
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.order = count()
        self.now = 0.0
        self.version = 0
        self.born: dict[int, int] = {}  # version at which each group began
        self.open: dict[int, int] = {}  # episodes of each group that are not over
        self.ready: set[int] = set()
        self.busy = False  # the learner

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
        """The episode's next action goes to the engine with the fewest rows."""
        engine = min(self.engines, key=lambda e: len(e.running) + len(e.waiting))
        self.settle(engine)
        engine.waiting.append(episode)
        self.fill(engine)

    def settle(self, engine: _Engine) -> None:
        """Bring an engine's writing up to now."""
        rows, passed = len(engine.running), self.now - engine.since
        if rows:
            engine.written += passed / self.scene.seconds_per_token(rows)
            self.out.writing += passed
            self.out.rows += passed * rows
        engine.since = self.now

    def fill(self, engine: _Engine) -> None:
        """Rows into free places, and when the next one will be done."""
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
        """The first row of an engine is done, unless its rows have changed since that was announced."""
        if stamp != engine.stamp:
            return
        self.settle(engine)
        done, _, episode = heapq.heappop(engine.running)
        engine.written = max(engine.written, done)  # what rounding has left
        self.fill(engine)
        wait = episode.turns[episode.at].wait
        self.at(self.now + wait, lambda: self.turned(episode))

    def turned(self, episode: _Episode) -> None:
        """A turn is over, tools included."""
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
        """A step begins as soon as it has its groups."""
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
    """Play a scene to the end of its last step."""
    run = _Run(scene)
    run.start_groups()
    while run.version < scene.steps:
        run.now, _, act = heapq.heappop(run.events)
        act()
    run.out.seconds = run.now
    return run.out
