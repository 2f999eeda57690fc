"""State of a run at a checkpoint: its fields, the file ``state.json``, and the checks of a whole checkpoint."""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import AfterValidator, ConfigDict, NonNegativeInt, TypeAdapter, ValidationError

from marft.common import atomic
from marft.common.errors import UserError
from marft.common.prompt_history import PromptHistory, PromptVersion
from marft.common.version import __version__
from marft.config.load import first_problem, load_recipe
from marft.config.run import RunSettings
from marft.runs.changes import hash_user_code
from marft.runs.metrics_log import LogDigest
from marft.runs.run_files import CHECKPOINT_NAME, RECIPE_FILE, STATE_FILE

BEST_METRICS = ("validation_accuracy", "validation_reward", "reward")  # metrics for the best checkpoint, by priority
STRICT = ConfigDict(extra="forbid", strict=True)


@dataclass(frozen=True, slots=True)
class CurriculumState:
    """Curriculum state over the draws of training tasks.

    From draw ``begins[i]`` on, ``hardest[i]`` is the maximum difficulty level. Since the last change, ``tried``
    episodes were played at this level, and ``solved`` of them were solved.

    A draw keeps its level once it may have started. So the task at a position of the pass does not depend on when it is
    requested.

    >>> CurriculumState((0, 96), (0, 1)).level_at(95), CurriculumState((0, 96), (0, 1)).level_at(96)
    (0, 1)
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    begins: tuple[NonNegativeInt, ...] = ()
    hardest: tuple[NonNegativeInt, ...] = ()
    solved: NonNegativeInt = 0
    tried: NonNegativeInt = 0

    def interval_index(self, draw: int) -> int:
        """Return the index for a draw's interval in ``begins``."""
        return max(bisect_right(self.begins, draw) - 1, 0)

    def level_at(self, draw: int) -> int:
        """Return the maximum level at a draw."""
        return self.hardest[self.interval_index(draw)]


def _check_curriculum(state: CurriculumState) -> CurriculumState:
    begins = state.begins
    if not begins or len(begins) != len(state.hardest) or begins[0] or state.solved > state.tried:
        raise UserError("curriculum: stretches that are none of a run")
    if tuple(sorted(set(begins))) != begins:
        raise UserError("curriculum: stretches that are in no order")
    return state


def _check_lineage(lineage: PromptHistory) -> PromptHistory:
    if problems := lineage.problems():
        raise UserError("; ".join(problems))
    return lineage


SavedCurriculum = Annotated[CurriculumState, AfterValidator(_check_curriculum)]
SavedLineage = Annotated[PromptHistory, AfterValidator(_check_lineage)]
LINEAGE_ADAPTER = TypeAdapter(SavedLineage)


@dataclass(frozen=True, slots=True)
class State:
    """Progress of a run at a checkpoint. Random streams are named, so they have no state.

    The fields are the keys of ``state.json``, with their types. A field that an older file lacks has its default.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    step: NonNegativeInt = 0  # completed training steps
    environment_steps: NonNegativeInt = 0
    best_step: NonNegativeInt = 0  # step of the best checkpoint so far; 0: none
    best_score: float = -1.0
    best_by: str = ""  # metric of the best score; scores of different metrics are not comparable
    tasks_drawn: NonNegativeInt = 0  # position in the endless pass over the training tasks
    tasks: str = ""  # digest of the training tasks
    rollbacks: NonNegativeInt = 0  # number of rollbacks to an earlier checkpoint
    learning_rate_scale: float = 1.0  # product of the learning-rate factors of all rollbacks
    component_state: Mapping[str, float] = field(default_factory=dict)  # carried by credit and schedule between steps
    excluded_tasks: Mapping[str, str] = field(default_factory=dict)  # reason for each excluded task, by task ID
    curriculum: SavedCurriculum | None = None  # difficulty levels in use
    prompts: SavedLineage | None = None  # history of the learned prompts

    def update_best(self, metrics: Mapping[str, float], names: Sequence[str]) -> State:
        """Return the state with the best checkpoint updated.

        A metric with higher priority in ``BEST_METRICS`` replaces metrics with lower priority, regardless of their
        values.

        Args:
            metrics: metrics of the step.
            names: metrics in ``BEST_METRICS`` that count at this step.
        """
        name = next((name for name in names if not math.isnan(metrics.get(name, math.nan))), "")
        best_rank = BEST_METRICS.index(self.best_by) if self.best_step else len(BEST_METRICS)
        if not name or BEST_METRICS.index(name) > best_rank:
            return self
        if BEST_METRICS.index(name) < best_rank or metrics[name] > self.best_score:
            return replace(self, best_step=self.step, best_score=metrics[name], best_by=name)
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class StateFile(State):
    """Contents of ``state.json``: the state, and digests of all else that the run learned with.

    Digests detect changes, but do not authenticate the author.
    """

    files: Mapping[str, str]  # digests of all other files in the checkpoint
    log: LogDigest  # length and digest of the metrics log
    models: Mapping[str, str]  # digests of the base models, tokenizers and frozen adapters in training
    code: Mapping[str, str]  # digests of the files of user code
    version: str  # MARFT version


STATE_FILE_ADAPTER = TypeAdapter(StateFile)


@dataclass(frozen=True, slots=True)
class CheckpointRecord:
    """Checkpoint contents besides the weights. All of them are covered by digests."""

    path: Path
    state: State
    log: LogDigest
    models: Mapping[str, str]
    code: Mapping[str, str]

    def read_recipe(self, objects: Iterable[object] = ()) -> RunSettings:
        """Return the recipe saved with the checkpoint.

        Args:
            objects: Python objects that the recipe refers to by placeholder.

        Raises:
            UserError: this version of MARFT cannot read the recipe.
        """
        return load_recipe(self.path / RECIPE_FILE, given=objects)


def write_state(folder: Path, state: State, log: LogDigest, models: Mapping[str, str], run: RunSettings) -> None:
    """Write ``state.json`` for a checkpoint's folder, after all of its other files."""
    files = {file.relative_to(folder).as_posix(): atomic.digest_of_file(file) for file in _files(folder)}
    provenance = {"models": models, "code": hash_user_code(run), "version": __version__}
    write_state_table(folder, {**asdict(state), "files": files, "log": asdict(log), **provenance})


