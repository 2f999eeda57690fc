"""Checks for leakage from validation and test into training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from marft.agents.environment import Split
from marft.common.types import Task
from marft_envs.vetting.evidence import Evidence
from marft_envs.vetting.findings import Finding, some
from marft_envs.vetting.likeness import Likeness, normal, whole
from marft_envs.vetting.loading import SPLITS


def overlap(evidence: Evidence) -> Iterator[Finding]:
    """Check that splits share no task; ids, case and spacing are ignored."""
    remedy = "let each task's own content say which split it is in (marft_envs.drawn.Drawn, marft.envs.splits.split_of)"
    tasks, wholes = evidence.loaded.tasks, _whole(evidence.loaded.tasks)
    found = _in_two(tasks, wholes)
    if found:
        yield Finding("failure", f"{len(found)} tasks stand in two splits: {some(found)}", remedy)
        return
    prompts = texts_of(tasks)
    asked = _in_two(tasks, prompts) if prompts != wholes else []
    if asked and evidence.subject.environment.one_step:
        yield Finding("failure", f"{len(asked)} questions stand in two splits: {some(asked)}", remedy)
    elif asked:
        yield Finding(
            "warning",
            f"{len(asked)} prompts stand in two splits, with other data: {some(asked)}",
            f"where what is seen later is not another task either, {remedy}",
        )


def _in_two(tasks: Mapping[Split, Sequence[Task]], texts: Mapping[Split, Sequence[str]]) -> list[str]:
    """Return pairs of tasks from two splits with equal text."""
    owners: dict[str, tuple[Split, str]] = {}
    found = []
    for split in SPLITS:
        for task, text in zip(tasks.get(split, ()), texts.get(split, ()), strict=True):
            where, owner = owners.setdefault(text, (split, task.id))
            if where != split:
                found.append(f"{owner} ({where}) and {task.id} ({split})")
    return found


def likeness(evidence: Evidence) -> Iterator[Finding]:
    """Check that no held-out task is nearly equal to a training task."""
    limits = evidence.limits
    texts = {split: _spread(some_of, limits.compared) for split, some_of in texts_of(evidence.loaded.tasks).items()}
    ids = {
        split: _spread([task.id for task in tasks], limits.compared) for split, tasks in evidence.loaded.tasks.items()
    }
    trained = Likeness.of(texts.get("train", ()))
    same, found = set(texts.get("train", ())), list[str]()
    for split in ("validation", "test"):
        for name, text in zip(ids.get(split, ()), texts.get(split, ()), strict=True):
            nearest = None if text in same else trained.nearest(text)  # equal texts are reported by the splits check
            if nearest and nearest[1] >= limits.alike:
                found.append(f"{name} ({split}) and {ids['train'][nearest[0]]}")
    if found:
        yield Finding(
            "warning",
            f"{len(found)} held-out tasks are nearly ones that are trained on: {some(found)}",
            "where they differ in nothing that matters (names, order, a mirror), give them one content and one split",
        )


def texts_of(tasks: Mapping[Split, Sequence[Task]]) -> dict[Split, list[str]]:
    """Return the text that identifies each task.

    The text is the prompt. If a split repeats a prompt, the texts also include the tasks' data.
    """
    prompts = {split: [normal(task.prompt) for task in given] for split, given in tasks.items()}
    return _whole(tasks) if any(len(set(given)) < len(given) for given in prompts.values()) else prompts


def _whole(tasks: Mapping[Split, Sequence[Task]]) -> dict[Split, list[str]]:
    return {split: list(map(whole, given)) for split, given in tasks.items()}


def _spread(items: Sequence[str], most: int) -> list[str]:
    places = np.linspace(0, len(items) - 1, min(most, len(items))).round().astype(int)
    return [items[place] for place in places]
