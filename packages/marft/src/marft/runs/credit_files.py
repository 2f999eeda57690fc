"""Credit files: learner data about the actions in a step, stored beside the episodes.

Each action is one row. Values for each decision are stored as float16, so a decision takes 2 bytes a column before
compression.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from marft.common.errors import UserError
from marft.runs.episode_files import open_parquet, write_parquet

if TYPE_CHECKING:
    from marft.common.types import ActionCredit

MAX_FLOAT16 = float(np.finfo(np.float16).max)  # larger magnitudes are clipped to this
DECISION_COLUMNS: dict[str, Callable[[ActionCredit], npt.NDArray[np.float64] | None]] = {
    "advantage": lambda row: row.advantages,
    "raw_advantage": lambda row: row.raw_advantages,
    "value": lambda row: row.values,
    "entropy": lambda row: row.entropy,
    "difference": lambda row: row.log_prob_diff,
}
SCHEMA = pa.schema(
    [
        ("stream", pa.string()),  # identifies the episode together with task and sample
        ("task", pa.string()),
        ("sample", pa.int64()),
        ("action", pa.string()),  # action ID
        ("agent", pa.string()),
        ("group", pa.string()),  # key of its comparison group; "" for none
        ("gradient", pa.float32()),
        *((name, pa.list_(pa.float16())) for name in DECISION_COLUMNS),
    ]
)


def write_credit(path: Path, rows: Sequence[ActionCredit]) -> int:
    """Write a credit file atomically and return its size in bytes."""
    table = pa.table(
        {
            "stream": [row.episode.stream for row in rows],
            "task": [row.episode.task.id for row in rows],
            "sample": [row.episode.sample for row in rows],
            "action": [row.action.id for row in rows],
            "agent": [row.action.agent for row in rows],
            "group": [row.group for row in rows],
            "gradient": [row.gradient_size for row in rows],
            **{name: _to_float16([column_of(row) for row in rows]) for name, column_of in DECISION_COLUMNS.items()},
        },
        schema=SCHEMA,
    )
    return write_parquet(path, table)


def read_credit(path: Path, stream: str, task: str, sample: int) -> dict[str, dict[str, Any]]:
    """Read the credit for one episode, by action ID: a list for each column. Missing columns are None.

    Raises:
        UserError: the file is not a credit file, or is damaged.
    """
    keys = _read_table(path, ["stream", "task", "sample"])
    condition = pc.and_(
        pc.and_(pc.equal(keys["stream"], stream), pc.equal(keys["task"], task)), pc.equal(keys["sample"], sample)
    )
    rows = np.flatnonzero(np.asarray(pc.fill_null(condition, False)))
    table = _read_table(path, ["action", "gradient", *DECISION_COLUMNS]).take(pa.array(rows))
    return {row["action"]: row for row in table.to_pylist()}


def read_groups(path: Path) -> dict[str, list[tuple[str, str, int]]]:
    """Read the episodes in each group, by group key: stream, task and sample for each episode.

    Raises:
        UserError: the file is not a credit file, or is damaged.
    """
    table = _read_table(path, ["group", "stream", "task", "sample"])
    groups: dict[str, dict[tuple[str, str, int], None]] = {}
    for group, *episode in zip(*(column.to_pylist() for column in table.columns), strict=True):
        if group:
            groups.setdefault(group, {})[tuple(episode)] = None
    return {key: list(episodes) for key, episodes in groups.items()}


def read_advantages(path: Path) -> dict[str, npt.NDArray[np.float64]]:
    """Read the advantages of trained decisions for each agent, as passed to the objective.

    Raises:
        UserError: the file is not a credit file, or is damaged.
    """
    table = _read_table(path, ["agent", "advantage"])
    by_agent = {}
    for agent in pc.unique(table["agent"]).to_pylist():
        agent_rows = table.filter(pc.equal(table["agent"], agent))["advantage"]
        chunks = [chunk.flatten().to_numpy() for chunk in agent_rows.chunks]
        by_agent[agent] = np.concatenate(chunks or [[]]).astype(np.float64)
    return by_agent


def _read_table(path: Path, columns: Sequence[str]) -> pa.Table:
    try:
        with open_parquet(path) as source, pq.ParquetFile(source, page_checksum_verification=True) as file:
            schema = file.schema_arrow
            if any(name not in schema.names or schema.field(name).type != SCHEMA.field(name).type for name in columns):
                raise UserError(f"{path} holds no credit of this version of MARFT")
            return file.read(columns)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read the credit of {path}: {str(error).strip()}") from error


def _to_float16(rows: Sequence[npt.NDArray[np.float64] | None]) -> pa.Array:
    """Return float16 arrays, one for each row."""
    offsets = np.cumsum([0, *(0 if row is None else len(row) for row in rows)])
    flat = np.concatenate([np.zeros(0), *(row for row in rows if row is not None)])
    float16_values = np.clip(flat, -MAX_FLOAT16, MAX_FLOAT16).astype(np.float16)
    missing = pa.array([row is None for row in rows], pa.bool_())
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(float16_values), mask=missing)