def write_state_table(folder: Path, table: Mapping[str, object]) -> None:
    """Write the contents of ``state.json`` with their digest."""
    text = json.dumps({**table, "digest": atomic.digest_of_json(table)}, indent=2)
    (folder / STATE_FILE).write_text(text + "\n")


def verify(path: Path) -> State:
    """Verify every file of a checkpoint against its digest and return the progress.

    Raises:
        UserError: a file is missing or damaged.
    """
    return read_record(path).state


def read_record(path: Path) -> CheckpointRecord:
    """Verify every file of a checkpoint against its digest and return the record.

    Raises:
        UserError: a file is missing or damaged, or the checkpoint is from another version of MARFT.
    """
    if not (path / STATE_FILE).is_file():
        inside = [*path.glob("checkpoints/step_*"), *path.glob("step_*")]
        example = max(inside, key=lambda folder: folder.name, default="runs/name/checkpoints/step_000050")
        raise UserError(f"{path} is no whole checkpoint: it has no {STATE_FILE}; give one such as {example}")
    try:
        table = atomic.read_json(path / STATE_FILE)
        if not isinstance(table, dict):
            raise UserError(f"{path} is no whole checkpoint: {STATE_FILE} holds no table")
        if "digest" not in table:
            raise UserError(f"{path} is no checkpoint of this version of MARFT: {STATE_FILE} has no digest")
        if table.pop("digest") != atomic.digest_of_json(table):
            raise UserError(f"{path}: {STATE_FILE} is damaged")
        saved = STATE_FILE_ADAPTER.validate_json(json.dumps(table))
        for name, digest in saved.files.items():
            if not (path / name).is_file() or atomic.digest_of_file(path / name) != digest:
                raise UserError(f"{path}: {name} is damaged")
        added = [name for file in _files(path) if (name := file.relative_to(path).as_posix()) not in saved.files]
        if weights := [name for name in added if name.endswith(".safetensors")]:
            raise UserError(f"{path}: {weights[0]} was not written with it; remove it")
        if CHECKPOINT_NAME.fullmatch(path.name) and path.name != checkpoint_name(saved.step):
            raise UserError(f"{path} is the checkpoint of step {saved.step}, under another's name")
        state = State(**{field.name: getattr(saved, field.name) for field in fields(State)})
        return CheckpointRecord(path, state, saved.log, saved.models, saved.code)
    except ValidationError as error:
        problem, version = f"{STATE_FILE} holds what no run writes: {first_problem(error)}", table.get("version")
        if isinstance(version, str) and version != __version__:
            hint = f"it was written by another version of MARFT ({version}; this is {__version__})"
        else:
            hint = "the likely cause is that another version of MARFT wrote it"
        raise UserError(f"{path}: {problem}; {hint}") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, TypeError, AttributeError) as error:
        raise UserError(f"{path} is no whole checkpoint: {error}") from error


def read_learned_prompts(checkpoint: Path | None) -> tuple[PromptVersion, ...]:
    """Return the learned prompts in a verified checkpoint; empty without a checkpoint or learned prompts."""
    if checkpoint is None or not (checkpoint / STATE_FILE).is_file():
        return ()
    table = atomic.read_json(checkpoint / STATE_FILE).get("prompts")
    return LINEAGE_ADAPTER.validate_python(table).current_versions() if table else ()


def checkpoint_name(step: int) -> str:
    """Return the folder name for a step, for example ``step_000050``."""
    return f"step_{step:06d}"


def _files(folder: Path) -> list[Path]:
    return sorted(file for file in folder.rglob("*") if file.is_file())
