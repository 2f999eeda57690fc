"""What the formats of tables have that others have not: parts and shards, line ends in cells, capitals in names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from marft.envs.rows import read_table, written


def read(path: Path | str, part: str = "train") -> list[Any]:
    return [row.cells["question"] for row in read_table(str(path), "", part)]


def places(path: Path | str) -> list[str]:
    return [row.place.removeprefix(f"{path}, ") for row in read_table(str(path), "", "train")]


def test_a_format_is_known_by_its_name_in_capitals_too(tmp_path: Path) -> None:
    (tmp_path / "DATA.CSV").write_text("question,answer\na,1\n")
    assert read(tmp_path / "DATA.CSV") == ["a"]


def test_a_line_end_in_a_cell_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_bytes(b'question,answer\r\n"a\r\nb",1\r\n')
    assert read(tmp_path / "data.csv") == ["a\r\nb"]


def test_rows_without_lines_are_counted_from_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"question": text} for text in "abc"]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "data.parquet")
    monkeypatch.setattr("marft.envs.rows.read_dataset", lambda *_: rows)
    for path in (tmp_path / "data.parquet", "an/id"):
        assert places(path) == ["row 1", "row 2", "row 3"]


def saved(folder: Path, files: Sequence[Sequence[str]]) -> None:
    """A data set as ``save_to_disk`` has it: several files of Arrow's stream, and a list of them."""
    folder.mkdir(parents=True)
    names = [f"data-{number:05}.arrow" for number in range(len(files))]
    for name, questions in zip(names, files, strict=True):
        table = pa.table({"question": list(questions)})
        with pa.OSFile(str(folder / name), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table)
    listed = ", ".join(f'{{"filename": "{name}"}}' for name in names)
    (folder / "state.json").write_text(f'{{"_data_files": [{listed}]}}')


def test_a_saved_data_set_is_read_with_all_its_files(tmp_path: Path) -> None:
    saved(tmp_path / "set", [["a", "b"], ["c"]])
    assert read(tmp_path / "set") == ["a", "b", "c"]
    assert places(tmp_path / "set") == ["row 1", "row 2", "row 3"]


def test_of_several_parts_the_one_that_is_asked_for_is_read(tmp_path: Path) -> None:
    saved(tmp_path / "set" / "test", [["a"]])
    saved(tmp_path / "set" / "train", [["b"]])
    (tmp_path / "set" / "dataset_dict.json").write_text('{"splits": ["test", "train"]}')
    assert (read(tmp_path / "set"), read(tmp_path / "set", "test")) == (["b"], ["a"])


def test_a_cell_is_written_as_it_reads() -> None:
    assert written(["naïve", "日本"]) == '["naïve", "日本"]'
