"""Checkpoints: weights, optimizers and progress, whole or not there, never a pickle.

Torch is imported where weights are read or written: which checkpoints there are, and whether they are whole, is known
without it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from pydantic import ValidationError
from safetensors import SafetensorError

from marft.common import atomic
from marft.common.lineage import Lineage
from marft.common.version import __version__
from marft.config.load import first_problem, load_recipe, to_toml
from marft.config.run import CheckpointSettings, RunSettings
from marft.runs.code import digests_of_code
from marft.runs.folder import RunFolder, step_of
from marft.runs.log import Mark
from marft.runs.removing import remove_checkpoint
from marft.runs.stated import STATE, Standing, Written

if TYPE_CHECKING:
    from torch import Tensor

    from marft.models.pool import Models

RECIPE = "recipe.toml"
CRITIC, OPTIMIZER = "critic.safetensors", "optimizer.safetensors"
CHECKPOINT, START = re.compile(r"step_\d{6,}"), re.compile(r"start_\d{1,9}")


@dataclass(frozen=True, slots=True)
class State:
    """How far a run was when a checkpoint was written. Random streams are named, so they need no state."""

    step: int = 0  # training steps done
    environment_steps: int = 0
    best_step: int = 0  # the checkpoint with the best score so far; 0 for none
    best_score: float = -1.0
    best_by: str = ""  # the metric that the score is of; scores of others are on other scales
    tasks_drawn: int = 0  # of the endless pass over the training tasks
    tasks: str = ""  # digest of the training tasks
    returns: int = 0  # times that the run has gone back to an earlier checkpoint
    cooled: float = 1.0  # what learning rates are multiplied by since then
    parts: Mapping[str, float] = field(default_factory=dict)  # what the credit carries from step to step
    set_aside: Mapping[str, str] = field(default_factory=dict)  # tasks that are drawn no more, by id, and why
    curriculum: Standing | None = None  # which levels of difficulty are asked
    profiles: Lineage | None = None  # what agents are told, where that is learned


@dataclass(frozen=True, slots=True)
class Record:
    """What a checkpoint says of itself, besides the weights: all of it covered by digests."""

    path: Path
    state: State
    log: Mark  # how far the run's metrics went
    models: Mapping[str, str]  # digests of the bases, tokenizers and frozen adapters that the run learned with
    code: Mapping[str, str]  # digests of the files of users' parts
    version: str  # of MARFT

    def recipe(self, given: Iterable[object] = ()) -> RunSettings:
        """The recipe that the run learned with.

        Args:
            given: what it names as given in Python.

        Raises:
            ValueError: this version of MARFT cannot read it.
        """
        return load_recipe(self.path / RECIPE, given=given)


class CriticState(Protocol):
    """State of a critic that a checkpoint holds."""

    def state_dict(self) -> dict[str, Tensor]:
        """Return all that it has learned."""

    def load_state_dict(self, state: Mapping[str, Tensor]) -> bool:
        """Undo :meth:`state_dict` → whether the state fits this critic."""


class TrainState(Protocol):
    """State of a learner that a checkpoint holds, beside the weights of policies."""

    @property
    def optimizers(self) -> Mapping[str, object]:
        """Optimizers of the trained policies, by the name of the policy."""

    @property
    def critic(self) -> CriticState | None:
        """The critic, where there is one."""

    def not_finite(self) -> list[str]:
        """Return the parts that hold a number that is not finite, by name."""

    def state_dict(self) -> dict[str, float]:
        """Return what is carried from step to step beside weights and moments."""

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Undo :meth:`state_dict`."""

    def optimizer_state(self) -> dict[str, Tensor]:
        """Return the moments of the optimizers."""

    def load_optimizer_state(self, state: Mapping[str, Tensor]) -> None:
        """Undo :meth:`optimizer_state`."""


