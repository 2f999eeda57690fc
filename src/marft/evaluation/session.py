"""One evaluation session: several checkpoints of a run, and its untuned base, on the same held-out tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from marft import __version__
from marft.config.run import RunSettings
from marft.envs.tasks import digest_of, tasks_of
from marft.evaluation.evaluate import Advance, Evaluation, Mode, attempts_at, name_of, shuffle, summed, team_in
from marft.evaluation.keeping import Place, alone, key_of, played
from marft.evaluation.scenarios import Scenarios
from marft.models.pool import Models
from marft.playing import Rollouts
from marft.rollouts import open_rollouts
from marft.runs.checkpoints import STATE, Checkpoints, load_policies, verify
from marft.runs.code import digests_of_code
from marft.runs.folder import RunFolder
from marft.types import Episode, Task

BASE = "base"
PLAYS = {  # of a recipe, what decides what is played
    "models", "policies", "tools", "agents", "team", "channel", "environment", "rewards", "engine", "seed",
}  # fmt: skip
LIMITS = {"max_live_episodes", "max_steps", "timeout_seconds"}  # of its rollout


@dataclass(frozen=True, slots=True)
class Keeping:
    """Where evaluations are kept, and whether what is kept there is used.

    Args:
        folder: of evaluations.
        again: play anew what is there.
    """

    folder: Path
    again: bool = False


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
    *,
    attempts: int = 1,
    keeping: Keeping | None = None,
    scenarios: Scenarios | None = None,
) -> list[Evaluation]:
    """Evaluate each checkpoint in each mode, once, by however many names it was asked for.

    Args:
        checkpoints: ``base``, ``last``, ``best`` or ``step_000050``.
        shuffled_too: evaluate again with messages of other tasks.
        note: told which checkpoint goes by several of these names, and what of what was kept is damaged.
        loaded: sees the models before anything is played; what it raises is raised.
        attempts: at each task.
        keeping: None plays everything, and keeps nothing.
        scenarios: in the place of modes, tasks and attempts.

    Raises:
        ValueError: a checkpoint is not there or damaged, the test split is empty, a program's messages were to be
            shuffled, tasks are not those of the scenarios, or another process evaluates there.
    """
    if shuffled_too and run.team.own_words:
        raise ValueError("messages cannot be shuffled: the team is a program, which passes them on itself")
    if scenarios is not None:
        run, modes, attempts = _under(run, scenarios.seed), scenarios.modes, scenarios.attempts
    paths = _named(run, folder, checkpoints, note)
    with alone(keeping.folder if keeping else None), open_rollouts(run) as rollouts:
        loaded(rollouts.models)
        chosen = tasks_asked(rollouts.run, tasks, scenarios)
        advance(len(paths) * len(modes) * (1 + shuffled_too) * len(chosen) * attempts)
        table = _Table(rollouts, rollouts.models.digests(), chosen, attempts, keeping, scenarios, advance, note)
        results = []
        for name, path in paths.items():
            for policy in run.trained_policies:
                rollouts.models.reset_policy(policy)
            if path is not None:
                load_policies(path, rollouts.models, dict.fromkeys(run.trained_policies))
            for mode in modes:
                result, episodes = table.row(name, path, mode, None)
                results.append(result)
                if shuffled_too:
                    results.append(table.row(name, path, mode, shuffle(episodes, run.seed))[0])
        if table.kept:
            note(f"{len(table.kept)} of {len(results)} evaluations were kept from before; --again plays them anew")
    return results


def tasks_asked(run: RunSettings, tasks: int, scenarios: Scenarios | None) -> list[Task]:
    """The first held-out tasks, or those of the scenarios.

    Raises:
        ValueError: there are none, or others than the scenarios name.
    """
    return [*tasks_of(run.environment, "test")[:tasks]] if scenarios is None else scenarios.tasks(run)


@dataclass(frozen=True, slots=True)
class _Table:
    """What all evaluations of a session have in common."""

    rollouts: Rollouts
    models: Mapping[str, str]  # digests
    tasks: Sequence[Task]
    attempts: int
    keeping: Keeping | None
    scenarios: Scenarios | None
    advance: Advance
    note: Callable[[str], None]
    kept: list[str] = field(default_factory=list)  # names of what was read instead of played

    def row(
        self, name: str, path: Path | None, mode: Mode, donors: Sequence[Episode] | None
    ) -> tuple[Evaluation, list[Episode]]:
        """One evaluation, read where it is kept, of weights that are in place.

        Args:
            donors: whose messages agents see instead of their own.
        """
        split = self.scenarios.split if self.scenarios else "test"
        attempts = attempts_at(self.tasks, self.attempts, mode, split, donors)
        key = self._key(path, mode, split, donors is not None)
        place = self._place(name, mode, donors is not None, key)
        episodes = place.read(attempts) if place and self.keeping and not self.keeping.again else None
        was_kept = episodes is not None
        if episodes is None:
            if place and self.keeping:
                place.begin(self.keeping.again)
            team = team_in(mode, self.rollouts.team)
            size = self.rollouts.run.evaluation.kept_every
            episodes = played(self.rollouts, attempts, team, size, place, self.advance)
        else:
            self.kept.append(f"{name}-{mode}")
            for _ in episodes:
                self.advance()
        found = summed(
            self.rollouts, name, mode, episodes, split=split, shuffled=donors is not None, attempts=self.attempts
        )
        about = {"name": self.scenarios.name, "digest": self.scenarios.digest} if self.scenarios else {}
        found = replace(found, key=key, scenarios=about)
        if place and not was_kept:
            place.finish(episodes, found.as_json())
        return found, episodes

    def _place(self, name: str, mode: Mode, shuffled: bool, key: str) -> Place | None:
        if self.keeping is None:
            return None
        on = self.scenarios.name if self.scenarios else ""
        return Place(self.keeping.folder, name_of(name, mode, shuffled, on), key, self.note)

    def _key(self, path: Path | None, mode: Mode, split: str, shuffled: bool) -> str:
        run = self.rollouts.run
        table: dict[str, Any] = {
            "version": __version__,
            "models": self.models,
            "weights": (path / STATE).read_text(encoding="utf-8") if path else BASE,  # digests of every file
            "recipe": run.model_dump(mode="json", include=PLAYS),
            "limits": run.rollout.model_dump(mode="json", include=LIMITS),
            "together": run.evaluation.kept_every,
            "code": digests_of_code(run),
            "tasks": digest_of(self.tasks),
            "played": [mode, split, self.attempts, shuffled],
        }
        return key_of(table)


def _named(
    run: RunSettings, folder: RunFolder | None, checkpoints: Sequence[str], note: Callable[[str], None]
) -> dict[str, Path | None]:
    """The checkpoints that are asked for, each by its own name; None is the base."""
    paths: dict[str, Path | None] = {}
    asked: dict[str, list[str]] = {}
    for name in dict.fromkeys(checkpoints):
        path = find_checkpoint(run, folder, name)
        paths[path.name if path else BASE] = path
        asked.setdefault(path.name if path else BASE, []).append(name)
    for name, names in asked.items():
        if len(names) > 1:
            note(f"{' and '.join(names)} are one checkpoint, {name}: it is evaluated once")
    return paths


def _under(run: RunSettings, seed: int) -> RunSettings:
    """The run under another seed."""
    return run if run.seed == seed else run.model_copy(update={"seed": seed})


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
