"""Checkpoints with weights, optimizers and progress, written atomically and without pickle.

PyTorch is imported only where weights are read or written. Checkpoints can be listed and verified without it.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from pydantic import ValidationError
from safetensors import SafetensorError

from marft.common import atomic
from marft.common.prompt_history import PromptHistory
from marft.common.version import __version__
from marft.config.load import first_problem, load_recipe, to_toml
from marft.config.run import CheckpointSettings, RunSettings
from marft.runs.cleanup import remove_checkpoint
from marft.runs.metrics_log import LogDigest
from marft.runs.run_folder import RunFolder, parse_step
from marft.runs.state_schema import STATE_FILE, CurriculumState, StateSchema
from marft.runs.user_code import hash_user_code

if TYPE_CHECKING:
    from torch import Tensor

    from marft.models.policy_registry import PolicyRegistry

RECIPE = "recipe.toml"
CRITIC, OPTIMIZER = "critic.safetensors", "optimizer.safetensors"
BEST_METRICS = ("validation_accuracy", "validation_reward", "reward")  # metrics for the best checkpoint, by priority
CHECKPOINT, START = re.compile(r"step_\d{6,}"), re.compile(r"start_\d{1,9}")


@dataclass(frozen=True, slots=True)
class State:
    """Progress of a run at a checkpoint. Random streams are named, so they have no state."""

    step: int = 0  # completed training steps
    environment_steps: int = 0
    best_step: int = 0  # step of the best checkpoint so far; 0: none
    best_score: float = -1.0
    best_by: str = ""  # metric of the best score; scores of different metrics are not comparable
    tasks_drawn: int = 0  # position in the endless pass over the training tasks
    tasks: str = ""  # digest of the training tasks
    returns: int = 0  # number of rollbacks to an earlier checkpoint
    cooled: float = 1.0  # factor for learning rates since the last rollback
    parts: Mapping[str, float] = field(default_factory=dict)  # credit state carried from step to step
    set_aside: Mapping[str, str] = field(default_factory=dict)  # excluded tasks by ID, with the reasons
    curriculum: CurriculumState | None = None  # difficulty levels in use
    profiles: PromptHistory | None = None  # learned prompts of agents

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


@dataclass(frozen=True, slots=True)
class CheckpointRecord:
    """Checkpoint contents besides the weights. All of them are covered by digests."""

    path: Path
    state: State
    log: LogDigest  # length and digest of the metrics log at the checkpoint
    models: Mapping[str, str]  # digests of the base models, tokenizers and frozen adapters in training
    code: Mapping[str, str]  # digests of the files of user code
    version: str  # MARFT version

    def read_recipe(self, objects: Iterable[object] = ()) -> RunSettings:
        """Return the recipe saved with the checkpoint.

        Args:
            objects: Python objects that the recipe refers to by placeholder.

        Raises:
            ValueError: this version of MARFT cannot read the recipe.
        """
        return load_recipe(self.path / RECIPE, given=objects)


class CriticState(Protocol):
    """Critic state for a checkpoint."""

    def state_dict(self) -> dict[str, Tensor]:
        """Return all learned tensors."""

    def load_state_dict(self, state: Mapping[str, Tensor]) -> bool:
        """Restore the output of :meth:`state_dict`; return False if it does not fit this critic."""


class TrainState(Protocol):
    """Learner state for a checkpoint, besides the policy weights."""

    @property
    def optimizers(self) -> Mapping[str, object]:
        """Optimizers of the trained policies, by policy name."""

    @property
    def critic(self) -> CriticState | None:
        """Critic model. The value is None without a critic."""

    def not_finite(self) -> list[str]:
        """Return the names of parts with non-finite numbers."""

    def state_dict(self) -> dict[str, float]:
        """Return the state carried between steps, besides weights and optimizer moments."""

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Restore the output of :meth:`state_dict`."""

    def optimizer_state(self) -> dict[str, Tensor]:
        """Return the optimizer moments."""

    def load_optimizer_state(self, state: Mapping[str, Tensor]) -> None:
        """Restore the output of :meth:`optimizer_state`."""