class Checkpoints:
    """The ``checkpoints`` folder of a run.

    Args:
        spare: how many steps old a checkpoint is that a run goes back to; the first, the newest such, and those that
            become so stay. 0: it never goes back.
    """

    def __init__(self, folder: RunFolder, settings: CheckpointSettings, spare: int = 0) -> None:
        self.folder, self.path, self.settings, self.spare = folder, folder.checkpoints, settings, spare

    def save(
        self, state: State, run: RunSettings, models: Models, learner: TrainState, log: Mark,
        beside: Callable[[Path], None] = lambda _: None,
    ) -> Path:  # fmt: skip
        """Write ``step_<n>`` and let go of those that need not be kept.

        Args:
            beside: writes what else the run needs to go on into the checkpoint's folder.
        """
        target = self.path / name_of(state.step)
        _make_way(target)
        self._write(target, state, run, models, learner, log, beside)
        self._let_go(state)
        return target

    def set_aside(self, state: State, run: RunSettings, models: Models, learner: TrainState) -> Path:
        """Write what a run is to begin with, while the run whose place it takes is still there.

        It is called ``start_<n>``: a name that nothing has, for what the weights came from may lie here too.
        """
        self.path.mkdir(exist_ok=True)
        number = 1 + max((int(path.name.removeprefix("start_")) for path in starts(self.path)), default=0)
        target = self.path / f"start_{number}"
        self._write(target, state, run, models, learner, Mark.of(b""))
        return target

    def begin_with(self, start: Path) -> None:
        """What was set aside is the checkpoint of step 0 from now on."""
        start.rename(self.path / name_of(0))
        atomic.sync_folder(self.path)

    def _write(
        self, target: Path, state: State, run: RunSettings, models: Models, learner: TrainState, log: Mark,
        beside: Callable[[Path], None] = lambda _: None,
    ) -> None:  # fmt: skip
        from safetensors.torch import save_file

        assert not learner.not_finite(), "what is not finite is undone, not saved"
        with atomic.new_folder(target) as draft:
            for policy in learner.optimizers:
                models.save_policy(policy, draft / "policies" / policy)
            if learner.critic:
                save_file(_contiguous(learner.critic.state_dict()), draft / CRITIC)
            save_file(_contiguous(learner.optimizer_state()), draft / OPTIMIZER)
            atomic.write_file(draft / RECIPE, to_toml(run), atomic.OWN)
            beside(draft)
            files = {file.relative_to(draft).as_posix(): digest_of_file(file) for file in _files(draft)}
            known = {"models": models.digests(), "code": digests_of_code(run), "version": __version__}
            about = {"files": files, "log": asdict(log), **known}
            table = {**asdict(replace(state, parts=learner.state_dict())), **about}
            (draft / STATE).write_text(json.dumps({**table, "digest": digest_of_table(table)}, indent=2) + "\n")

    def newest(self) -> tuple[Record | None, list[str]]:
        """The newest whole checkpoint, and what is wrong with those after it. None where no checkpoint was written.

        Raises:
            ValueError: checkpoints are there, but none is whole.
        """
        atomic.remove_unfinished(self.path)
        damaged: list[str] = []
        for path in reversed(self.steps()):
            try:
                return read_record(path), damaged
            except ValueError as error:
                damaged.append(str(error))
        if damaged:
            raise ValueError("no checkpoint can be read:\n  " + "\n  ".join(damaged))
        return None, []

    def steps(self) -> list[Path]:
        """Checkpoint folders, oldest first."""
        return self.folder.saved_steps()

    def find(self, name: str) -> Path:
        """Return the folder of a checkpoint by name: ``last``, ``best`` or ``step_000050``.

        Raises:
            ValueError: there is none. ``best`` never stands for a checkpoint that was not rated.
        """
        steps = self.steps()
        if steps and name == "last":
            return steps[-1]
        if steps and name == "best":
            return self._best(steps)
        if name in (path.name for path in steps):
            return self.path / name
        known = ", ".join(["last", "best", *(path.name for path in steps)] if steps else ["none; marft train --resume"])
        raise ValueError(f"no checkpoint {name!r} in {self.path}; there are: {known}")

    def _best(self, steps: Sequence[Path]) -> Path:
        """Return the best checkpoint, as the newest one has it.

        Raises:
            ValueError: no step was rated, or the checkpoint is gone.
        """
        step, others = verify(steps[-1]).best_step, ", ".join(["last", *(path.name for path in steps)])
        if not step:
            raise ValueError(
                f"{self.path} has no best checkpoint: no step up to {step_of(steps[-1])} was validated or rated "
                f"(evaluation.every, sft.held_out); name another one: {others}"
            )
        best = self.path / name_of(step)
        if not best.is_dir():
            raise ValueError(
                f"{best}, the best checkpoint, is gone (checkpoints.keep_best keeps it); name another one: {others}"
            )
        return best

    def _let_go(self, state: State) -> None:
        done = [step_of(path) for path in self.steps() if step_of(path) <= state.step]  # what is later was passed over
        stay = kept(done, self.settings.keep_last, self.spare)
        if self.settings.keep_best:
            stay.add(state.best_step)
        for step in done:
            if step not in stay:
                remove_checkpoint(self.path / name_of(step))


def kept(done: Sequence[int], last: int, spare: int) -> set[int]:
    """The steps whose checkpoints stay, of those that there are, oldest first: the ``last`` newest, and for a run that
    goes back ``spare`` steps the first, the newest that is that old, and what grows that old before another does.

    >>> sorted(kept([0, 4, 6, 8, 10], last=2, spare=5))
    [0, 4, 6, 8, 10]
    >>> sorted(kept([0, 4, 6, 8, 10], last=2, spare=0))
    [8, 10]
    """
    stay = set(done[-last:])
    if spare:
        old = [step for step in done if step <= done[-1] - spare]
        stay.update(done[:1], old[-1:], done[len(old) :])
    return stay


def starts(checkpoints: Path) -> list[Path]:
    """What was set aside for a run to begin with, oldest first: a start that was cut short has left it."""
    found = [path for path in checkpoints.glob("start_*") if START.fullmatch(path.name) and path.is_dir()]
    return sorted(found, key=lambda path: int(path.name.removeprefix("start_")))


