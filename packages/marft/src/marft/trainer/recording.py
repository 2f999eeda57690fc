"""Recording of a training step's episodes and credit in the run folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from marft.common.types import ActionCredit, Episode
from marft.config.run import RunSettings
from marft.rollout.rollout_batch import RolloutBatch
from marft.runs.credit_files import write_credit
from marft.runs.episode_files import write_episodes
from marft.runs.run_folder import RunFolder
from marft.runs.state import checkpoint_name


def record_step(
    run: RunSettings, folder: RunFolder, step: int, batch: RolloutBatch, credits: Sequence[ActionCredit]
) -> dict[str, float]:
    """Write the episodes and the credit of a step, if ``training.record_episodes_every`` says so → metrics."""
    interval = run.training.record_episodes_every
    if not interval or step % interval:
        return {}
    name = f"{checkpoint_name(step)}.parquet"
    write_episodes(folder.episodes / name, batch.recorded)
    _record_imagined(folder.imagined / name, batch.imagined)
    return record_credit(folder.credit / name, _select_recorded(batch.recorded, credits, run))


def record_credit(path: Path, credits: Sequence[ActionCredit]) -> dict[str, float]:
    """Write the credit for a step's actions → file size in bytes; delete the file after a reverted step."""
    if not credits:
        path.unlink(missing_ok=True)
        return {}
    return {"credit_bytes": float(write_credit(path, credits))}


def _select_recorded(
    recorded: Sequence[Episode], credits: Sequence[ActionCredit], run: RunSettings
) -> list[ActionCredit]:
    """Return the credit to record: the step's own episodes, without reused episodes."""
    names = {episode.name for episode in recorded} if run.training.record_credit else set()
    return [credit for credit in credits if credit.episode.name in names]


def _record_imagined(path: Path, imagined: Sequence[Episode]) -> None:
    """Write world-model episodes to a separate folder; delete the file after a reverted step."""
    if imagined:
        write_episodes(path, imagined)
    else:
        path.unlink(missing_ok=True)
