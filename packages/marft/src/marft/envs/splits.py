"""Disjoint splits by content: a question's own text determines its split permanently.

Two questions with the same words are in the same split, whatever their seed, index or file. A generator that
repeats itself therefore cannot leak a held-out question into training.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from marft.common.types import Task
from marft.config.interfaces.environment import Split

DataSplit = Literal["train", "validation", "test", "demonstrations"]

HELD_OUT_BUCKETS = {"validation": (0, 10), "test": (10, 20)}  # percentiles of all questions


def assign_split(question: str) -> Split:
    """Return a question's split: 10 % validation, 10 % test, the rest training. Case and spacing are ignored.

    >>> assign_split("What is  2 + 3?") == assign_split("what is 2 + 3?")
    True
    """
    bucket = _hash_question(question) % 100
    for split, (low, high) in HELD_OUT_BUCKETS.items():
        if low <= bucket < high:
            return "validation" if split == "validation" else "test"
    return "train"


def assign_data_split(content: str) -> DataSplit:
    """Return a generated task's split, as :func:`assign_split`, with a fifth reserved for demonstrations.

    >>> assign_data_split("maze 17") == assign_data_split("Maze  17")
    True
    """
    split = assign_split(content)
    return "demonstrations" if split == "train" and _hash_question(content) // 100 % 4 == 0 else split


def assign_split_by_share(question: str, validation: float, test: float) -> Split:
    """Return a question's split for given fractions of validation and test, each from 0 to 1.

    >>> assign_split_by_share("What is 2 + 3?", validation=0.0, test=1.0)
    'test'
    """
    point = _hash_question(question) / 2**64
    if point < validation:
        return "validation"
    return "test" if point < validation + test else "train"


def fill_splits(tasks: Iterable[tuple[DataSplit, Task]], wanted: Mapping[Split, int]) -> dict[Split, list[Task]]:
    """Return the first tasks of each split, as many as ``wanted``; tasks for demonstrations are skipped."""
    filled: dict[Split, list[Task]] = {split: [] for split in wanted}
    for split, task in tasks:
        if split != "demonstrations" and len(filled[split]) < wanted[split]:
            filled[split].append(task)
        if all(len(filled[name]) == count for name, count in wanted.items()):
            break
    return filled


def split_beside_tests(tests: Sequence[Task] | None, tasks: Iterable[Task], limit: int) -> dict[Split, list[Task]]:
    """Return tasks by split, without repeated prompts and without the questions of ``tests``.

    Args:
        tests: tasks of the test split; None takes a part of ``tasks`` instead.
        tasks: tasks to split by their prompts.
        limit: maximum number of tasks in a split; 0 for all.
    """
    tasks_by_split: dict[Split, list[Task]] = {"train": [], "validation": [], "test": [*(tests or ())]}
    test_questions, seen = {normalize_question(task.prompt) for task in tests or ()}, set[str]()
    for task in tasks:
        if normalize_question(task.prompt) not in test_questions and task.prompt not in seen:
            seen.add(task.prompt)
            split = assign_split(task.prompt)
            tasks_by_split["train" if tests is not None and split == "test" else split].append(task)
    return {split: tasks[: limit or None] for split, tasks in tasks_by_split.items()}


def split_small_set(questions: Iterable[str]) -> dict[str, Split]:
    """Return the splits for a small set of questions: a fifth test, a fifth validation, the rest training.

    With few questions, random assignment could leave a split empty. Here, the questions' own texts determine only
    the order.

    >>> sorted(split_small_set(["a", "b", "c", "d", "e"]).values())
    ['test', 'train', 'train', 'train', 'validation']
    """
    ordered = sorted(set(questions), key=lambda question: (_hash_question(question), question))
    part_size = -(-len(ordered) // 5)
    shares: tuple[tuple[Split, Sequence[str]], ...] = (
        ("test", ordered[:part_size]),
        ("validation", ordered[part_size : 2 * part_size]),
        ("train", ordered[2 * part_size :]),
    )
    return {question: split for split, part in shares for question in part}


def normalize_question(question: str) -> str:
    """Return a question without case and spacing, the form that determines its split.

    >>> normalize_question("What is  2 + 3?")
    'what is 2 + 3?'
    """
    return " ".join(question.split()).casefold()


def _hash_question(question: str) -> int:
    plain = normalize_question(question).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(plain, digest_size=8).digest(), "big")
