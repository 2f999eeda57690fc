"""What an environment is held to where nothing else is said."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """How much is played, and from where on something is too much. Seconds are of the wall."""

    tasks: int = 4  # of the training split that are played
    held_out_tasks: int = 1  # of validation and test each
    most_steps: int = 200  # of an episode; a recipe's own limit stands in its place
    middle_seconds: float = 0.1  # of half of all calls of one kind
    longest_seconds: float = 1.0  # of any call
    load_seconds: float = 60.0  # for the tasks of all splits
    hold_seconds: float = 0.01  # that a call keeps its thread without awaiting anything
    call_seconds: float = 20.0  # after which a call is given up
    shown_characters: int = 20_000  # of an observation, as one agent sees it
    alike: float = 0.8  # share of what two tasks have in common, beyond what most tasks have
    compared: int = 2000  # tasks of each split that are looked at for likeness
    processes: bool = True  # whether fresh processes are asked, too
