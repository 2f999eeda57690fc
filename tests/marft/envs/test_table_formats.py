"""What the formats of tables have that others have not: parts and shards, line ends in cells, capitals in names."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from marft.envs.math import Math
from marft.envs.table import Table
from marft.envs.table_rows import format_cell, read_table


def read(path: Path | str, part: str = "train") -> list[Any]:
    return [row.cells["question"] for row in read_table(str(path), "", part)]


def places(path: Path | str) -> list[str]:
    return [row.location.removeprefix(f"{path}, ") for row in read_table(str(path), "", "train")]


def test_a_format_is_known_by_its_name_in_capitals_too(tmp_path: Path) -> None:
    (tmp_path / "DATA.CSV").write_text("question,answer\na,1\n")
    assert read(tmp_path / "DATA.CSV") == ["a"]


def test_a_line_end_in_a_cell_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_bytes(b'question,answer\r\n"a\r\nb",1\r\n')
    assert read(tmp_path / "data.csv") == ["a\r\nb"]


def test_rows_without_lines_are_counted_from_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"question": text} for text in "abc"]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "data.parquet")
    monkeypatch.setattr("marft.envs.table_rows.read_dataset", lambda *_: rows)
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
    assert format_cell(["naïve", "日本"]) == '["naïve", "日本"]'
    assert [format_cell(cell) for cell in (Decimal("1.50"), date(2020, 2, 29), float("nan"))] == [
        "1.50",
        "2020-02-29",
        "",
    ]


def test_what_a_column_type_says_is_the_answer_and_bytes_are_none(tmp_path: Path) -> None:
    asked = [f"q{number}" for number in range(40)]
    for answer, right in ((Decimal("1.50"), "1.50"), (date(2020, 2, 29), "2020-02-29")):
        pq.write_table(pa.table({"question": asked, "answer": [answer] * 40}), tmp_path / "rows.parquet")
        table = Table(path=str(tmp_path / "rows.parquet"))
        assert table.answer_grade(table.tasks("train")[0], right).success
    for cell in (b"1", [b"1"]):
        pq.write_table(pa.table({"question": asked, "answer": [cell] * 40}), tmp_path / "rows.parquet")
        with pytest.raises(ValueError, match="row 1: column 'answer' holds bytes, not text"):
            Table(path=str(tmp_path / "rows.parquet")).tasks("train")


def test_no_number_is_no_answer(tmp_path: Path) -> None:
    (tmp_path / "rows.json").write_text('[{"question": "a", "answer": NaN}]')
    with pytest.raises(ValueError, match="column 'answer' is empty; fill it in"):
        Table(path=str(tmp_path / "rows.json")).tasks("train")


@pytest.mark.parametrize("path", ["x" * 5000, "x" * 5000 + ".csv", "/" + "x" * 300 + ".jsonl", "/x" * 3000])
def test_a_path_that_is_too_long_is_one_that_is_not_there(path: str) -> None:
    for kind in (Table, Math):
        with pytest.raises(ValueError, match=r"no file at|cannot read|that is not there|cannot load data set"):
            kind(path=path).tasks("train")


def test_a_pipe_in_a_saved_data_set_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "data.arrow")
    (tmp_path / "state.json").write_text('{"_data_files": [{"filename": "data.arrow"}]}')
    with pytest.raises(ValueError, match="it is a pipe, and only regular files are read"):
        list(read_table(str(tmp_path), "", ""))
