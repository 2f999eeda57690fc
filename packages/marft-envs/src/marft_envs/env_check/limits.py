"""Default limits for environment checks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Amount of play, and thresholds for findings. Times are wall-clock seconds."""

    tasks: int = 4  # number of training tasks to play
    held_out_tasks: int = 1  # number of validation tasks, and of test tasks, to play
    most_steps: int = 200  # maximum steps per episode, unless the recipe sets its own
    middle_seconds: float = 0.1  # maximum median time of a kind of call
    longest_seconds: float = 1.0  # maximum time of any call
    load_seconds: float = 60.0  # maximum time to load the tasks of all splits
    hold_seconds: float = 0.01  # maximum time that a call blocks its thread without awaiting
    call_seconds: float = 20.0  # timeout of a call
    shown_characters: int = 20_000  # maximum characters of an observation, as a single agent sees it
    alike: float = 0.8  # minimum Jaccard similarity of near-duplicates, without common shingles
    compared: int = 2000  # maximum tasks per split in the near-duplicate search
    processes: bool = True  # True to repeat episodes in new processes
