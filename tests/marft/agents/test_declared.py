"""What environments declare: read into plain values, recorded with the episode, or refused in words."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from marft.agents.environment_calls import RefusedError, read_step_info
from marft.agents.game import Attempt
from marft.agents.play import play
from marft.common.types import Episode, StepInfo, Task
from marft.config.interfaces.environment import Environment
from marft.envs.tasks import read_tasks
from marft.evaluation.episode_metrics import episode_metrics
from marft.runs.episode_files import read_episodes, write_episodes
from tests.fakes import Script, ends, game, goes_on


def played(*infos: Any, data: Any = None) -> Episode:
    steps = [*(goes_on(0.0, info=info) for info in infos[:-1]), ends(1.0, info=infos[-1], success=True)]
    return asyncio.run(play(game(Script(steps), "a", "b"), Attempt(Task("t", "begin", data or {}), "s")))


def test_a_step_says_what_it_declares_and_its_task_the_rest() -> None:
    data = {
        "right_tools": ["search"],
        "allowed_tools": {"a": []},
        "fewest_steps": 2,
        "progress": 0.9,
        "other": object(),
    }
    episode = played(
        {"progress": 0.5, "right_tools": []}, {"progress": np.float32(1), "allowed_tools": {"a": "x"}}, data=data
    )
    assert [transition.declared for transition in episode.transitions] == [
        StepInfo(0.5, (), {"a": ()}, 2),
        StepInfo(1.0, ("search",), {"a": ("x",)}, 2),
    ]
    assert episode_metrics([episode], ("a", "b"), lambda _: 0)["goal_progress"] == 1.0
    assert played({}).transitions[0].declared == StepInfo()


@pytest.mark.parametrize(
    ("info", "said"),
    [
        ({"progress": 1.5}, "declared progress = 1.5; must be from 0 to 1"),
        ({"progress": "half"}, "declared progress = 'half'; must be finite, and a number"),
        ({"progress": float("nan")}, "declared progress = nan"),
        ({"right_tools": 7}, "declared right_tools = 7; must be names of tools, [] where none is"),
        ({"right_tools": [7]}, "declared right_tools = [7]; must be names"),
        ({"right_tools": b"x"}, "declared right_tools = b'x'; must be names"),
        ({"right_tools": ["\ud83d"]}, "declared right_tools"),
        ({"allowed_tools": ["x"]}, "declared allowed_tools = ['x']; must be a mapping from roles to names of tools"),
        ({"allowed_tools": {1: "x"}}, "declared allowed_tools = {1: 'x'}; must be a mapping"),
        ({"allowed_tools": {"a": 1}}, "declared allowed_tools of a = 1; must be names"),
        ({"fewest_steps": 0}, "declared fewest_steps = 0; must be a whole number, at least 1"),
        ({"fewest_steps": True}, "declared fewest_steps = True; must be a whole"),
        ({"fewest_steps": 2**40}, "declared fewest_steps"),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_refused_in_words(info: dict[str, object], said: str) -> None:
    with pytest.raises(RefusedError) as refused:
        read_step_info(info, {})
    assert str(refused.value).startswith(said)
    episode = played(info)
    assert episode.status == "failed"
    assert said in episode.error


def test_a_task_that_declares_what_cannot_be_meant_is_refused_before_the_run() -> None:
    class Odd(Environment):
        def tasks(self, split: str) -> list[Task]:
            return [Task("fine", "?"), Task("odd", "?", {"fewest_steps": "two"})]

        def start(self, task: Task, seed: int) -> Any: ...

    with pytest.raises(ValueError, match="task 1: its data declared fewest_steps = 'two'; must be a whole number"):
        read_tasks(Odd(), "train")


def test_what_is_declared_is_recorded_and_older_records_declare_nothing(tmp_path: Path) -> None:
    episode = played({"progress": 0.5, "allowed_tools": {"a": ["x", "y"]}}, {})
    write_episodes(tmp_path / "e.parquet", [episode])
    (read,) = read_episodes(tmp_path / "e.parquet")
    assert read.transitions == episode.transitions

    table = pq.read_table(tmp_path / "e.parquet")
    rows = [
        [{name: value for name, value in one.items() if name != "declared"} for one in steps] if steps else None
        for steps in table["transitions"].to_pylist()
    ]
    place, kind = table.schema.get_field_index("transitions"), table.schema.field("transitions").type.value_type
    older = pa.list_(pa.struct([part for part in kind if part.name != "declared"]))
    pq.write_table(table.set_column(place, "transitions", pa.array(rows, older)), tmp_path / "older.parquet")
    (read,) = read_episodes(tmp_path / "older.parquet")
    assert read.transitions == tuple(replace(one, declared=StepInfo()) for one in episode.transitions)
