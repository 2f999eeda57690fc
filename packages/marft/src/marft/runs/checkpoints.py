"""Checkpoints with weights, optimizers and progress, written atomically and without pickle.

PyTorch is imported only where weights are read or written. Checkpoints can be listed and verified without it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
from safetensors import SafetensorError
from safetensors import numpy as array_files

from marft.common import atomic
from marft.common.errors import UserError
from marft.config.load import to_toml
from marft.config.run import CheckpointSettings, RunSettings
from marft.runs.metrics_log import LogDigest
from marft.runs.run_files import (
    CALLBACK_ARRAYS_FILE,
    CALLBACK_VALUES_FILE,
    CRITIC_FILE,
    OPTIMIZER_FILE,
    RECIPE_FILE,
    START_NAME,
    remove_checkpoint,
)
from marft.runs.run_folder import RunFolder, parse_step
from marft.runs.state import CheckpointRecord, State, checkpoint_name, read_record, verify, write_state

if TYPE_CHECKING:
    from torch import Tensor

    from marft.models.policy_registry import PolicyRegistry


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
        self.folder, self.settings, self.min_rollback_age = folder, settings, min_rollback_age
        self.path = folder.checkpoints

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

        from marft.models.devices import copy_to_host

        assert not learner.not_finite(), "what is not finite is undone, not saved"
        with atomic.new_folder(target) as staging:
            for policy in learner.optimizers:
                models.save_policy(policy, staging / "policies" / policy)
            if learner.critic:
                save_file(copy_to_host(learner.critic.state_dict()), staging / CRITIC_FILE)
            save_file(copy_to_host(learner.optimizer_state()), staging / OPTIMIZER_FILE)
            atomic.write_file(staging / RECIPE_FILE, to_toml(run), atomic.PRIVATE_MODE)
            write_extra(staging)
            saved = replace(state, component_state=learner.state_dict())
            write_state(staging, saved, log, models.compute_digests(), run)

    def newest(self) -> tuple[CheckpointRecord | None, list[str]]:
        """Return the newest undamaged checkpoint, and the problems in newer checkpoints.

        The checkpoint is None if the folder has no checkpoints.

        Raises:
            UserError: checkpoints exist, but all are damaged.
        """
        atomic.remove_temp_entries(self.path)
        problems: list[str] = []
        for path in reversed(self.steps()):
            try:
                return read_record(path), problems
            except ValueError as error:
                problems.append(str(error))
        if problems:
            raise UserError("no checkpoint can be read:\n  " + "\n  ".join(problems))
        return None, []

    def steps(self) -> list[Path]:
        """Return the checkpoint folders, oldest first."""
        return self.folder.saved_steps()

    def find(self, name: str) -> Path:
        """Return a checkpoint's folder by name: ``last``, ``best`` or ``step_000050``.

        Raises:
            UserError: the checkpoint does not exist. ``best`` requires a rated checkpoint.
        """
        steps = self.steps()
        if steps and name == "last":
            return steps[-1]
        if steps and name == "best":
            return self._find_best(steps)
        if name in (path.name for path in steps):
            return self.path / name
        names = ", ".join(["last", "best", *(path.name for path in steps)] if steps else ["none; marft train --resume"])
        raise UserError(f"no checkpoint {name!r} in {self.path}; there are: {names}")

    def _find_best(self, steps: Sequence[Path]) -> Path:
        """Return the best checkpoint according to the newest checkpoint.

        Raises:
            UserError: no step was rated, or the checkpoint was deleted.
        """
        step, other_names = verify(steps[-1]).best_step, ", ".join(["last", *(path.name for path in steps)])
        if not step:
            raise UserError(
                f"{self.path} has no best checkpoint: no step up to {parse_step(steps[-1])} was validated or rated "
                f"(evaluation.every, sft.held_out_fraction); name another one: {other_names}"
            )
        best = self.path / checkpoint_name(step)
        if not best.is_dir():
            raise UserError(
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
    folders = [path for path in checkpoints.glob("start_*") if START_NAME.fullmatch(path.name) and path.is_dir()]
    return sorted(folders, key=lambda path: int(path.name.removeprefix("start_")))


def _clear_target(target: Path) -> None:
    """Remove a skipped checkpoint from a target path. Files that no run wrote are renamed instead."""
    if target.is_dir() and not target.is_symlink():
        remove_checkpoint(target)
    if target.exists() or target.is_symlink():
        target.rename(atomic.unused_path(target, "damaged"))


def restore(record: CheckpointRecord, models: PolicyRegistry, learner: TrainState) -> State:
    """Load a checkpoint into models and learner to resume its run, and return the progress.

    Raises:
        UserError: the checkpoint does not fit, or the run used other models.
    """
    for name, digest in models.compute_digests().items():
        if record.models.get(name, digest) != digest:
            raise UserError(
                f"{name} is not what the run learned with up to step {record.state.step}: its weights, tokenizer or "
                "chat template are others. Put the old ones back, or start a new run with --init-from"
            )
    load_checkpoint(record, models, learner)
    return record.state


def load_checkpoint(record: CheckpointRecord, models: PolicyRegistry, learner: TrainState) -> None:
    """Load policies, optimizers, critic and the carried learner state from a checkpoint.

    Raises:
        UserError: the checkpoint does not fit.
    """
    load_policies(record.path, models, learner.optimizers)
    if learner.critic and not learner.critic.load_state_dict(_read_state(record.path / CRITIC_FILE)):
        raise UserError(f"{record.path}: its critic is another one than the run's; start a new run with --init-from")
    learner.load_optimizer_state(_read_state(record.path / OPTIMIZER_FILE))
    learner.load_state_dict(record.state.component_state)


def load_policies(path: Path, models: PolicyRegistry, policies: Mapping[str, object]) -> None:
    """Load the weights of ``policies`` from a checkpoint.

    Raises:
        UserError: the checkpoint was deleted, lacks a policy, or does not fit.
    """
    for policy in policies:
        folder = path / "policies" / policy
        if not folder.is_dir():
            reason = "is gone: a run keeps its newest ones alone (checkpoints.keep_last); start again"
            raise UserError(f"{path} {f'holds no policy {policy!r}' if path.is_dir() else reason}")
        models.load_policy(policy, folder)


def load_critic(path: Path, learner: TrainState) -> bool:
    """Load a checkpoint's critic for a new run, and return True if it exists and fits."""
    if learner.critic is None or not (path / CRITIC_FILE).is_file():
        return False
    return learner.critic.load_state_dict(_read_state(path / CRITIC_FILE))


