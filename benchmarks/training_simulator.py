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


@dataclass(frozen=True, slots=True)
class Turn:
    """Turn of an episode: sampled tokens, and seconds for tools or environment afterwards."""

    tokens: float
    wait: float


@dataclass(frozen=True, slots=True)
class SimulationConfig:
    """Configuration of a simulation.

    A group contains all attempts at a task. Whole groups are trained in the order of their starts. A group may start
    while fewer than ``(version + lag + 1) · groups_per_step`` groups have started. So training data are never older
    than ``lag`` steps.

    Args:
        engines: number of engines.
        slots: maximum concurrent rows per engine.
        seconds_per_token: seconds per token as a function of an engine's row count.
        sample_turns: function that samples the turns of an episode.
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
    sample_turns: Callable[[np.random.Generator], Sequence[Turn]]
    groups_per_step: int
    episodes_per_group: int
    learning_seconds: float
    publishing_seconds: float = 0.0
    lag: int = 0
    steps: int = 10
    seed: int = 0


@dataclass(slots=True)
class SimulationResult:
    """Result of a simulation: time by use, in seconds, and the age of the training data."""

    seconds: float = 0.0
    sampling: float = 0.0  # engine-seconds with at least one row
    rows: float = 0.0  # row-seconds
    learning: float = 0.0
    started: int = 0  # number of groups
    trained: int = 0
    finished: int = 0
    ages: list[int] = field(default_factory=list)  # steps between a group's start and its update
    ends: list[float] = field(default_factory=list)  # end time of each step's update, in seconds

    def engine_utilization(self, config: SimulationConfig) -> float:
        """Return the fraction of time in which an engine has at least one row."""
        return self.sampling / (self.seconds * config.engines) if self.seconds else 0.0

    def slot_utilization(self, config: SimulationConfig) -> float:
        """Return the fraction of the engines' rows in use."""
        return self.rows / (self.seconds * config.engines * config.slots) if self.seconds else 0.0

    def learner_utilization(self) -> float:
        """Return the fraction of time in which the learner is busy."""
        return self.learning / self.seconds if self.seconds else 0.0


@dataclass(slots=True)
class _Episode:
    group: int
    turns: Sequence[Turn]
    turn_index: int = 0


@dataclass(slots=True)
class _Engine:
    """Engine whose rows advance at the same pace; the pace depends on the row count.

    Each row is keyed by the cumulative tokens per row at its end.
    """

    written: float = 0.0  # cumulative tokens per row so far
    updated_at: float = 0.0
    waiting: deque[_Episode] = field(default_factory=deque)
    running: list[tuple[float, int, _Episode]] = field(default_factory=list)  # ordered by end
    stamp: int = 0  # number of the last scheduled event


class _Simulator:
    def __init__(self, config: SimulationConfig) -> None:
        self.config, self.result = config, SimulationResult()
        self.random = np.random.default_rng(config.seed)
        self.engines = [_Engine() for _ in range(config.engines)]
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.order = count()
        self.time = 0.0
        self.version = 0
        self.start_versions: dict[int, int] = {}  # version at the start of each group
        self.unfinished: dict[int, int] = {}  # unfinished episodes of each group
        self.ready: set[int] = set()
        self.busy = False  # True while the learner is busy

    def schedule(self, time: float, act: Callable[[], None]) -> None:
        heapq.heappush(self.events, (time, next(self.order), act))

    def start_groups(self) -> None:
        config = self.config
        max_groups = config.groups_per_step * (self.version + config.lag + 1)
        while self.result.started < max_groups:
            group = self.result.started
            self.result.started += 1
            self.start_versions[group], self.unfinished[group] = self.version, config.episodes_per_group
            for _ in range(config.episodes_per_group):
                self.submit_turn(_Episode(group, config.sample_turns(self.random)))

    def submit_turn(self, episode: _Episode) -> None:
        """Send the next action of an episode to the engine with the fewest rows."""
        engine = min(self.engines, key=lambda e: len(e.running) + len(e.waiting))
        self.advance_engine(engine)
        engine.waiting.append(episode)
        self.fill_slots(engine)

    def advance_engine(self, engine: _Engine) -> None:
        """Advance an engine to the current time."""
        rows, elapsed = len(engine.running), self.time - engine.updated_at
        if rows:
            engine.written += elapsed / self.config.seconds_per_token(rows)
            self.result.sampling += elapsed
            self.result.rows += elapsed * rows
        engine.updated_at = self.time

    def fill_slots(self, engine: _Engine) -> None:
        """Fill free slots with waiting rows, and schedule the end of the next row."""
        while engine.waiting and len(engine.running) < self.config.slots:
            episode = engine.waiting.popleft()
            end_tokens = engine.written + episode.turns[episode.turn_index].tokens
            heapq.heappush(engine.running, (end_tokens, next(self.order), episode))
        engine.stamp += 1
        if engine.running:
            remaining = max(0.0, engine.running[0][0] - engine.written)
            stamp = engine.stamp
            self.schedule(
                self.time + remaining * self.config.seconds_per_token(len(engine.running)),
                lambda: self.finish_row(engine, stamp),
            )

    def finish_row(self, engine: _Engine, stamp: int) -> None:
        """Finish an engine's first row, unless its rows have changed since the event was scheduled."""
        if stamp != engine.stamp:
            return
        self.advance_engine(engine)
        end_tokens, _, episode = heapq.heappop(engine.running)
        engine.written = max(engine.written, end_tokens)  # correct rounding errors
        self.fill_slots(engine)
        wait = episode.turns[episode.turn_index].wait
        self.schedule(self.time + wait, lambda: self.finish_turn(episode))

    def finish_turn(self, episode: _Episode) -> None:
        """Finish a turn with its tools."""
        episode.turn_index += 1
        if episode.turn_index < len(episode.turns):
            self.submit_turn(episode)
            return
        self.unfinished[episode.group] -= 1
        if not self.unfinished[episode.group]:
            self.result.finished += 1
            self.ready.add(episode.group)
            self.start_step()

    def start_step(self) -> None:
        """Start a training step when all its groups are ready."""
        config = self.config
        step_groups = range(self.result.trained, self.result.trained + config.groups_per_step)
        if self.busy or not self.ready.issuperset(step_groups):
            return
        self.busy = True
        self.ready.difference_update(step_groups)
        self.result.ages += [self.version - self.start_versions.pop(group) for group in step_groups]
        self.result.trained += config.groups_per_step
        self.result.learning += config.learning_seconds
        self.schedule(self.time + config.learning_seconds, self.finish_step)

    def finish_step(self) -> None:
        self.schedule(self.time + self.config.publishing_seconds, self.finish_publishing)

    def finish_publishing(self) -> None:
        self.busy = False
        self.version += 1
        self.result.ends.append(self.time)
        if self.version < self.config.steps:
            self.start_groups()
            self.start_step()


def simulate(config: SimulationConfig) -> SimulationResult:
    """Run a simulation to the end of its last step."""
    run = _Simulator(config)
    run.start_groups()
    while run.version < config.steps:
        run.time, _, act = heapq.heappop(run.events)
        act()
    run.result.seconds = run.time
    return run.result
