"""Folders of rows are read as the episodes that they are of, and what is damaged loses its own row alone."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marft_serve.traces.reader import MANIFEST, ROWS_FOLDER, find_rows, read_traces
from marft_serve.traces.types import SkipCounter, TracedEpisode


def row(number: int, index: int, agent: str, text: str, **more: Any) -> dict[str, Any]:
    prompt = [{"role": "user", "content": "2 + 3 ="}, {"role": "assistant", "content": "said before"}]
    return {
        "order": [number, index], "episode": f"t/{number} #0", "task": f"t/{number}", "agent": agent,
        "prompt": [*prompt, {"role": "user", "content": "and now?"}],
        "completion": [{"role": "assistant", "content": text}], "reward": 1.0,
        "from": {"seed": 7, "attempt": 3}, **more,
    }  # fmt: skip


def written(folder: Path, rows: list[dict[str, Any]]) -> Path:
    (folder / ROWS_FOLDER).mkdir(exist_ok=True, parents=True)
    for role in sorted({str(one["agent"]) for one in rows}):
        lines = [json.dumps(one) for one in rows if one["agent"] == role]
        (folder / ROWS_FOLDER / f"{role}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    files = {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in (folder / ROWS_FOLDER).glob("*.jsonl")
    }
    (folder / ROWS_FOLDER / MANIFEST).write_text(json.dumps({"files": files}))
    return folder


def read(folder: Path) -> tuple[list[TracedEpisode], SkipCounter]:
    tally = SkipCounter()
    return list(read_traces([folder], tally)), tally


def test_turns_are_those_of_the_completion_and_the_prompt_is_what_they_were_said_to(tmp_path: Path) -> None:
    (episode,), tally = read(written(tmp_path, [row(0, 0, "actor", "5")]))
    (turn,) = episode.turns
    assert (turn.text, turn.names) == ("5", ("actor",))
    assert [message["content"] for message in turn.messages] == ["2 + 3 =", "said before", "and now?"]
    assert (episode.task, episode.reward, episode.seed, episode.attempt) == ("t/0", 1.0, 7, 3)
    assert not tally.skipped


@given(st.lists(st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=4), min_size=1, max_size=6))
def test_rows_of_several_roles_are_read_in_the_order_in_which_they_were_said(
    tmp_path_factory: pytest.TempPathFactory, episodes: list[list[str]]
) -> None:
    folder = tmp_path_factory.mktemp("rows")
    rows = [row(n, k, agent, f"{n}.{k}") for n, agents in enumerate(episodes) for k, agent in enumerate(agents)]
    found, tally = read(written(folder, rows))
    assert [[(turn.agent, turn.text) for turn in one.turns] for one in found] == [
        [(agent, f"{n}.{k}") for k, agent in enumerate(agents)] for n, agents in enumerate(episodes)
    ]
    assert not tally.skipped


def test_tools_that_were_called_are_part_of_one_completion(tmp_path: Path) -> None:
    call = {"id": "call00000", "type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
    completion = [
        {"role": "assistant", "content": "I add.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call00000", "content": "3"},
        {"role": "assistant", "content": "It is 3."},
    ]
    (episode,), _ = read(written(tmp_path, [row(0, 0, "actor", "", completion=completion)]))
    first, last = episode.turns
    assert [(one.name, one.output) for one in first.calls] == [("add", "3")]
    assert (last.text, last.calls) == ("It is 3.", ())


@pytest.mark.parametrize(
    ("change", "why"),
    [({"order": None}, "does not say where it stands"), ({"order": [0, True]}, "does not say where it stands"),
     ({"prompt": "2 + 3"}, "its prompt is no list"), ({"completion": []}, "no assistant says anything")],
)  # fmt: skip
def test_what_is_damaged_is_counted_and_passed_over(tmp_path: Path, change: dict[str, Any], why: str) -> None:
    found, tally = read(written(tmp_path, [{**row(0, 0, "actor", "5"), **change}, row(1, 0, "actor", "6")]))
    assert [one.task for one in found] == ["t/1"]
    (line,) = tally.format_lines()
    assert why in line
    assert "actor.jsonl:1" in line


def cut(folder: Path) -> None:
    file = folder / "a.jsonl"
    file.write_text(file.read_text().splitlines()[0] + "\n")


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (cut, "a.jsonl is not as it was written"),
        (lambda folder: (folder / "b.jsonl").unlink(), "has not the files that its manifest.json lists .b.jsonl"),
        (
            lambda folder: (folder / "c.jsonl").write_text("{}"),
            "has not the files that its manifest.json lists .c.jsonl",
        ),
        (lambda folder: (folder / MANIFEST).write_text("{}"), "manifest.json is damaged"),
    ],
)
def test_rows_that_are_not_all_there_are_none(tmp_path: Path, damage: Callable[[Path], object], why: str) -> None:
    """With half of a role's, episodes would be imitated in part."""
    written(tmp_path, [row(n, at, agent, "5") for n in range(2) for at, agent in enumerate("ab")])
    damage(tmp_path / ROWS_FOLDER)
    with pytest.raises(ValueError, match=f"{why}.*marft synthesize"):
        read(tmp_path)


def test_a_folder_is_one_of_rows_by_its_manifest(tmp_path: Path) -> None:
    assert find_rows(tmp_path) is None
    with pytest.raises(ValueError, match="marft synthesize"):
        read(tmp_path)
    written(tmp_path, [row(0, 0, "a", "5")])
    assert find_rows(tmp_path) == find_rows(tmp_path / ROWS_FOLDER) == tmp_path / ROWS_FOLDER
