"""Run folder: layout of a run's files (docs: architecture, run directory)."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import uuid4

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import PydanticCustomError

from marft.common import atomic
from marft.common.errors import UserError
from marft.common.version import __version__
from marft.config.guards import GuardSettings
from marft.config.load import first_problem, flatten_changes, load_recipe, override_keys, to_toml
from marft.config.names import check_run_name
from marft.config.paths import expand_user
from marft.config.python_objects import MissingObjectError, replace_objects
from marft.config.run import RunSettings
from marft.config.settings import closest_match
from marft.runs import lock, run_files
from marft.runs.metrics_log import read_rows

FORMAT = "a run of MARFT, 1"  # format name in a run's marker file
MARKER = json.dumps({"format": FORMAT})  # minimal content of the marker file
RUN_FILES = (
    "checkpoints",
    "credit",
    "episodes",
    "evaluations",
    "graphs",
    "imagined",
    "league",
    "metrics.jsonl",
    "profiles.json",
    "replays",
    "rows",
    "tensorboard",
    "worth",
)


class _SavedModel(BaseModel):
    """Base schema with some checked keys. Other keys are kept."""

    model_config = ConfigDict(extra="allow")


class _SavedAlgorithm(_SavedModel):
    name: str
    level: str


class _SavedAgent(_SavedModel):
    role: str


class _SavedTraining(_SavedModel):
    steps: int


class SavedRecipe(_SavedModel):
    """Schema for saved recipes, for readers without their plugins."""

    algorithm: _SavedAlgorithm
    agents: list[_SavedAgent]
    training: _SavedTraining
    guards: GuardSettings = GuardSettings()


class _SavedEvaluation(_SavedModel):
    """Schema for saved evaluations. Earlier versions did not save all fields."""

    checkpoint: str
    mode: str
    shuffled_messages: bool
    tasks: int
    unknown: int = 0
    accuracy: float | None = None
    interval: tuple[float, float] | None = None
    reward: float | None = None
    reward_interval: tuple[float, float] | None = None
    outcomes: dict[str, bool | float] = {}
    attempts: int = 1
    passes: dict[str, tuple[float, tuple[float, float]]] = {}
    scenarios: dict[str, str] = {}
    prompts: dict[str, str] = {}
    measured: dict[str, dict[str, tuple[float, float]]] = {}
    fields: dict[str, dict[str, str]] = {}
    rewards: dict[str, float] = {}
    examples: list[dict[str, object]] = []
    tools: dict[str, dict[str, dict[str, object]]] | None = None
    reorganized: dict[str, object] = {}


def read_evaluation(path: Path) -> dict[str, Any]:
    """Read a saved evaluation.

    Raises:
        UserError: the file cannot be read.
    """
    try:
        return _SavedEvaluation.model_validate(atomic.read_json(path)).model_dump(exclude_unset=True)
    except ValidationError as error:
        problem = first_problem(error)
    except (OSError, ValueError) as error:
        problem = str(error)
    raise UserError(f"{path} is damaged ({problem}); delete it and evaluate again")


def read_headline(path: Path) -> str:
    """Return the headline in a ``worth.json`` of ``marft worth``; "" if missing or unreadable."""
    try:
        table = atomic.read_json(path)
    except (OSError, ValueError):
        return ""
    headline = table.get("headline", "") if isinstance(table, dict) else ""
    return headline if isinstance(headline, str) else ""


def resolve_start(folder: RunFolder, start_from: Path | None) -> tuple[bool, Path | None, bool]:
    """Return the arguments that resume or start a run in a folder.

    The result has three items: True to resume, the checkpoint to start from, and True to overwrite an interrupted
    start.

    Args:
        start_from: checkpoint for a start; ignored once the run has a checkpoint of its own.
    """
    if folder.should_resume(begins_with=start_from is not None):
        return True, None, False
    return False, folder.interrupted_start() or start_from, folder.is_run()


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Run folder with paths to its files."""

    path: Path

    @staticmethod
    def create(run: RunSettings) -> RunFolder:
        """Create the folder ``<output>/<name>`` with the resolved recipe.

        Raises:
            UserError: a run or other files are already there.
        """
        folder = RunFolder(Path(run.output) / run.name)
        folder.check_free()
        folder.begin(run)
        return folder

    @staticmethod
    def open(path: str | Path) -> RunFolder:
        """Open an existing run.

        Raises:
            UserError: the folder is not a run.
        """
        folder = RunFolder(expand_user(path))
        if not folder.config_path.is_file():
            raise UserError(
                f"no run at {path}: it has no config.toml{folder.recipe_copy_note() or folder.suggest_similar()}"
            )
        return folder

    def suggest_similar(self) -> str:
        """Return a hint at a similar run below ``runs``, inside this folder or beside this folder.

        The text is "" without one.
        """
        runs = [Path("runs") / self.path, *self.path.glob("*"), *self.path.glob("runs/*")]
        siblings = [str(path) for path in self.path.parent.glob("*") if RunFolder(path).is_run()]
        sibling = closest_match(str(self.path), siblings)
        suggestion = next((str(path) for path in sorted(runs) if RunFolder(path).is_run()), sibling)
        return f"; did you mean {suggestion!r}?" if suggestion else ""

    @contextmanager
    def acquire_lock(self) -> Iterator[None]:
        """Lock the folder against training by other processes. The folder is removed again if no run began.

        Raises:
            UserError: another process uses the folder, or it cannot be created.
        """
        missing = [path for path in (self.path, *self.path.parents) if not path.exists()]
        if not missing and self._find_foreign() is None and (self.path / "run.lock").exists():
            missing = [self.path]  # left by a process that was killed before its run began
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except FileNotFoundError as error:  # raised by /proc for a new folder
            raise UserError(f"{self.path} cannot be made: choose another place (--output)") from error
        with lock.lock_folder(self.path / "run.lock"):
            try:
                yield
            finally:
                if not self.is_run():
                    (self.path / "run.lock").unlink(missing_ok=True)  # or deleted with the folder
                    with suppress(OSError):  # other files are in the folder
                        for path in missing:
                            path.rmdir()

    def is_run(self) -> bool:
        """Return True if a run has begun here, according to its marker file."""
        try:
            return bool(atomic.read_json(self.path / "run.json")["format"] == FORMAT)
        except (OSError, ValueError, KeyError, TypeError):
            return False

    def is_in_use(self) -> bool:
        """Return True for a folder in use by another process, according to its lock file."""
        return lock.is_in_use(self.path / "run.lock")

    def check_usable(self, resume: bool, overwrite: bool) -> None:
        """Check that a run can resume here with ``resume``, or begin here without.

        Raises:
            UserError: no run to resume, a run that must not be overwritten, or other files.
        """
        if resume:
            RunFolder.open(self.path)
        else:
            self.check_free(overwrite)

    def check_free(self, overwrite: bool = False) -> None:
        """Check that a run can begin here: no run exists, or it failed before its first step ended.

        Raises:
            UserError: a run exists and must not be overwritten, or the folder has other files.
        """
        if self.is_run():
            if not overwrite and self.has_progress():
                raise UserError(
                    f"{self.path} holds a run already; go on with it (--resume), give this one another name "
                    "(--name …), or let it take the other's place (--overwrite)"
                )
            foreign_files = run_files.find_foreign_checkpoint_files(self.path)
            if foreign_files:
                raise UserError(
                    f"{foreign_files[0]} lies among the checkpoints of {self.path} and is none of the run's; move it "
                    "away, and nothing else than the run is removed"
                )
            return
        foreign_file = self._find_foreign()
        if foreign_file is not None:
            raise UserError(
                f"{self.path} is no run of MARFT's, for it has no mark of one (run.json), but {foreign_file.name} is "
                "there, and nothing is removed or trained beside it. Give this run another name (--name …), or move "
                "away what is there; a run that has lost its mark goes on with --resume"
            )

    def _find_foreign(self) -> Path | None:
        """Return the first file in a folder without a run, ignoring leftovers of a killed start."""
        entries = sorted(self.path.iterdir()) if self.path.is_dir() else []
        foreign_entries = (path for path in entries if path.name != "run.lock" and not atomic.is_temp_file(path))
        run_paths = (path for path in run_files.find_run_files(self.path) if not atomic.is_temp_file(path))
        return next(run_paths, next(foreign_entries, None))

    def check_links(self) -> None:
        """Check the run's files and folders for links out of its own folder.

        Raises:
            UserError: a file or folder is a link.
        """
        for name in RUN_FILES:
            if (self.path / name).is_symlink():
                raise UserError(
                    f"{self.path / name} is a link, and a run writes and removes in its own folder alone: put what the "
                    "link leads to in its place. For another disk, give --output, or make the whole folder a link"
                )

    def begin(
        self, run: RunSettings, *, overwrite: bool = False, start_from: Path | None = None, start: Path | None = None
    ) -> list[Path]:
        """Write the marker and recipe of a new run, overwriting an earlier run.

        The result lists remaining files in the folder that no run wrote.

        Args:
            start_from: checkpoint with the initial weights, recorded in the marker.
            start: copy of this checkpoint in the folder of checkpoints, which is kept.

        Raises:
            UserError: another run or other files appeared in the meantime.
        """
        self.check_free(overwrite)
        replaces = self.is_run()
        atomic.remove_temp_files(self.path)
        try:
            self.write_marker(start_from, start)
            self.write_config(run)
        except BaseException:  # a full disk: a marker without a recipe would be a run that cannot resume
            if not replaces:
                (self.path / "run.json").unlink(missing_ok=True)
                self.config_path.unlink(missing_ok=True)
            raise
        return run_files.remove_run(self.path, start) if replaces else []

    def write_marker(self, start_from: Path | None = None, start: Path | None = None) -> None:
        """Write the marker file of a run, with the source of its initial weights.

        Any other file of that name is renamed.
        """
        path = self.path / "run.json"
        if (path.exists() or path.is_symlink()) and not self.is_run():
            path.rename(atomic.unused_path(path, "damaged"))
        marker = {
            "format": FORMAT,
            "version": __version__,
            "id": uuid4().hex,
            "begun": datetime.now().astimezone().isoformat("T", "seconds"),
        }
        if start_from is not None:
            marker["from"] = str(start_from)
        if start is not None:
            marker["start"] = start.name
        atomic.write_file(path, json.dumps(marker, indent=2) + "\n")

    def should_resume(self, *, begins_with: bool) -> bool:
        """Return True to resume the run in this folder, False to start one.

        Args:
            begins_with: a start would use the weights of a checkpoint. A run without a checkpoint of its own is then
                started again.
        """
        if self.interrupted_start():
            return False
        return bool(self.saved_steps()) or (self.is_run() and not begins_with)

    def has_progress(self) -> bool:
        """Return True if the run has a completed step or other data worth keeping."""
        folders = (self.checkpoints, self.episodes, self.evaluations)
        return any(path.exists() for path in folders) or (
            self.metrics_path.is_file() and self.metrics_path.stat().st_size > 0
        )

    def initial_checkpoint(self) -> str:
        """Return the checkpoint with the run's initial weights; "" for none."""
        return str(self._read_marker().get("from", ""))

    def read_id(self) -> str:
        """Return a unique alphanumeric ID of this run, independent of the folder's name and location.

        For a run of an earlier version, it is derived from the folder's name and start time.
        """
        marker = self._read_marker()
        return str(marker.get("id") or sha256(f"{self.path.name} {marker.get('begun')}".encode()).hexdigest()[:32])

    def interrupted_start(self) -> Path | None:
        """Return the saved start after an interrupted overwrite. The result is None without such a start."""
        start = self._read_marker().get("start")
        path = self.checkpoints / str(start)
        return path if start and path.is_dir() else None

    def _read_marker(self) -> dict[str, object]:
        return dict(atomic.read_json(self.path / "run.json")) if self.is_run() else {}

    def write_config(self, run: RunSettings) -> None:
        """Write the resolved recipe."""
        atomic.write_file(self.config_path, to_toml(run), atomic.PRIVATE_MODE)

    def recipe_copy_note(self) -> str:
        """Return a sentence with the path to a recipe copy in a checkpoint; "" without a copy."""
        copies = sorted(self.checkpoints.glob("step_*/recipe.toml"))
        return f". The recipe it was made with is in {copies[-1]}: copy that to {self.config_path}" if copies else ""

    @property
    def config_path(self) -> Path:
        """Path of the resolved recipe."""
        return self.path / "config.toml"

    @property
    def metrics_path(self) -> Path:
        """Path of the metrics log."""
        return self.path / "metrics.jsonl"

    @property
    def episodes(self) -> Path:
        """Folder of recorded training episodes."""
        return self.path / "episodes"

    @property
    def credit(self) -> Path:
        """Folder of learner data about recorded actions."""
        return self.path / "credit"

    @property
    def imagined(self) -> Path:
        """Folder of episodes played in a world model, separate from real episodes."""
        return self.path / "imagined"

    @property
    def checkpoints(self) -> Path:
        """Folder of checkpoints."""
        return self.path / "checkpoints"

    @property
    def evaluations(self) -> Path:
        """Folder of evaluations."""
        return self.path / "evaluations"

    @property
    def replays(self) -> Path:
        """Folder of replay pages."""
        return self.path / "replays"

    @property
    def graphs(self) -> Path:
        """Folder of episode figures."""
        return self.path / "graphs"

    @property
    def worth(self) -> Path:
        """Folder for results from ``marft worth``."""
        return self.path / "worth"

    def saved_steps(self) -> list[Path]:
        """Return the checkpoint folders, oldest first."""
        paths = [path for path in self.checkpoints.glob("step_*") if path.name[5:].isdecimal()]
        return sorted((path for path in paths if path.is_dir() and not path.is_symlink()), key=parse_step)

    def recorded_steps(self) -> list[Path]:
        """Return the files of recorded episodes, oldest first."""
        return sorted(path for path in self.episodes.glob("step_*.parquet") if path.stem[5:].isdecimal())

    def find_recorded(self, step: int) -> Path:
        """Return the episode file for a training step, counted from 1. Step 0 is the last recorded step.

        Raises:
            UserError: no episodes were recorded, or none at that step.
        """
        files = self.recorded_steps()
        if not files:
            raise UserError(
                f"{self.path} has no recorded episodes: no step ended, or training.record_episodes_every is not 1"
            )
        chosen = next((path for path in files if not step or parse_step(path) == step), None)
        if chosen is None:
            steps = ", ".join(str(parse_step(path)) for path in files)
            raise UserError(f"{self.path} recorded no episodes of step {step}; there are: {steps}")
        return chosen if step else files[-1]

    @property
    def report_path(self) -> Path:
        """Path of the HTML report."""
        return self.path / "report.html"

    def settings(
        self, overrides: Sequence[str] = (), changes: Mapping[str, object] = {}, objects: Iterable[object] = ()
    ) -> RunSettings:
        """Return the run's recipe with changes applied.

        Args:
            overrides: command-line overrides, such as ``["--training.steps", "10"]``.
            changes: further changes, as tables or dotted keys.
            objects: Python objects that the recipe refers to by placeholder.

        Raises:
            UserError: the recipe cannot be read; the message locates a complete copy.
        """
        objects = replace_objects(changes, objects)[1].values()
        try:
            load_recipe(self.config_path, given=objects)
        except MissingObjectError:
            raise
        except ValueError as error:
            raise UserError(f"{error}{self.recipe_copy_note()}") from error
        return load_recipe(self.config_path, overrides, changes, objects)

    def relocated_settings(
        self, overrides: Sequence[str] = (), changes: Mapping[str, object] = {}, objects: Iterable[object] = ()
    ) -> RunSettings:
        """Return the run's recipe with changes, for the folder's current name and location.

        Raises:
            UserError: the recipe cannot be read, a change sets the name or location, or the folder's name is not a
                valid run name.
        """
        for key in [*override_keys(overrides), *(".".join(parts) for parts, _ in flatten_changes(changes))]:
            if key in ("name", "output"):
                raise UserError(
                    f"--{key}: a run keeps its name and its place. For a new run with its recipe:  "
                    f"marft train {self.config_path} --{key} …"
                )
        name = self.path.resolve().name  # "." has no name
        try:
            check_run_name(name)
        except PydanticCustomError as error:
            raise UserError(f"{self.path} is no name of a run's folder; rename it: {error.message()}") from error
        location = {"output": str(self.path.parent), "name": name}
        return self.settings(overrides, {**changes, **location}, objects)

    def read_recipe(self) -> SavedRecipe:
        """Read the run's recipe without importing its plugins.

        Raises:
            UserError: the recipe is invalid; the message locates a complete copy.
        """
        try:
            return SavedRecipe.model_validate(tomllib.loads(self.config_path.read_text(encoding="utf-8")))
        except ValidationError as error:
            problem = first_problem(error)
        except (OSError, ValueError, RecursionError) as error:
            problem = str(error)
        raise UserError(f"cannot read {self.config_path}: {problem}{self.recipe_copy_note()}")

    def read_metrics(self) -> list[dict[str, Any]]:
        """Read the metrics, one object a step, skipping unreadable lines (see :meth:`metrics_problems`)."""
        return read_rows(self.metrics_path)[0]

    def metrics_problems(self) -> list[str]:
        """Return the unreadable lines of the metrics log. A last line that a crash interrupted does not count."""
        return read_rows(self.metrics_path)[1]

    def read_evaluations(self, scenarios: bool = False) -> list[dict[str, object]]:
        """Read the evaluations on held-out tasks with the team as trained, by name.

        Args:
            scenarios: include evaluations on sets of scenarios, and of the reorganized team.

        Raises:
            UserError: an evaluation cannot be read.
        """
        evaluations = [read_evaluation(path) for path in sorted(self.evaluations.glob("*.json"))]
        return [e for e in evaluations if scenarios or not (e.get("scenarios") or e.get("reorganized"))]


def parse_step(path: Path) -> int:
    """Return the training step in a name like ``step_000010.parquet``."""
    return int(path.stem.removeprefix("step_"))
