"""Checks of tasks, as pure functions on the evidence: usable, plain and stable; no leakage into training."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from marft.common.error_origin import describe_error
from marft.common.types import Task
from marft.config.interfaces.environment import Split
from marft.config.settings import MAX_DEPTH
from marft_envs.env_check.collection import CheckData
from marft_envs.env_check.loading import SPLITS, to_json_types
from marft_envs.env_check.report import Finding, summarize
from marft_envs.env_check.similarity import SimilarityIndex, normalize, task_text

MAX_DATA = 200_000  # maximum characters of a task's data: it is stored with every episode


def check_readable(data: CheckData) -> Iterator[Finding]:
    """Check that tasks load, and that each has a unique id and a prompt."""
    # errors of built-in environments include the remedy
    is_bundled = type(data.target.environment).__module__.startswith("marft.envs.")
    hint = "" if is_bundled else "tasks(split) returns a list of marft.common.types.Task for each of the three splits"
    for problem in dict.fromkeys(data.loaded.problems.values()):
        yield Finding("failure", problem, hint)
    tasks = data.loaded.all_tasks
    empty = [task.id for task in tasks if not task.prompt.strip()]
    if empty:
        yield Finding("failure", f"{summarize(empty)}: the prompt is empty", "say in the prompt what is to be done")
    seen, duplicates = set[str](), list[str]()
    for task in tasks:
        duplicates += [task.id] if task.id in seen else []
        seen.add(task.id)
    if duplicates:
        yield Finding(
            "failure", f"two splits have tasks with the id {summarize(duplicates)}", "name the split in the id"
        )


def check_stable(data: CheckData) -> Iterator[Finding]:
    """Check that repeated calls return the same tasks per split."""
    if data.loaded.changed:
        yield Finding(
            "failure",
            f"tasks({data.loaded.changed[0]!r}) gives other tasks the second time",
            "draw them from a random.Random of the environment's own seed, once, and keep them",
        )


def check_portable(data: CheckData) -> Iterator[Finding]:
    """Check that data is plain, for storage with episodes and transfer to other processes."""
    tasks = data.loaded.all_tasks
    hint = "keep texts, numbers, lists and dictionaries in Task.data; what is made of them belongs to the session"
    not_plain_tasks = [(task, problem) for task in tasks if (problem := find_not_plain(task.data))]
    if not_plain_tasks:
        yield Finding(
            "failure",
            f"the data of {summarize([task.id for task, _ in not_plain_tasks])} is not plain: {not_plain_tasks[0][1]}",
            hint,
        )
    not_pickled = [
        (task, problem) for task in tasks[:1000] if not not_plain_tasks and (problem := _pickle_problem(task))
    ]
    if not_pickled:
        yield Finding(
            "failure", f"{summarize([task.id for task, _ in not_pickled])} cannot be pickled: {not_pickled[0][1]}", hint
        )
    large = [
        task.id for task in tasks[:1000] if not not_plain_tasks and len(json.dumps(to_json_types(task.data))) > MAX_DATA
    ]
    if large:
        yield Finding(
            "warning",
            f"the data of {summarize(large)} has over {MAX_DATA:,} characters",
            "it is stored with every episode; keep less",
        )


def find_not_plain(value: object, path: str = "data", depth: int = 0) -> str:
    """Return the reason if a value is not plain; "" if it is.

    >>> find_not_plain({"words": ["a", 1]}), find_not_plain({"words": {"a"}})
    ('', "data['words'] is a set")
    """
    if value is None or type(value) in (str, bool, int, float):
        return ""
    if depth > MAX_DEPTH:
        return f"more than {MAX_DEPTH} tables and lists are inside each other"
    if isinstance(value, dict):
        bad_keys = [key for key in value if not isinstance(key, str)]
        if bad_keys:
            return f"{path} has the key {bad_keys[0]!r}, which is no text"
        return next(
            (
                problem
                for key, inner in value.items()
                if (problem := find_not_plain(inner, f"{path}[{key!r}]", depth + 1))
            ),
            "",
        )
    if isinstance(value, Sequence) and isinstance(value, list | tuple):
        return next(
            (
                problem
                for at, inner in enumerate(value)
                if (problem := find_not_plain(inner, f"{path}[{at}]", depth + 1))
            ),
            "",
        )
    return f"{path} is a {type(value).__name__}"


def _pickle_problem(task: Task) -> str:
    try:
        return "" if pickle.loads(pickle.dumps(task)) == task else "what comes back is another one"
    except (pickle.PickleError, TypeError, AttributeError, ValueError) as error:
        return describe_error(error)


def check_overlap(data: CheckData) -> Iterator[Finding]:
    """Check that splits share no task; ids, case and spacing are ignored."""
    hint = (
        "let each task's own content say which split it is in (marft_envs.generated.GeneratedEnvironment, "
        "marft.envs.splits.assign_split)"
    )
    tasks, full_texts = data.loaded.tasks, _full_texts(data.loaded.tasks)
    duplicates = _duplicates(tasks, full_texts)
    if duplicates:
        yield Finding("failure", f"{len(duplicates)} tasks stand in two splits: {summarize(duplicates)}", hint)
        return
    prompts = identifying_texts(tasks)
    same_prompts = _duplicates(tasks, prompts) if prompts != full_texts else []
    if same_prompts and data.target.environment.one_step:
        yield Finding("failure", f"{len(same_prompts)} questions stand in two splits: {summarize(same_prompts)}", hint)
    elif same_prompts:
        yield Finding(
            "warning",
            f"{len(same_prompts)} prompts stand in two splits, with other data: {summarize(same_prompts)}",
            f"where what is seen later is not another task either, {hint}",
        )


def _duplicates(tasks: Mapping[Split, Sequence[Task]], texts: Mapping[Split, Sequence[str]]) -> list[str]:
    """Return pairs of tasks from two splits with equal text."""
    owners: dict[str, tuple[Split, str]] = {}
    duplicates = []
    for split in SPLITS:
        for task, text in zip(tasks.get(split, ()), texts.get(split, ()), strict=True):
            first_split, owner = owners.setdefault(text, (split, task.id))
            if first_split != split:
                duplicates.append(f"{owner} ({first_split}) and {task.id} ({split})")
    return duplicates


def check_near_duplicates(data: CheckData) -> Iterator[Finding]:
    """Check that no held-out task is nearly equal to a training task."""
    limits = data.limits
    texts = {
        split: _sample_evenly(split_texts, limits.max_compared_tasks)
        for split, split_texts in identifying_texts(data.loaded.tasks).items()
    }
    ids = {
        split: _sample_evenly([task.id for task in tasks], limits.max_compared_tasks)
        for split, tasks in data.loaded.tasks.items()
    }
    index = SimilarityIndex.from_texts(texts.get("train", ()))
    same, near_duplicates = set(texts.get("train", ())), list[str]()
    for split in ("validation", "test"):
        for name, text in zip(ids.get(split, ()), texts.get(split, ()), strict=True):
            nearest = None if text in same else index.find_nearest(text)  # equal texts are reported by the splits check
            if nearest and nearest[1] >= limits.min_similarity:
                near_duplicates.append(f"{name} ({split}) and {ids['train'][nearest[0]]}")
    if near_duplicates:
        yield Finding(
            "warning",
            f"{len(near_duplicates)} held-out tasks are nearly ones that are trained on: {summarize(near_duplicates)}",
            "where they differ in nothing that matters (names, order, a mirror), give them one content and one split",
        )


def identifying_texts(tasks: Mapping[Split, Sequence[Task]]) -> dict[Split, list[str]]:
    """Return the text that identifies each task.

    The text is the prompt. If a split repeats a prompt, the texts also include the tasks' data.
    """
    prompts = {split: [normalize(task.prompt) for task in items] for split, items in tasks.items()}
    return _full_texts(tasks) if any(len(set(items)) < len(items) for items in prompts.values()) else prompts


def _full_texts(tasks: Mapping[Split, Sequence[Task]]) -> dict[Split, list[str]]:
    return {split: list(map(task_text, items)) for split, items in tasks.items()}


def _sample_evenly(items: Sequence[str], count: int) -> list[str]:
    positions = np.linspace(0, len(items) - 1, min(count, len(items))).round().astype(int)
    return [items[place] for place in positions]
