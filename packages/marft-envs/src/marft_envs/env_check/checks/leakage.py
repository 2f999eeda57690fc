"""Checks for leakage from validation and test into training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from marft.agents.environment import Split
from marft.common.types import Task
from marft_envs.env_check.collection import CheckData
from marft_envs.env_check.loading import SPLITS
from marft_envs.env_check.report import Finding, summarize
from marft_envs.env_check.similarity import SimilarityIndex, normalize, task_text


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
        split: _sample_evenly(split_texts, limits.compared)
        for split, split_texts in identifying_texts(data.loaded.tasks).items()
    }
    ids = {
        split: _sample_evenly([task.id for task in tasks], limits.compared)
        for split, tasks in data.loaded.tasks.items()
    }
    index = SimilarityIndex.from_texts(texts.get("train", ()))
    same, near_duplicates = set(texts.get("train", ())), list[str]()
    for split in ("validation", "test"):
        for name, text in zip(ids.get(split, ()), texts.get(split, ()), strict=True):
            nearest = None if text in same else index.find_nearest(text)  # equal texts are reported by the splits check
            if nearest and nearest[1] >= limits.alike:
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
