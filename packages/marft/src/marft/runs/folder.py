"""The run directory: where everything of a run lies (docs: architecture, run directory)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import uuid4

from pydantic_core import PydanticCustomError

from marft.common import atomic
from marft.common.version import __version__
from marft.config.changing import pairs_of
from marft.config.folders import at_home
from marft.config.given import NotGivenError, in_words
from marft.config.load import keys_of, load_recipe, to_toml
from marft.config.names import check_run_name
from marft.config.run import RunSettings
from marft.config.settings import closest
from marft.runs import lock, removing
from marft.runs.log import read_rows
from marft.runs.written import WrittenRecipe, read_evaluation, read_recipe

FORMAT = "a run of MARFT, 1"  # what the mark of a run says
MARK = json.dumps({"format": FORMAT})  # the least that it says
OWN = (
    "checkpoints", "credit", "episodes", "evaluations", "graphs", "imagined", "league", "metrics.jsonl",
    "profiles.json", "replays", "rows", "tensorboard", "worth",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class RunFolder:
    path: Path

    @staticmethod
    def create(run: RunSettings) -> RunFolder:
        """Make ``<output>/<name>`` with the resolved recipe in it.

        Raises:
            ValueError: a run of that name is there already, or somebody else's files.
        """
        folder = RunFolder(Path(run.output) / run.name)
        folder.check_free()
        folder.begin(run)
        return folder

    @staticmethod
    def open(path: str | Path) -> RunFolder:
        """Open an existing run.

        Raises:
            ValueError: there is none.
        """
        folder = RunFolder(at_home(path))
        if not folder.config.is_file():
            raise ValueError(f"no run at {path}: it has no config.toml{folder.whole_recipe() or folder.near()}")
        return folder

    def near(self) -> str:
        """Which run may have been meant by a folder that is none: one of that name below ``runs``, inside it, or
        beside it."""
        runs = [Path("runs") / self.path, *self.path.glob("*"), *self.path.glob("runs/*")]
        beside = closest(str(self.path), [str(path) for path in self.path.parent.glob("*") if RunFolder(path).is_run()])
        meant = next((str(path) for path in sorted(runs) if RunFolder(path).is_run()), beside)
        return f"; did you mean {meant!r}?" if meant else ""

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep every other process from training here. A folder in which no run has begun goes again.

        Raises:
            ValueError: another process is at work on it, or it cannot be made.
        """
        missing = [path for path in (self.path, *self.path.parents) if not path.exists()]
        if not missing and self._foreign() is None and (self.path / "run.lock").exists():
            missing = [self.path]  # somebody was killed before a run began
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except FileNotFoundError as error:  # what /proc says of a new folder
            raise ValueError(f"{self.path} cannot be made: choose another place (--output)") from error
        with lock.folder_held(self.path / "run.lock"):
            try:
                yield
            finally:
                if not self.is_run():
                    (self.path / "run.lock").unlink(missing_ok=True)  # or gone with the folder
                    with suppress(OSError):  # somebody has put something there
                        for path in missing:
                            path.rmdir()

    def is_run(self) -> bool:
        """Whether a run of ours has begun here: its mark says so, not what its files are called."""
        try:
            return bool(atomic.read_json(self.path / "run.json")["format"] == FORMAT)
        except (OSError, ValueError, KeyError, TypeError):
            return False

    def is_at_work(self) -> bool:
        """Whether another process may be training here."""
        return lock.at_work(self.path / "run.lock")

    def check_free(self, overwrite: bool = False) -> None:
        """See that a run can begin here: where none is, or one that failed before its first step was over.

        Raises:
            ValueError: one is there already, and is not to be overwritten; or what is there is none.
        """
        if self.is_run():
            if not overwrite and self.has_progress():
                raise ValueError(
                    f"{self.path} holds a run already; go on with it (--resume), give this one another name "
                    "(--name …), or let it take the other's place (--overwrite)"
                )
            theirs = removing.among_checkpoints(self.path)
            if theirs:
                raise ValueError(
                    f"{theirs[0]} lies among the checkpoints of {self.path} and is none of the run's; move it away, "
                    "and nothing else than the run is removed"
                )
            return
        there = self._foreign()
        if there is not None:
            raise ValueError(
                f"{self.path} is no run of MARFT's, for it has no mark of one (run.json), but {there.name} is there, "
                "and nothing is removed or trained beside it. Give this run another name (--name …), or move away what "
                "is there; a run that has lost its mark goes on with --resume"
            )

    def _foreign(self) -> Path | None:
        """The first thing in the folder, which no run has begun in, but what a start that was killed has left."""
        there = sorted(self.path.iterdir()) if self.path.is_dir() else []
        left = (path for path in there if path.name != "run.lock" and not atomic.is_draft(path))
        return next(
            (path for path in removing.written_by_a_run(self.path) if not atomic.is_draft(path)), next(left, None)
        )

    def refuse_links(self) -> None:
        """See that what the run writes lies in its own folder.

        Raises:
            ValueError: one of its files or folders is a link.
        """
        for name in OWN:
            if (self.path / name).is_symlink():
                raise ValueError(
                    f"{self.path / name} is a link, and a run writes and removes in its own folder alone: put what the "
                    "link leads to in its place. For another disk, give --output, or make the whole folder a link"
                )

    def begin(
        self, run: RunSettings, *, overwrite: bool = False, start_from: Path | None = None, start: Path | None = None
    ) -> list[Path]:
        """Put the run's mark and its recipe here, in the place of a run before it → what is left, and not a run's.

        Args:
            start_from: the checkpoint whose weights the run begins with, which its mark names.
            start: a copy of them among the checkpoints here, which stays.

        Raises:
            ValueError: somebody else's run, or files, came in between.
        """
        self.check_free(overwrite)
        replaces = self.is_run()
        atomic.remove_drafts(self.path)
        try:
            self.write_mark(start_from, start)
            self.write_config(run)
        except BaseException:  # a full disk: a mark without a recipe would be a run that cannot go on
            if not replaces:
                (self.path / "run.json").unlink(missing_ok=True)
                self.config.unlink(missing_ok=True)
            raise
        return removing.remove_run(self.path, start) if replaces else []

    def write_mark(self, start_from: Path | None = None, start: Path | None = None) -> None:
        """Say that this is the folder of a run, and what it begins with. Another file in the mark's place is kept."""
        path = self.path / "run.json"
        if (path.exists() or path.is_symlink()) and not self.is_run():
            path.rename(atomic.free_name(path, "damaged"))
        mark = {
            "format": FORMAT,
            "version": __version__,
            "id": uuid4().hex,
            "begun": datetime.now().astimezone().isoformat("T", "seconds"),
        }
        if start_from is not None:
            mark["from"] = str(start_from)
        if start is not None:
            mark["start"] = start.name
        atomic.write_file(path, json.dumps(mark, indent=2) + "\n")

    def goes_on(self, *, begins_with: bool) -> bool:
        """Whether what is here is gone on with by whoever starts a run or goes on with it, as there is one.

        Args:
            begins_with: a start is given the weights of a checkpoint: before the run's first one of its own they are
                all that there is, and it is started again.
        """
        if self.start_cut_short():
            return False
        return bool(self.saved_steps()) or (self.is_run() and not begins_with)

    def has_progress(self) -> bool:
        """Whether the run has done a step, or there is anything else that somebody may want to keep."""
        kept = (self.checkpoints, self.episodes, self.evaluations)
        return any(path.exists() for path in kept) or (self.metrics.is_file() and self.metrics.stat().st_size > 0)

    def started_from(self) -> str:
        """The checkpoint whose weights the run began with; "" for none."""
        return str(self._mark().get("from", ""))

    def identity(self) -> str:
        """Letters and digits that tell this run from every other one, whatever its folder is called and wherever it is
        moved; of a run of an earlier version, by when it was begun."""
        mark = self._mark()
        return str(mark.get("id") or sha256(f"{self.path.name} {mark.get('begun')}".encode()).hexdigest()[:32])

    def start_cut_short(self) -> Path | None:
        """What the run was to begin with in another's place, where it was stopped before it had."""
        start = self._mark().get("start")
        path = self.checkpoints / str(start)
        return path if start and path.is_dir() else None

    def _mark(self) -> dict[str, object]:
        return dict(atomic.read_json(self.path / "run.json")) if self.is_run() else {}

    def write_config(self, run: RunSettings) -> None:
        """Save the resolved recipe."""
        atomic.write_file(self.config, to_toml(run), atomic.OWN)

    def whole_recipe(self) -> str:
        """Where a copy of the recipe lies, for those who have lost theirs; "" where none does."""
        copies = sorted(self.checkpoints.glob("step_*/recipe.toml"))
        return f". The recipe it was made with is in {copies[-1]}: copy that to {self.config}" if copies else ""

    @property
    def config(self) -> Path:
        return self.path / "config.toml"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def episodes(self) -> Path:
        return self.path / "episodes"

    @property
    def credit(self) -> Path:
        return self.path / "credit"

    @property
    def imagined(self) -> Path:
        """Episodes that nobody has lived, apart from those that somebody has."""
        return self.path / "imagined"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def evaluations(self) -> Path:
        return self.path / "evaluations"

    @property
    def replays(self) -> Path:
        return self.path / "replays"

    @property
    def graphs(self) -> Path:
        return self.path / "graphs"

    @property
    def worth(self) -> Path:
        return self.path / "worth"

    def saved_steps(self) -> list[Path]:
        """Folders of checkpoints, oldest first."""
        paths = [path for path in self.checkpoints.glob("step_*") if path.name[5:].isdecimal()]
        return sorted((path for path in paths if path.is_dir() and not path.is_symlink()), key=step_of)

    def recorded_steps(self) -> list[Path]:
        """Files of recorded episodes, oldest first."""
        return sorted(path for path in self.episodes.glob("step_*.parquet") if path.stem[5:].isdecimal())

    def recorded(self, step: int) -> Path:
        """The recorded episodes of a training step, counted from 1; 0 is the last one.

        Raises:
            ValueError: nothing was recorded, or not at that step.
        """
        files = self.recorded_steps()
        if not files:
            raise ValueError(f"{self.path} has no recorded episodes; train with training.record_episodes_every = 1")
        chosen = next((path for path in files if not step or step_of(path) == step), None)
        if chosen is None:
            known = ", ".join(str(step_of(path)) for path in files)
            raise ValueError(f"{self.path} recorded no episodes of step {step}; there are: {known}")
        return chosen if step else files[-1]

    @property
    def report(self) -> Path:
        return self.path / "report.html"

    def settings(
        self,
        overrides: Sequence[str] = (),
        changes: Mapping[str, Any] = {},
        given: Iterable[Any] = (),
    ) -> RunSettings:
        """The run's recipe, with changes.

        Args:
            given: what it names as given in Python.

        Raises:
            ValueError: it cannot be read; the message says where a whole copy is.
        """
        given = in_words(changes, given)[1].values()
        try:
            load_recipe(self.config, given=given)
        except NotGivenError:
            raise
        except ValueError as error:
            raise ValueError(f"{error}{self.whole_recipe()}") from error
        return load_recipe(self.config, overrides, changes, given)

    def settings_in_place(
        self,
        overrides: Sequence[str] = (),
        changes: Mapping[str, Any] = {},
        given: Iterable[Any] = (),
    ) -> RunSettings:
        """The run's recipe, with changes, for the run as it lies here: wherever it was moved, and whatever its folder
        was renamed to.

        Raises:
            ValueError: it cannot be read, another name or place is asked for, or the folder's name is none of a run's.
        """
        for key in [*keys_of(overrides), *(".".join(parts) for parts, _ in pairs_of(changes))]:
            if key in ("name", "output"):
                raise ValueError(
                    f"--{key}: a run keeps its name and its place. For a new run with its recipe:  "
                    f"marft train {self.config} --{key} …"
                )
        name = self.path.resolve().name  # "." has none
        try:
            check_run_name(name)
        except PydanticCustomError as error:
            raise ValueError(f"{self.path} is no name of a run's folder; rename it: {error.message()}") from error
        here = {"output": str(self.path.parent), "name": name}
        return self.settings(overrides, {**changes, **here}, given)

    def read_recipe(self) -> WrittenRecipe:
        """The run's recipe as it is written down: what it names need not be there any more.

        Raises:
            ValueError: it is no recipe; the message says where a whole copy is.
        """
        try:
            return read_recipe(self.config)
        except ValueError as error:
            raise ValueError(f"{error}{self.whole_recipe()}") from error

    def read_metrics(self) -> list[dict[str, Any]]:
        """One object a step; lines that cannot be read are left out, and :meth:`metrics_problems` names them."""
        return read_rows(self.metrics)[0]

    def metrics_problems(self) -> list[str]:
        """Which lines of the metrics cannot be read. A last one that a crash cut short is none of them."""
        return read_rows(self.metrics)[1]

    def write_evaluation(self, evaluation: Mapping[str, object], name: str) -> Path:
        path = self.evaluations / f"{name}.json"
        atomic.write_file(path, json.dumps(evaluation, indent=2) + "\n")
        return path

    def read_evaluations(self, scenarios: bool = False) -> list[dict[str, object]]:
        """All evaluations on held-out tasks, of the team as it was trained, by name.

        Args:
            scenarios: those on sets of scenarios, and of the team reorganized, too.

        Raises:
            ValueError: one cannot be read.
        """
        found = [read_evaluation(path) for path in sorted(self.evaluations.glob("*.json"))]
        return [one for one in found if scenarios or not (one.get("scenarios") or one.get("reorganized"))]


def step_of(path: Path) -> int:
    """The training step in a name such as ``step_000010.parquet``."""
    return int(path.stem.removeprefix("step_"))
