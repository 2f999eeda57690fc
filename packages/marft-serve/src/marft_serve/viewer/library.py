"""Runs to show; every refresh detects new, growing and deleted runs."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypedDict

from marft.common.errors import UserError
from marft.common.texts import replace_surrogates
from marft.evaluation.transcripts import PromptDecoder as Written
from marft.runs.run_folder import RunFolder, SavedRecipe
from marft_serve.viewer.episode_index import EpisodeIndex, FileIndex, IndexCache
from marft_serve.viewer.episode_query import EpisodeTable
from marft_serve.viewer.metrics_log import MetricsLog


class MissingError(UserError):
    """Requested item does not exist; HTTP status 404."""


class Agent(TypedDict):
    """Agent of a run."""

    role: str
    policy: str
    trained: bool
    answers: bool
    instructions: str


class Run:
    """Run to show: recipe, metrics and recorded episodes.

    Raises:
        UserError: the recipe cannot be read.
    """

    def __init__(self, name: str, path: Path, cache: IndexCache) -> None:
        self.id, self.folder = name, RunFolder(path)
        self._config_time = _modified_time(self.folder.config_path)
        self.recipe: SavedRecipe = self.folder.read_recipe()
        self.written = Written(self.folder.config_path)
        self.log = MetricsLog(self.folder.metrics_path, self.recipe.guards)
        self.index = EpisodeIndex(path, cache)
        self._table_cache: tuple[tuple[int, ...], EpisodeTable] = ((), EpisodeTable([]))

    @property
    def agents(self) -> list[Agent]:
        """The agents, with flags for training and for answering."""
        policies = (self.recipe.model_extra or {}).get("policies")
        policies = policies if isinstance(policies, dict) else {}
        agents = list[Agent]()
        for agent in self.recipe.agents:
            extra = agent.model_extra or {}
            policy = policies.get(str(extra.get("policy")), {})
            agents.append(
                {
                    "role": agent.role,
                    "policy": str(extra.get("policy", "")),
                    "trained": isinstance(policy, dict) and policy.get("train", "lora") != "frozen",
                    "answers": extra.get("answers") is True or len(self.recipe.agents) == 1,
                    "instructions": str(extra.get("instructions", "")),
                }
            )
        return agents

    @property
    def organization(self) -> str:
        """Name of the team's organization."""
        team = (self.recipe.model_extra or {}).get("team", {})
        setting = team.get("organization", team.get("name", "")) if isinstance(team, dict) else team
        return str(setting.get("name", "") if isinstance(setting, dict) else setting)

    def refresh(self) -> Run:
        """Refresh the run from disk.

        Raises:
            MissingError: the run has been deleted.
        """
        if not self.folder.config_path.is_file():
            raise MissingError(f"{self.folder.path} is no run any more")
        if (
            config_time := _modified_time(self.folder.config_path)
        ) != self._config_time:  # the run was extended or replaced
            with suppress(ValueError):
                self.recipe, self.written = self.folder.read_recipe(), Written(self.folder.config_path)
                self._config_time = config_time
        self.log.refresh()
        self.index.refresh()
        return self

    def state(self) -> str:
        """Return ``training``, ``finished`` or ``stopped``."""
        if self.folder.is_in_use():
            return "training"
        return "finished" if self.log.step >= self.recipe.training.steps else "stopped"

    def get_worth_update_time(self) -> float:
        """Return the time of the last ``marft worth`` result, in seconds since 1970; 0 without one."""
        return _modified_time(self.folder.worth / "worth.json")

    def get_update_time(self) -> float:
        """Return the time of the last change, in seconds since 1970."""
        times = [_modified_time(self.folder.metrics_path), _modified_time(self.folder.config_path)]
        files = [*self.index.steps.values(), *self.index.evaluations.values()]
        return max([*times, *(file.version.modified / 1e9 for file in files)])

    def get_episodes(self, name: str) -> FileIndex:
        """Return the index for a recorded step or an evaluation.

        Raises:
            MissingError: there are no recorded episodes.
            UserError: the file cannot be read.
        """
        file = self.index.find_file(name)
        if file is None:
            raise MissingError(f"{self.id} has no recorded episodes of {name!r}")
        file_index = self.index.get_index(file)
        if file_index.table is None:
            raise UserError(file_index.problem)
        return file_index

    def get_active_guards(self, file: FileIndex) -> list[str]:
        """Return the guards raised in a file's training step; none for an evaluation."""
        return self.log.get_active_guards(file.file.step) if isinstance(file.file.step, int) else []

    def get_last_step(self) -> str:
        """Return the last recorded step.

        Raises:
            MissingError: there is none.
        """
        names = list(self.index.steps)
        if not names:
            raise MissingError(f"{self.id} has no recorded episodes; train with training.record_episodes_every = 1")
        return names[-1]

    def get_indexed_episodes(self) -> tuple[EpisodeTable, int, int]:
        """Return all indexed training episodes, the number of indexed steps, and the number of recorded steps."""
        files = self.index.list_steps()
        indexed = [file for file in files if isinstance(file, FileIndex)]
        ids = tuple(map(id, indexed))
        if self._table_cache[0] != ids:
            self._table_cache = ids, EpisodeTable(indexed)
        return self._table_cache[1], len(indexed), len(files)