class CheckpointManager:
    """Manager of a run's ``checkpoints`` folder.

    Args:
        min_rollback_age: minimum age of a rollback checkpoint, in steps. The first checkpoint, the newest one of that
            age, and all newer ones are kept. 0: the run is never rolled back.
    """

    def __init__(self, folder: RunFolder, settings: CheckpointSettings, min_rollback_age: int = 0) -> None:
        self.folder, self.path, self.settings, self.min_rollback_age = (
            folder,
            folder.checkpoints,
            settings,
            min_rollback_age,
        )

    def save(
        self,
        state: State,
        run: RunSettings,
        models: PolicyRegistry,
        learner: TrainState,
        log: LogDigest,
        write_extra: Callable[[Path], None] = lambda _: None,
    ) -> Path:
        """Write checkpoint ``step_<n>`` and delete superseded checkpoints.

        Args:
            write_extra: writes additional files into the checkpoint's folder.
        """
        target = self.path / checkpoint_name(state.step)
        _clear_target(target)
        self._write(target, state, run, models, learner, log, write_extra)
        self._prune(state)
        return target

    def save_initial(self, state: State, run: RunSettings, models: PolicyRegistry, learner: TrainState) -> Path:
        """Write a new run's initial weights to ``start_<n>``.

        The run to overwrite still exists at that time. The name is unused, because the source of the weights may be in
        the same folder.
        """
        self.path.mkdir(exist_ok=True)
        number = 1 + max((int(path.name.removeprefix("start_")) for path in list_starts(self.path)), default=0)
        target = self.path / f"start_{number}"
        self._write(target, state, run, models, learner, LogDigest.from_content(b""))
        return target

    def use_initial(self, start: Path) -> None:
        """Rename a saved start to the checkpoint of step 0."""
        start.rename(self.path / checkpoint_name(0))
        atomic.sync_folder(self.path)

    def _write(
        self,
        target: Path,
        state: State,
        run: RunSettings,
        models: PolicyRegistry,
        learner: TrainState,
        log: LogDigest,
        write_extra: Callable[[Path], None] = lambda _: None,
    ) -> None:
        from safetensors.torch import save_file

        assert not learner.not_finite(), "what is not finite is undone, not saved"
        with atomic.new_folder(target) as staging:
            for policy in learner.optimizers:
                models.save_policy(policy, staging / "policies" / policy)
            if learner.critic:
                save_file(_contiguous(learner.critic.state_dict()), staging / CRITIC)
            save_file(_contiguous(learner.optimizer_state()), staging / OPTIMIZER)
            atomic.write_file(staging / RECIPE, to_toml(run), atomic.PRIVATE_MODE)
            write_extra(staging)
            files = {file.relative_to(staging).as_posix(): digest_of_file(file) for file in _files(staging)}
            provenance = {"models": models.compute_digests(), "code": hash_user_code(run), "version": __version__}
            metadata = {"files": files, "log": asdict(log), **provenance}
            table = {**asdict(replace(state, parts=learner.state_dict())), **metadata}
            (staging / STATE_FILE).write_text(json.dumps({**table, "digest": digest_of_table(table)}, indent=2) + "\n")

    def newest(self) -> tuple[CheckpointRecord | None, list[str]]:
        """Return the newest undamaged checkpoint, and the problems in newer checkpoints.

        The checkpoint is None if the folder has no checkpoints.

        Raises:
            ValueError: checkpoints exist, but all are damaged.
        """
        atomic.remove_temp_entries(self.path)
        problems: list[str] = []
        for path in reversed(self.steps()):
            try:
                return read_record(path), problems
            except ValueError as error:
                problems.append(str(error))
        if problems:
            raise ValueError("no checkpoint can be read:\n  " + "\n  ".join(problems))
        return None, []

    def steps(self) -> list[Path]:
        """Return the checkpoint folders, oldest first."""
        return self.folder.saved_steps()

    def find(self, name: str) -> Path:
        """Return a checkpoint's folder by name: ``last``, ``best`` or ``step_000050``.

        Raises:
            ValueError: the checkpoint does not exist. ``best`` requires a rated checkpoint.
        """
        steps = self.steps()
        if steps and name == "last":
            return steps[-1]
        if steps and name == "best":
            return self._find_best(steps)
        if name in (path.name for path in steps):
            return self.path / name
        names = ", ".join(["last", "best", *(path.name for path in steps)] if steps else ["none; marft train --resume"])
        raise ValueError(f"no checkpoint {name!r} in {self.path}; there are: {names}")

    def _find_best(self, steps: Sequence[Path]) -> Path:
        """Return the best checkpoint according to the newest checkpoint.

        Raises:
            ValueError: no step was rated, or the checkpoint was deleted.
        """
        step, other_names = verify(steps[-1]).best_step, ", ".join(["last", *(path.name for path in steps)])
        if not step:
            raise ValueError(
                f"{self.path} has no best checkpoint: no step up to {parse_step(steps[-1])} was validated or rated "
                f"(evaluation.every, sft.held_out_fraction); name another one: {other_names}"
            )
        best = self.path / checkpoint_name(step)
        if not best.is_dir():
            raise ValueError(
                f"{best}, the best checkpoint, is gone (checkpoints.keep_best keeps it); name another one: "
                f"{other_names}"
            )
        return best

    def _prune(self, state: State) -> None:
        # later checkpoints were skipped on resume
        saved_steps = [parse_step(path) for path in self.steps() if parse_step(path) <= state.step]
        kept_steps = steps_to_keep(saved_steps, self.settings.keep_last, self.min_rollback_age)
        if self.settings.keep_best:
            kept_steps.add(state.best_step)
        for step in saved_steps:
            if step not in kept_steps:
                remove_checkpoint(self.path / checkpoint_name(step))


