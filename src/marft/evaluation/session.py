"""One evaluation session: several checkpoints of a run, and its untuned base, on the same held-out tasks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from marft.config.run import RunSettings
from marft.envs.tasks import tasks_of
from marft.evaluation.evaluate import Advance, Evaluation, Mode, evaluate, shuffle
from marft.models.pool import Models
from marft.rollouts import open_rollouts
from marft.runs.checkpoints import Checkpoints, load_policies, verify
from marft.runs.folder import RunFolder

BASE = "base"


def evaluate_checkpoints(
    run: RunSettings,
    folder: RunFolder | None,
    checkpoints: Sequence[str],
    modes: Sequence[Mode],
    tasks: int,
    shuffled_too: bool,
    advance: Advance,
    note: Callable[[str], None] = lambda _: None,
    loaded: Callable[[Models], None] = lambda _: None,
) -> list[Evaluation]:
    """Evaluate each checkpoint in each mode, once, by however many names it was asked for.

    Args:
        checkpoints: ``base``, ``last``, ``best`` or ``step_000050``.
        shuffled_too: evaluate again with messages of other tasks.
        note: told which checkpoint goes by several of these names.
        loaded: sees the models before anything is played; what it raises is raised.

    Raises:
        ValueError: a checkpoint is not there or damaged, the test split is empty, or a program's messages were to be
            shuffled.
    """
    if shuffled_too and run.team.own_words:
        raise ValueError("messages cannot be shuffled: the team is a program, which passes them on itself")
    paths: dict[str, Path | None] = {}
    asked: dict[str, list[str]] = {}
    for name in dict.fromkeys(checkpoints):
        path = find_checkpoint(run, folder, name)
        paths[path.name if path else BASE] = path
        asked.setdefault(path.name if path else BASE, []).append(name)
    for name, names in asked.items():
        if len(names) > 1:
            note(f"{' and '.join(names)} are one checkpoint, {name}: it is evaluated once")
    with open_rollouts(run) as rollouts:
        loaded(rollouts.models)
        chosen = tasks_of(rollouts.run.environment, "test")[:tasks]
        advance(len(paths) * len(modes) * (1 + shuffled_too) * len(chosen))
        results = []
        for version, (name, path) in enumerate(paths.items()):
            for policy in run.trained_policies:
                rollouts.models.reset_policy(policy)
            if path is not None:
                load_policies(path, rollouts.models, dict.fromkeys(run.trained_policies))
            rollouts.publish(version)
            for mode in modes:
                result, episodes = evaluate(rollouts, name, mode, chosen, on_done=lambda _: advance())
                results.append(result)
                if shuffled_too:
                    donors = shuffle(episodes, run.seed)
                    result, _ = evaluate(
                        rollouts, name, mode, chosen, messages_from=donors, on_done=lambda _: advance()
                    )
                    results.append(result)
    return results


def find_checkpoint(run: RunSettings, folder: RunFolder | None, name: str) -> Path | None:
    """The folder of a checkpoint; None for the untuned base.

    Raises:
        ValueError: it is not there, or damaged.
    """
    if name == BASE:
        return None
    if folder is None:
        raise ValueError(f"checkpoint {name!r}: a recipe has none; give the folder of a run")
    path = Checkpoints(folder, run.checkpoints).find(name)
    verify(path)
    return path