class Library:
    """Runs in some folders.

    Args:
        paths: run folders, and folders that contain runs.
        cache: cache for episode indexes.

    Raises:
        UserError: a folder has no run.
    """

    def __init__(self, paths: Sequence[Path], cache: IndexCache) -> None:
        self._paths, self._cache = list(paths), cache
        self._lock = threading.Lock()
        self._runs: dict[Path, Run] = {}
        self._names: dict[Path, str] = {}
        for path in paths:
            if not find_runs(path):
                hint = RunFolder(path).suggest_similar() if not path.is_dir() else ""
                raise UserError(
                    f"no run at {path}{hint}; train one (marft train demo), or name its folder, or the folder that "
                    "runs are in"
                )

    def refresh(self) -> list[Run]:
        """Return the current runs; a run with an unreadable recipe is left out until its recipe is readable."""
        with self._lock:
            paths = list(dict.fromkeys(path for folder in self._paths for path in find_runs(folder)))
            self._runs = {path: run for path, run in self._runs.items() if path in paths}
            for path in paths:
                if path not in self._runs:
                    try:
                        self._runs[path] = Run(self._get_name(path), path, self._cache)
                    except ValueError:
                        continue
            return [self._runs[path] for path in paths if path in self._runs]

    def get_run(self, name: str) -> Run:
        """Return a run by its displayed name, after a refresh.

        Raises:
            MissingError: there is no such run.
        """
        runs = list(self._runs.values())
        match = next((run for run in runs if run.id == name), None) or next(
            (run for run in self.refresh() if run.id == name), None
        )
        if match is None:
            raise MissingError(f"there is no run {name!r} here")
        return match.refresh()

    def _get_name(self, path: Path) -> str:
        """Return a run's displayed name: the folder name.

        If another run has the same name, or the name is not valid text, a hash of the path is appended.
        """
        if path not in self._names:
            name, used_names = path.resolve().name or "run", set(self._names.values())
            digest = hashlib.sha256(str(path.resolve()).encode("utf-8", "surrogateescape")).hexdigest()[:6]
            text = replace_surrogates(name)
            self._names[path] = f"{text}~{digest}" if text != name or name in used_names else name
        return self._names[path]


def find_runs(folder: Path) -> list[Path]:
    """Return the run at a path, or the runs in it."""
    if _is_run(folder):
        return [folder]
    try:
        return sorted(path for path in folder.iterdir() if _is_run(path))
    except OSError:
        return []


def _is_run(path: Path) -> bool:
    try:
        return (path / "config.toml").is_file() and any(
            (path / name).exists() for name in ("run.json", "metrics.jsonl", "episodes")
        )
    except OSError:  # no permission; the other runs are still shown
        return False


def _modified_time(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