def steps_to_keep(saved_steps: Sequence[int], last: int, min_rollback_age: int) -> set[int]:
    """Return the steps with checkpoints to keep.

    These are the ``last`` newest ones. With ``min_rollback_age``, they also include the first one, the newest one that
    is at least ``min_rollback_age`` steps old, and all later ones.

    Args:
        saved_steps: steps with a checkpoint, oldest first.
        last: number of newest checkpoints to keep.
        min_rollback_age: minimum age of a rollback checkpoint, in steps; 0 keeps none for rollbacks.

    >>> sorted(steps_to_keep([0, 4, 6, 8, 10], last=2, min_rollback_age=5))
    [0, 4, 6, 8, 10]
    >>> sorted(steps_to_keep([0, 4, 6, 8, 10], last=2, min_rollback_age=0))
    [8, 10]
    """
    kept_steps = set(saved_steps[-last:])
    if min_rollback_age:
        old = [step for step in saved_steps if step <= saved_steps[-1] - min_rollback_age]
        kept_steps.update(saved_steps[:1], old[-1:], saved_steps[len(old) :])
    return kept_steps


def list_starts(checkpoints: Path) -> list[Path]:
    """Return saved starts, oldest first. They are left over from interrupted starts."""
    folders = [path for path in checkpoints.glob("start_*") if START.fullmatch(path.name) and path.is_dir()]
    return sorted(folders, key=lambda path: int(path.name.removeprefix("start_")))


def _clear_target(target: Path) -> None:
    """Remove a skipped checkpoint from a target path. Files that no run wrote are renamed instead."""
    if target.is_dir() and not target.is_symlink():
        remove_checkpoint(target)
    if target.exists() or target.is_symlink():
        target.rename(atomic.unused_path(target, "damaged"))


def checkpoint_name(step: int) -> str:
    """Return the folder name for a step, for example ``step_000050``."""
    return f"step_{step:06d}"


def verify(path: Path) -> State:
    """Verify every file of a checkpoint against its digest and return the progress.

    Raises:
        ValueError: a file is missing or damaged.
    """
    return read_record(path).state


