"""Run start: new, from another run's weights, or resumed.

A refused start leaves no traces on disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from marft.common import atomic
from marft.common.callbacks import CallbackList
from marft.common.errors import UserError
from marft.common.log import get_logger
from marft.common.types import Task
from marft.config.run import RunSettings
from marft.envs.tasks import digest_tasks
from marft.models.policy_registry import PolicyRegistry
from marft.runs.changes import change_notes, check_changes, code_notes
from marft.runs.checkpoints import (
    CheckpointManager,
    TrainState,
    load_critic,
    load_policies,
    read_callback_states,
    restore,
)
from marft.runs.metrics_log import LogDigest, truncate_log
from marft.runs.run_folder import MARKER, RunFolder
from marft.runs.state import CheckpointRecord, State, checkpoint_name, read_record

logger = get_logger(__name__)
SFT_PREFIX = "imitated "  # prefix of a warm start's digest of turns, stored in place of the task digest


@dataclass(frozen=True, slots=True)
class RunInit:
    """Start of a run, after the checks that work without models."""

    run: RunSettings
    folder: RunFolder
    resume: bool
    overwrite: bool
    record: CheckpointRecord | None  # checkpoint to resume from or, for a new run, to take weights from

    @staticmethod
    def prepare(
        run: RunSettings,
        folder: RunFolder,
        *,
        resume: bool,
        overwrite: bool,
        start_from: Path | None,
        is_sft: bool = False,
    ) -> RunInit:
        """Check the folder and the options.

        Args:
            run: recipe of the run.
            folder: folder of the run.
            resume: True to resume the run in the folder.
            overwrite: True to overwrite the run in the folder.
            start_from: checkpoint of another run to take weights from.
            is_sft: True for a warm start by imitation, False for training by rewards.

        Raises:
            UserError: options conflict, or the run or checkpoint is unusable.
        """
        if resume and (overwrite or start_from):
            raise UserError(
                f"--resume goes on with the run that is there, and {'--overwrite' if overwrite else '--init-from'} "
                "begins a new one; give one of them"
            )
        folder.check_links()
        if not resume:
            if start_from and start_from.is_file():
                raise _no_checkpoint_error(start_from, is_sft)
            return RunInit(run, folder, resume, overwrite, read_record(start_from) if start_from else None)
        return RunInit(run, folder, resume, overwrite, _find_last(run, folder, is_sft))

    def load(self, models: PolicyRegistry, learner: TrainState) -> State:
        """Load the weights → run state.

        Raises:
            UserError: the weights do not fit the models.
        """
        if self.record is None:
            return State()
        if self.resume:
            return restore(self.record, models, learner)
        load_policies(self.record.path, models, learner.optimizers)
        for version in self.record.state.prompts.current_versions() if self.record.state.prompts else ():
            instructions = {agent.role: agent.instructions for agent in self.run.agents}
            if instructions.get(version.role, version.instructions) != version.instructions:
                logger.warning(
                    f"agents.{version.role}.instructions: the weights learned with others, which this recipe does not "
                    f"give: {version.instructions!r}"
                )
        if learner.critic and not load_critic(self.record.path, learner):
            logger.warning("the checkpoint has no critic that fits; a new one starts from zero")
        return State()

    def with_tasks(self, state: State, tasks: Sequence[Task]) -> State:
        """Record the training tasks in the state.

        Raises:
            UserError: the run was trained on other tasks before.
        """
        return self.with_digest(state, digest_tasks(tasks), "training tasks")

    def with_digest(self, state: State, digest: str, description: str) -> State:
        """Record the digest of the training data in the state.

        Args:
            state: state of the run.
            digest: digest of the training data.
            description: description of the data for the error message.

        Raises:
            UserError: the run was trained on other data before.
        """
        if state.tasks not in ("", digest):
            raise UserError(
                f"the {description} are not those that the run learned from up to step {state.step}: put them "
                "back, or start a new run from these weights: --init-from "
                f"{self.folder.checkpoints / checkpoint_name(state.step)}"
            )
        return replace(state, tasks=digest)

    def metrics_before(self, step: int) -> list[dict[str, float]]:
        """Return the metrics of the run's first ``step`` steps; empty for a new run."""
        return [row for row in self.folder.read_metrics() if row["step"] <= step] if self.resume else []

    def restore_callbacks(self, callbacks: CallbackList) -> None:
        """Restore the state of callbacks when a run resumes.

        Raises:
            UserError: the run lacks a callback whose state the checkpoint holds, or the state cannot be read.
        """
        if self.record and self.resume:
            callbacks.load_state_dict(read_callback_states(self.record.path))

    def commit(self, state: State, models: PolicyRegistry, learner: TrainState) -> None:
        """Claim the folder after all checks, and rewind its log to ``state``.

        A run that starts from other weights saves them in a checkpoint first. Otherwise the weights would be lost if
        the run stopped before its first checkpoint. When a run is overwritten, this checkpoint is written before
        anything is deleted, because the weights may belong to the overwritten run.

        Raises:
            UserError: another process has started a run in the folder.
        """
        if self.resume:
            if not self.folder.is_run():
                self.folder.write_marker()
                logger.warning(f"{self.folder.path} had lost its mark of a run (run.json), and has it again")
            for record_folder in (self.folder.episodes, self.folder.credit, self.folder.imagined):
                atomic.remove_temp_files(record_folder)
            self._truncate_log(state)
            self.folder.write_config(self.run)
            return
        source = self.record.path if self.record else None
        checkpoints = CheckpointManager(self.folder, self.run.checkpoints)
        start = None
        if source and self.overwrite and self.folder.is_run():
            self.folder.check_free(overwrite=True)
            start = checkpoints.save_initial(state, self.run, models, learner)
        remaining_files = self.folder.begin(self.run, overwrite=self.overwrite, start_from=source, start=start)
        if remaining_files:
            logger.warning(
                f"left in {self.folder.path}, for no run wrote them: {', '.join(str(path) for path in remaining_files)}"
            )
        if start:
            checkpoints.use_initial(start)
        elif source:
            checkpoints.save(state, self.run, models, learner, LogDigest.from_content(b""))

    def _truncate_log(self, state: State) -> None:
        if self.record is not None:
            for problem in truncate_log(self.folder.metrics_path, state.step, self.record.log):
                logger.warning(problem)
            return
        logged = len(self.folder.read_metrics())
        if logged:
            logger.warning(
                f"no checkpoint was written yet; begins again, and plays the {logged} logged steps once more"
            )
        truncate_log(self.folder.metrics_path, 0, LogDigest.from_content(b""))


