"""Runs to show; every refresh detects new, growing and deleted runs."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from marft.common.texts import storable
from marft.evaluation.prompts import Recorded as Written
from marft.runs.folder import RunFolder
from marft.runs.written import WrittenRecipe
from marft_serve.viewer.browsing import Episodes
from marft_serve.viewer.indexing import IndexCache
from marft_serve.viewer.log import MetricsLog
from marft_serve.viewer.shelf import Indexed, Shelf


class MissingError(ValueError):
    """Requested item does not exist; HTTP status 404."""


class Run:
    """Run to show: recipe, metrics and recorded episodes.

    Raises:
        ValueError: the recipe cannot be read.
    """

    def __init__(self, name: str, path: Path, cache: IndexCache) -> None:
        self.id, self.folder = name, RunFolder(path)
        self._read_at = _changed(self.folder.config)
        self.recipe: WrittenRecipe = self.folder.read_recipe()
        self.written = Written(self.folder.config)
        self.log = MetricsLog(self.folder.metrics, self.recipe.guards)
        self.shelf = Shelf(path, cache)
        self._together: tuple[tuple[int, ...], Episodes] = ((), Episodes([]))

    @property
    def agents(self) -> list[dict[str, Any]]:
        """The agents, with flags for training and for answering."""
        policies = (self.recipe.model_extra or {}).get("policies")
        policies = policies if isinstance(policies, dict) else {}
        found = []
        for seat in self.recipe.agents:
            extra = seat.model_extra or {}
            policy = policies.get(str(extra.get("policy")), {})
            trained = isinstance(policy, dict) and policy.get("train", "lora") != "frozen"
            answers = extra.get("answers") is True or len(self.recipe.agents) == 1
            instructions = str(extra.get("instructions", ""))
            found.append(
                {"role": seat.role, "policy": str(extra.get("policy", "")), "trained": trained, "answers": answers}
                | {"instructions": instructions}
            )
        return found

    @property
    def organization(self) -> str:
        """Name of the team's organization."""
        team = (self.recipe.model_extra or {}).get("team", {})
        named = team.get("organization", team.get("name", "")) if isinstance(team, dict) else team
        return str(named.get("name", "") if isinstance(named, dict) else named)

    def look(self) -> Run:
        """Refresh the run from disk.

        Raises:
            MissingError: the run has been deleted.
        """
        if not self.folder.config.is_file():
            raise MissingError(f"{self.folder.path} is no run any more")
        if (changed := _changed(self.folder.config)) != self._read_at:  # the run was extended or replaced
            with suppress(ValueError):
                self.recipe, self.written = self.folder.read_recipe(), Written(self.folder.config)
                self._read_at = changed
        self.log.look()
        self.shelf.look()
        return self

    def state(self) -> str:
        """Return ``training``, ``finished`` or ``stopped``."""
        if self.folder.is_at_work():
            return "training"
        return "finished" if self.log.step >= self.recipe.training.steps else "stopped"

    def asked_worth(self) -> float:
        """Return the time of the last ``marft worth`` result, in seconds since 1970; 0 without one."""
        return _changed(self.folder.worth / "worth.json")

    def updated(self) -> float:
        """Return the time of the last change, in seconds since 1970."""
        times = [_changed(self.folder.metrics), _changed(self.folder.config)]
        files = [*self.shelf.steps.values(), *self.shelf.evaluations.values()]
        return max([*times, *(file.stamp.modified / 1e9 for file in files)])

    def episodes_of(self, name: str) -> Indexed:
        """Return the index for a recorded step or an evaluation.

        Raises:
            MissingError: there are no recorded episodes.
            ValueError: the file cannot be read.
        """
        file = self.shelf.find(name)
        if file is None:
            raise MissingError(f"{self.id} has no recorded episodes of {name!r}")
        one = self.shelf.indexed(file)
        if one.table is None:
            raise ValueError(one.problem)
        return one

    def last_recorded(self) -> str:
        """Return the last recorded step.

        Raises:
            MissingError: there is none.
        """
        names = list(self.shelf.steps)
        if not names:
            raise MissingError(f"{self.id} has no recorded episodes; train with training.record_episodes_every = 1")
        return names[-1]

    def together(self) -> tuple[Episodes, int, int]:
        """Return all indexed training episodes, the number of indexed steps, and the number of recorded steps."""
        known = self.shelf.known()
        indexed = [one for one in known if isinstance(one, Indexed)]
        ids = tuple(map(id, indexed))
        if self._together[0] != ids:
            self._together = ids, Episodes(indexed)
        return self._together[1], len(indexed), len(known)


class Library:
    """Runs in some folders.

    Args:
        places: run folders, and folders that contain runs.
        cache: cache for episode indexes.

    Raises:
        ValueError: a folder has no run.
    """

    def __init__(self, places: Sequence[Path], cache: IndexCache) -> None:
        self._places, self._cache = list(places), cache
        self._lock = threading.Lock()
        self._runs: dict[Path, Run] = {}
        self._names: dict[Path, str] = {}
        for place in places:
            if not runs_in(place):
                where = RunFolder(place).near() if not place.is_dir() else ""
                raise ValueError(
                    f"no run at {place}{where}; train one (marft train demo), or name its folder, or the folder that "
                    "runs are in"
                )

    def look(self) -> list[Run]:
        """Return the current runs; a run with an unreadable recipe is left out until its recipe is readable."""
        with self._lock:
            paths = list(dict.fromkeys(path for place in self._places for path in runs_in(place)))
            self._runs = {path: run for path, run in self._runs.items() if path in paths}
            for path in paths:
                if path not in self._runs:
                    try:
                        self._runs[path] = Run(self._name(path), path, self._cache)
                    except ValueError:
                        continue
            return [self._runs[path] for path in paths if path in self._runs]

    def run(self, name: str) -> Run:
        """Return a run by its displayed name, after a refresh.

        Raises:
            MissingError: there is no such run.
        """
        runs = list(self._runs.values())
        found = next((run for run in runs if run.id == name), None) or next(
            (run for run in self.look() if run.id == name), None
        )
        if found is None:
            raise MissingError(f"there is no run {name!r} here")
        return found.look()

    def _name(self, path: Path) -> str:
        """Return a run's displayed name: the folder name.

        If another run has the same name, or the name is not valid text, a hash of the path is appended.
        """
        if path not in self._names:
            name, taken = path.resolve().name or "run", set(self._names.values())
            mark = hashlib.sha256(str(path.resolve()).encode("utf-8", "surrogateescape")).hexdigest()[:6]
            text = storable(name)
            self._names[path] = f"{text}~{mark}" if text != name or name in taken else name
        return self._names[path]


def runs_in(place: Path) -> list[Path]:
    """Return the run at a path, or the runs in it."""
    if _is_run(place):
        return [place]
    try:
        return sorted(path for path in place.iterdir() if _is_run(path))
    except OSError:
        return []


def _is_run(path: Path) -> bool:
    try:
        return (path / "config.toml").is_file() and any(
            (path / name).exists() for name in ("run.json", "metrics.jsonl", "episodes")
        )
    except OSError:  # no permission; the other runs are still shown
        return False


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