def _read_state(path: Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    from marft.models.checkpoint_checks import check_finite

    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise UserError(f"cannot read {path}: {error}") from error
    check_finite(tensors, str(path))
    return tensors


def write_callback_states(folder: Path, states: Mapping[str, Mapping[str, object]]) -> None:
    """Write the states of callbacks into a checkpoint's folder; nothing without states.

    Args:
        folder: folder of the checkpoint.
        states: JSON values and NumPy arrays by name, by name of the callback.

    Raises:
        UserError: a value is neither JSON nor an array.
    """
    if not states:
        return
    arrays: dict[str, np.ndarray] = {}
    table: dict[str, dict[str, object]] = {}
    for name, state in states.items():
        table[name] = {key: value for key, value in state.items() if not isinstance(value, np.ndarray)}
        own_arrays = {key: value for key, value in state.items() if isinstance(value, np.ndarray)}
        try:
            if json.loads(json.dumps(table[name], allow_nan=False)) != table[name]:
                raise UserError("a value changes when it is read back: keys are text, and lists are lists")
            # contiguous, and 0-dimensional arrays stay so
            new = {json.dumps([name, key]): np.asarray(value, order="C") for key, value in own_arrays.items()}
            array_files.save(new)
        except (TypeError, ValueError, KeyError, SafetensorError) as error:
            raise UserError(
                f"callback {name!r}: its state cannot be saved: {error}; state_dict returns JSON values, and "
                "numbers in NumPy arrays"
            ) from error
        arrays |= new
    if arrays:
        array_files.save_file(arrays, folder / CALLBACK_ARRAYS_FILE)
    atomic.write_file(folder / CALLBACK_VALUES_FILE, json.dumps(table))


def read_callback_states(folder: Path) -> dict[str, dict[str, object]]:
    """Read the states of callbacks from a checkpoint's folder; empty if there are none.

    Raises:
        UserError: the files cannot be read.
    """
    values_path, arrays_path = folder / CALLBACK_VALUES_FILE, folder / CALLBACK_ARRAYS_FILE
    if not values_path.is_file():
        return {}
    try:
        states: dict[str, dict[str, object]] = {name: dict(state) for name, state in _read(values_path).items()}
        arrays = array_files.load_file(arrays_path) if arrays_path.is_file() else {}
        for label, array in arrays.items():
            name, key = json.loads(label)
            states[name][key] = array
    except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError) as error:
        raise UserError(f"cannot read the state of callbacks in {folder}: {error}") from error
    return states


def _read(path: Path) -> Mapping[str, Mapping[str, object]]:
    table = atomic.read_json(path)
    if not isinstance(table, Mapping):
        raise TypeError(f"{path.name} is not a table")
    return table