def _make_way(target: Path) -> None:
    """Clear the place of a checkpoint of what was passed over there. What no run wrote is put aside, not removed."""
    if target.is_dir() and not target.is_symlink():
        remove_checkpoint(target)
    if target.exists() or target.is_symlink():
        target.rename(atomic.free_name(target, "damaged"))


def name_of(step: int) -> str:
    return f"step_{step:06d}"


def verify(path: Path) -> State:
    """Check every file of a checkpoint against its digest → the state.

    Raises:
        ValueError: something is missing or not as it was written.
    """
    return read_record(path).state


def read_record(path: Path) -> Record:
    """Check every file of a checkpoint against its digest → what it says of itself.

    Raises:
        ValueError: something is missing or not as it was written.
    """
    if not (path / STATE).is_file():
        inside = [*path.glob("checkpoints/step_*"), *path.glob("step_*")]
        which = max(inside, key=lambda found: found.name, default="runs/name/checkpoints/step_000050")
        raise ValueError(f"{path} is no whole checkpoint: it has no {STATE}; give one such as {which}")
    try:
        table = atomic.read_json(path / STATE)
        if "digest" not in table:
            raise ValueError(f"{path} is no checkpoint of this version of MARFT: {STATE} has no digest")
        if table.pop("digest") != digest_of_table(table):
            raise ValueError(f"{path}: {STATE} is damaged")
        written = Written.model_validate(table)
        files = written.files
        for name, digest in files.items():
            if not (path / name).is_file() or digest_of_file(path / name) != digest:
                raise ValueError(f"{path}: {name} is damaged")
        added = [name for file in _files(path) if (name := file.relative_to(path).as_posix()) not in files]
        if weights := [name for name in added if name.endswith(".safetensors")]:
            raise ValueError(f"{path}: {weights[0]} was not written with it; remove it")
        state = State(
            **written.model_dump(include={field.name for field in fields(State)} - {"curriculum", "profiles"})
        )
        state = replace(state, curriculum=written.standing(), profiles=written.lineage())
        if CHECKPOINT.fullmatch(path.name) and path.name != name_of(state.step):
            raise ValueError(f"{path} is the checkpoint of step {state.step}, under another's name")
        log = Mark(written.log.length, written.log.digest)
        return Record(path, state, log, written.models, written.code, written.version)
    except ValidationError as error:
        raise ValueError(f"{path}: {STATE} holds what no run writes: {first_problem(error)}") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is no whole checkpoint: {error}") from error


def restore(record: Record, models: Models, learner: TrainState) -> State:
    """Load a run's checkpoint into models and learner → its state.

    Raises:
        ValueError: it does not fit, or the run learned with other models.
    """
    for name, digest in models.digests().items():
        if record.models.get(name, digest) != digest:
            raise ValueError(
                f"{name} is not what the run learned with up to step {record.state.step}: its weights, tokenizer or "
                "chat template are others. Put the old ones back, or start a new run with --from"
            )
    put_in_place(record, models, learner)
    return record.state


def put_in_place(record: Record, models: Models, learner: TrainState) -> None:
    """Load what a checkpoint holds of policies, optimizers, critic, and what credit and schedule carry.

    Raises:
        ValueError: it does not fit.
    """
    load_policies(record.path, models, learner.optimizers)
    if learner.critic and not learner.critic.load_state_dict(_read(record.path / CRITIC)):
        raise ValueError(f"{record.path}: its critic is another one than the run's; start a new run with --from")
    learner.load_optimizer_state(_read(record.path / OPTIMIZER))
    learner.load_state_dict(record.state.parts)


def load_policies(path: Path, models: Models, policies: Mapping[str, object]) -> None:
    """Load the weights of ``policies`` from a checkpoint.

    Raises:
        ValueError: it is gone, a policy is not in it, or does not fit.
    """
    for policy in policies:
        folder = path / "policies" / policy
        if not folder.is_dir():
            gone = "is gone: a run keeps its newest ones alone (checkpoints.keep_last); start again"
            raise ValueError(f"{path} {f'holds no policy {policy!r}' if path.is_dir() else gone}")
        models.load_policy(policy, folder)


def load_critic(path: Path, learner: TrainState) -> bool:
    """Load the critic of a checkpoint, for a new run that starts from it → whether there was one that fits."""
    if learner.critic is None or not (path / CRITIC).is_file():
        return False
    return learner.critic.load_state_dict(_read(path / CRITIC))


def _read(path: Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    from marft.models.checking import refuse_not_finite

    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise ValueError(f"cannot read {path}: {error}") from error
    refuse_not_finite(tensors, str(path))
    return tensors


def _contiguous(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}


def _files(folder: Path) -> list[Path]:
    return sorted(file for file in folder.rglob("*") if file.is_file())


def digest_of_table(table: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()


def digest_of_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