def _no_checkpoint_error(start_from: Path, is_sft: bool) -> ValueError:
    """Return the error for a file in place of a checkpoint folder."""
    if is_sft:
        return UserError(
            f"--init-from {start_from}: weights lie in the folder of a checkpoint, and this is a file. Traces to "
            "imitate are given with --traces"
        )
    return UserError(
        f"--init-from {start_from}: training by rewards starts from a checkpoint, and this is a file. Traces are never "
        "trained with ratios of policies: these need the ids that were sampled and their log-probabilities, and a "
        f"trace has text. Learn from them by imitation:  marft sft RECIPE --traces {start_from}  or grade them:  "
        f"marft score RECIPE --traces {start_from}"
    )


def _find_last(run: RunSettings, folder: RunFolder, is_sft: bool) -> CheckpointRecord | None:
    """Return the checkpoint to resume from; None before the first checkpoint.

    Raises:
        UserError: the run cannot resume with these settings or files.
    """
    if start := folder.interrupted_start():
        raise UserError(
            f"{folder.path} was to begin anew with the weights that lie in {start}, and was stopped before it had: "
            f"start it again, with --init-from {start} --overwrite"
        )
    checkpoints = CheckpointManager(folder, run.checkpoints)
    if not folder.is_run() and not checkpoints.steps():
        raise UserError(
            f"{folder.path} has no mark of a run (run.json) of this version of MARFT, and no checkpoint to know one "
            f"by: start a new run; or, should it be one, put {MARKER} into {folder.path / 'run.json'}"
        )
    record, problems = checkpoints.newest()
    for problem in problems:
        logger.warning(f"passed over a checkpoint: {problem}")
    if record is None and (source := folder.initial_checkpoint()):
        raise UserError(
            f"{folder.path} was to start with the weights of {source} and has no checkpoint yet: start it again, "
            f"with --init-from {source} --overwrite"
        )
    if record is not None:
        if record.state.tasks.startswith(SFT_PREFIX) != is_sft:
            run_kind, other_command = (
                ("a warm start", "sft") if not is_sft else ("a run that learns by rewards", "train")
            )
            raise UserError(
                f"{folder.path} is {run_kind}: it goes on with  marft {other_command} {folder.path} --resume ; a new "
                f"run starts from its weights with --init-from {record.path}"
            )
        before = record.read_recipe(run.python_objects.values())
        check_changes(before, run)
        if not is_sft and run.training.steps < record.state.step:
            raise UserError(
                f"training.steps = {run.training.steps}, and the run has done {record.state.step} already: to go on, "
                f"give a larger number; to see what it has learned:  marft eval {folder.path}"
            )
        for text in (*change_notes(before, run), *code_notes(record.code, run, record.state.step)):
            logger.warning(text)
    return record
