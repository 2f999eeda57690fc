"""Recorded episodes come back whole."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as examples

from marft.common.types import Episode, Task
from marft.runs.episode_files import read_episodes, write_episodes
from tests.marft.trainer.test_credit import batches
from tests.nights import by_day


def same(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and a.dtype == b.dtype and np.array_equal(a, b)
    if isinstance(a, tuple) and not hasattr(a, "_fields"):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)  # the order of agents counts too
    if hasattr(a, "__dataclass_fields__"):
        return all(same(getattr(a, f.name), getattr(b, f.name)) for f in fields(a) if f.name != "data")
    return bool(a == b)


@pytest.mark.slow
@given(batch=batches(forks=True))
@examples(max_examples=by_day(30, 60), deadline=None)
def test_episodes_come_back_from_parquet_as_they_were(
    batch: list[Episode], tmp_path_factory: pytest.TempPathFactory
) -> None:
    batch = [
        replace(e, actions=tuple(replace(a, key=a.key._replace(task=e.task.id)) for a in e.actions)) for e in batch
    ]
    path = tmp_path_factory.mktemp("episodes") / "step_000001.parquet"
    write_episodes(path, batch)
    read = read_episodes(path)
    assert len(read) == len(batch)
    assert all(map(same, batch, read))


def test_a_file_that_is_none_of_ours_is_refused(tmp_path: Path) -> None:
    (tmp_path / "step_000001.parquet").write_bytes(b"nothing of the kind")
    with pytest.raises(ValueError, match="cannot read the episodes"):
        read_episodes(tmp_path / "step_000001.parquet")


def test_a_flipped_bit_in_recorded_episodes_is_noticed(tmp_path: Path) -> None:
    said = "".join(map(chr, range(0x100, 0x500)))
    batch = [Episode(Task(f"t{n}", said), "train/0", n, (), "failed", error=said) for n in range(40)]
    path = tmp_path / "step_000001.parquet"
    write_episodes(path, batch)
    whole = path.read_bytes()
    for at in range(4, len(whole) // 2, max(1, len(whole) // 300)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :])
        with suppress(ValueError):
            assert [(e.task.id, e.error) for e in read_episodes(path)] == [(e.task.id, e.error) for e in batch]