def read_record(path: Path) -> CheckpointRecord:
    """Verify every file of a checkpoint against its digest and return the record.

    Raises:
        ValueError: a file is missing or damaged, or the checkpoint is from another version of MARFT.
    """
    if not (path / STATE_FILE).is_file():
        inside = [*path.glob("checkpoints/step_*"), *path.glob("step_*")]
        example = max(inside, key=lambda folder: folder.name, default="runs/name/checkpoints/step_000050")
        raise ValueError(f"{path} is no whole checkpoint: it has no {STATE_FILE}; give one such as {example}")
    try:
        table = atomic.read_json(path / STATE_FILE)
        if "digest" not in table:
            raise ValueError(f"{path} is no checkpoint of this version of MARFT: {STATE_FILE} has no digest")
        if table.pop("digest") != digest_of_table(table):
            raise ValueError(f"{path}: {STATE_FILE} is damaged")
        schema = StateSchema.model_validate(table)
        files = schema.files
        for name, digest in files.items():
            if not (path / name).is_file() or digest_of_file(path / name) != digest:
                raise ValueError(f"{path}: {name} is damaged")
        added = [name for file in _files(path) if (name := file.relative_to(path).as_posix()) not in files]
        if weights := [name for name in added if name.endswith(".safetensors")]:
            raise ValueError(f"{path}: {weights[0]} was not written with it; remove it")
        state = State(**schema.model_dump(include={field.name for field in fields(State)} - {"curriculum", "profiles"}))
        state = replace(state, curriculum=schema.curriculum_state(), profiles=schema.prompt_lineage())
        if CHECKPOINT.fullmatch(path.name) and path.name != checkpoint_name(state.step):
            raise ValueError(f"{path} is the checkpoint of step {state.step}, under another's name")
        log = LogDigest(schema.log.length, schema.log.digest)
        return CheckpointRecord(path, state, log, schema.models, schema.code, schema.version)
    except ValidationError as error:
        raise ValueError(f"{path}: {STATE_FILE} holds what no run writes: {first_problem(error)}") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is no whole checkpoint: {error}") from error


def restore(record: CheckpointRecord, models: PolicyRegistry, learner: TrainState) -> State:
    """Load a checkpoint into models and learner to resume its run, and return the progress.

    Raises:
        ValueError: the checkpoint does not fit, or the run used other models.
    """
    for name, digest in models.compute_digests().items():
        if record.models.get(name, digest) != digest:
            raise ValueError(
                f"{name} is not what the run learned with up to step {record.state.step}: its weights, tokenizer or "
                "chat template are others. Put the old ones back, or start a new run with --init-from"
            )
    load_checkpoint(record, models, learner)
    return record.state


def load_checkpoint(record: CheckpointRecord, models: PolicyRegistry, learner: TrainState) -> None:
    """Load policies, optimizers, critic and the carried learner state from a checkpoint.

    Raises:
        ValueError: the checkpoint does not fit.
    """
    load_policies(record.path, models, learner.optimizers)
    if learner.critic and not learner.critic.load_state_dict(_read_state(record.path / CRITIC)):
        raise ValueError(f"{record.path}: its critic is another one than the run's; start a new run with --init-from")
    learner.load_optimizer_state(_read_state(record.path / OPTIMIZER))
    learner.load_state_dict(record.state.parts)


def load_policies(path: Path, models: PolicyRegistry, policies: Mapping[str, object]) -> None:
    """Load the weights of ``policies`` from a checkpoint.

    Raises:
        ValueError: the checkpoint was deleted, lacks a policy, or does not fit.
    """
    for policy in policies:
        folder = path / "policies" / policy
        if not folder.is_dir():
            reason = "is gone: a run keeps its newest ones alone (checkpoints.keep_last); start again"
            raise ValueError(f"{path} {f'holds no policy {policy!r}' if path.is_dir() else reason}")
        models.load_policy(policy, folder)


def load_critic(path: Path, learner: TrainState) -> bool:
    """Load a checkpoint's critic for a new run, and return True if it exists and fits."""
    if learner.critic is None or not (path / CRITIC).is_file():
        return False
    return learner.critic.load_state_dict(_read_state(path / CRITIC))


def _read_state(path: Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    from marft.models.checkpoint_checks import check_finite

    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise ValueError(f"cannot read {path}: {error}") from error
    check_finite(tensors, str(path))
    return tensors


def _contiguous(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}


def _files(folder: Path) -> list[Path]:
    return sorted(file for file in folder.rglob("*") if file.is_file())


def digest_of_table(table: Mapping[str, object]) -> str:
    """Return the SHA-256 digest of a table, in hexadecimal digits."""
    return hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()


def digest_of_file(path: Path) -> str:
    """Return the SHA-256 digest of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
