"""Any table is an environment: every format gives the same tasks, and what cannot be used is named, never dropped."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from marft.common.types import Task
from marft.config import parse_recipe
from marft.envs.splits import assign_split_by_share, normalize_question
from marft.envs.table import Table
from marft.envs.tasks import read_tasks
from marft.runs.episode_files import read_rows
from marft.runs.run_folder import RunFolder
from marft.trainer.train import train
from tests.helpers import recipe, shown_in_docs
from tests.marft.envs.test_environments import SPLITS, answer

Rows = list[dict[str, Any]]
ROWS: Rows = [
    {"question": "What is 1 + 1?", "answer": "2", "note": "a, b"},
    {"question": 'Two lines:\n"one" and\ttwo', "answer": "naïve 日本", "note": ""},
    {"question": "Which?", "answer": "c;d", "note": "x"},
]


def quoted(rows: Rows, delimiter: str, line_end: str = "\n") -> str:
    lines = [list(rows[0]), *(list(row.values()) for row in rows)]
    return "".join(
        delimiter.join('"' + str(cell).replace('"', '""') + '"' for cell in line) + line_end for line in lines
    )


def saved(path: Path, rows: Rows, parts: tuple[str, ...] = ()) -> Path:
    datasets = pytest.importorskip("datasets", reason="needs the datasets package")
    made = datasets.Dataset.from_list(rows)
    (datasets.DatasetDict(dict.fromkeys(parts, made)) if parts else made).save_to_disk(path)
    return path


def a_folder(path: Path, rows: Rows) -> Path:
    pytest.importorskip("datasets", reason="needs the datasets package")
    path.mkdir()
    (path / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return path


def as_file(suffix: str, make: Callable[[Rows], bytes]) -> Callable[[Path, Rows], Path]:
    def written(path: Path, rows: Rows) -> Path:
        path = path.with_suffix(suffix)
        path.write_bytes(make(rows))
        return path

    return written


def parquet(path: Path, rows: Rows) -> Path:
    pq.write_table(pa.Table.from_pylist(rows), path.with_suffix(".parquet"))
    return path.with_suffix(".parquet")


FORMATS: Mapping[str, Callable[[Path, Rows], Path]] = {
    "JSON lines": as_file(".jsonl", lambda rows: "\n".join(map(json.dumps, rows)).encode()),
    "JSON lines called .json": as_file(".json", lambda rows: "\n".join(map(json.dumps, rows)).encode()),
    "JSON lines with a BOM and CRLF": as_file(
        ".jsonl", lambda rows: ("\ufeff" + "\r\n\r\n".join(map(json.dumps, rows)) + "\r\n").encode()
    ),
    "a JSON array": as_file(".json", lambda rows: json.dumps(rows, indent=1).encode()),
    "CSV": as_file(".csv", lambda rows: quoted(rows, ",").encode()),
    "CSV with a BOM, CRLF and empty lines": as_file(
        ".csv", lambda rows: ("\ufeff" + quoted(rows, ",", "\r\n\r\n")).encode()
    ),
    "TSV": as_file(".tsv", lambda rows: quoted(rows, "\t").encode()),
    "Parquet": parquet,
    "a saved data set": saved,
    "a saved data set with parts": lambda path, rows: saved(path, rows, ("test", "train")),
    "a folder of files": a_folder,
}


def prompts(environment: Table) -> list[str]:
    return [task.prompt for split in SPLITS for task in environment.tasks(split)]  # type: ignore[arg-type]


def all_to_train(path: Path, **changes: Any) -> Table:
    return Table.model_validate({"path": str(path), "split_fractions": {"validation": 0.0, "test": 0.0}, **changes})


def complaint(**changes: Any) -> str:
    with pytest.raises(ValueError) as caught:  # noqa: PT011  each test looks at the words
        read_tasks(Table.model_validate(changes), "train")
    return str(caught.value)


class TestFormats:
    @pytest.mark.parametrize("kind", FORMATS)
    def test_every_format_gives_the_same_tasks(self, kind: str, tmp_path: Path) -> None:
        environment = all_to_train(FORMATS[kind](tmp_path / "rows", ROWS))
        tasks = read_tasks(environment, "train")
        assert [task.prompt for task in tasks] == [row["question"] for row in ROWS]
        assert [dict(task.data) for task in tasks] == ROWS
        assert [task.id for task in tasks] == ["rows/0", "rows/1", "rows/2"]

    @pytest.mark.parametrize("kind", ["JSON lines", "a JSON array", "Parquet", "a saved data set"])
    def test_cells_keep_their_kind(self, kind: str, tmp_path: Path) -> None:
        rows = [{"question": 7, "answer": ["a", "b"], "more": {"x": [1.5, None]}}]
        (task,) = read_tasks(all_to_train(FORMATS[kind](tmp_path / "rows", rows)), "train")
        assert (task.prompt, dict(task.data)) == ("7", rows[0])

    def test_a_cell_may_be_long(self, tmp_path: Path) -> None:
        """The csv module's own limit is 131,072 characters."""
        path = FORMATS["CSV"](tmp_path / "rows", [{"question": "x" * 200_000, "answer": "1"}])
        assert len(all_to_train(path).tasks("train")[0].prompt) == 200_000

    def test_a_saved_data_set_needs_no_package(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = saved(tmp_path / "rows", ROWS)
        monkeypatch.setitem(__import__("sys").modules, "datasets", None)
        assert len(all_to_train(path).tasks("train")) == 3

    def test_parts_of_a_data_set_go_by_their_names(self, tmp_path: Path) -> None:
        path = saved(tmp_path / "rows", ROWS, ("one", "two"))
        assert len(all_to_train(path, split_names={"train": "two"}).tasks("train")) == 3
        assert "has no part 'train'; known: one, two" in complaint(path=str(path))


def doubled() -> bytes:
    """A Parquet file with two columns of one name."""
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_arrays([pa.array(["a"])] * 2, names=["question"] * 2), sink)
    return bytes(sink.getvalue().to_pybytes())


BROKEN: list[tuple[str, bytes, str]] = [
    (".jsonl", b'{"question": "a", "answer": "1"}\n{"question": ', "rows.jsonl, line 2 is not JSON"),
    (".jsonl", b'{"question": "a", "answer": "1"}\n\n[1]', "rows.jsonl, line 3 is a list; a row is an object"),
    (".jsonl", b'{"question": "a", "answer": "1", "answer": "2"}', "line 1: the key 'answer' comes twice"),
    (".jsonl", b"[" * 100_000, "line 1 is not JSON"),
    (".jsonl", b'{"question": "\xff"}', "rows.jsonl is not UTF-8"),
    (".jsonl", b'{"question": "\\ud83d", "answer": "1"}', "line 1: column 'question' is no whole text"),
    (".jsonl", b'{"question": "a", "answer": "\\ud83d"}', "line 1: column 'answer' is no whole text"),
    (".jsonl", b'{"question": [{"role": "user"}], "answer": "1"}', "line 1: column 'question' is a list, not text"),
    (".jsonl", b'{"question": true, "answer": "1"}', "line 1: column 'question' is a bool, not text"),
    (".jsonl", b'{"question": "a", "answer": null}', "line 1: column 'answer' is empty; fill it in, or leave such rows"),
    (".jsonl", b'{"question": "a", "answer": []}', "line 1: column 'answer' is empty"),
    (".jsonl", b'{"question": " ", "answer": "1"}', "line 1: column 'question' is empty"),
    (".jsonl", b'{"questoin": "a", "answer": "1"}', "no column 'question'; did you mean 'questoin'? It has: answer, questoin"),
    (".jsonl", b'{"question": "a", "answer": "1"}\n{"question": "b"}', "line 2 has no column 'answer'; known: question"),
    (".json", b'[{"question": "a", "answer": "1"}, 3]', "rows.json, entry 2 is a int; a row is an object"),
    (".json", b'[{"question": "a"', "rows.json is not JSON"),
    (".json", b"[]", "rows.json holds no rows"),
    (".csv", b"", "rows.csv holds no rows"),
    (".csv", b"question,answer\n", "rows.csv holds no rows"),
    (".csv", b'question,answer\n"a\nb",1\nc\n', "rows.csv, line 4 has 1 cells, and the header names 2 columns"),
    (".csv", b"question,answer\na,1,2\n", "rows.csv, line 2 has 3 cells"),
    (".csv", b'question,answer\n"a,1\n', "the row that begins at line 2 cannot be read"),
    (".csv", b"question,answer,answer\n", "line 1: two columns are called 'answer'"),
    (".csv", b"question;answer\na;1\n", "line 1 names one column, 'question;answer': if ';' is to separate columns, save the table with ','"),
    (".csv", b"question\tanswer\na\t1\n", "save the table with ',' in its place, or call it .tsv"),
    (".csv", "question,answer\na,1\n".encode("utf-16"), "rows.csv is not UTF-8"),
    (".csv", b"question,answer\na,1\nb,\n", "rows.csv, line 3: column 'answer' is empty"),
    (".csv", b"question,answer\na,1\nb,2\na,1\n", "line 4 makes the same prompt as "),
    (".parquet", b"PAR1 and no more", "cannot read "),
    (".parquet", doubled(), "two columns are called 'question'; rename one"),
    (".txt", b"a", "rows.txt is a file of which the name says no format; known: .csv, .json,"),
]  # fmt: skip


class TestWhatCannotBeUsed:
    @pytest.mark.parametrize(("suffix", "content", "told"), BROKEN, ids=[told[:45] for *_, told in BROKEN])
    def test_it_is_named_with_file_and_line(self, suffix: str, content: bytes, told: str, tmp_path: Path) -> None:
        path = tmp_path / f"rows{suffix}"
        path.write_bytes(content)
        message = complaint(path=str(path))
        assert told in message
        assert message.startswith(f"environment: {'cannot read ' * ('cannot read' in told)}{path}"[:40])

    def test_wide_tables_are_read_and_refused_in_time(self, tmp_path: Path) -> None:
        names = [f"c{number}" for number in range(200_000)]
        wide, twice = tmp_path / "wide.csv", tmp_path / "twice.csv"
        wide.write_text(",".join(["question", "answer", *names]) + "\n" + ",".join(["x"] * 200_002))
        twice.write_text(",".join([*names, names[-1]]))
        lines = tmp_path / "twice.jsonl"
        lines.write_text("{" + ", ".join(f'"{name}": 1' for name in [*names, names[-1]]) + "}")
        began = time.process_time()
        assert len(all_to_train(wide).tasks("train")) == 1
        assert "two columns are called 'c199999'" in complaint(path=str(twice))
        assert "the key 'c199999' comes twice" in complaint(path=str(lines))
        assert len(complaint(path=str(wide), question="nobody")) < 5_000
        assert time.process_time() - began < 20.0

    def test_long_names_do_not_fill_the_screen(self, tmp_path: Path) -> None:
        path = tmp_path / "rows.csv"
        path.write_text("q" * 100_000 + ",answer\na,1\n")
        assert len(complaint(path=str(path))) < 1_000

    @pytest.mark.parametrize(
        ("values", "said"),
        [
            (pa.array([2**62], pa.timestamp("us")), "OverflowError"),
            (pa.array([1], pa.timestamp("us", "Mars/Olympus")), "Mars/Olympus"),
            (pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(bytes(4) + b"\1" + bytes(3)), pa.py_buffer(b"\xff")]),
             "UnicodeDecodeError"),
        ],
    )  # fmt: skip
    def test_values_that_python_has_none_of_are_named(self, values: pa.Array, said: str, tmp_path: Path) -> None:
        path = tmp_path / "rows.parquet"
        pq.write_table(pa.table({"question": ["a"], "answer": ["1"], "other": values}), path)
        message = complaint(path=str(path))
        assert message.startswith(f"environment: {path}: rows 1 to 1 hold what Python has no value for: ")
        assert said in message

    def test_a_file_that_is_not_there_is_named(self, tmp_path: Path) -> None:
        for name in ("rows.csv", "rows.parquet", "rows"):
            message = complaint(path=str(tmp_path / name))
            assert str(tmp_path / name) in message
            assert "No such file" in message or "not there" in message

    def test_a_damaged_saved_data_set_is_named(self, tmp_path: Path) -> None:
        path = saved(tmp_path / "rows", ROWS)
        state = (path / "state.json").read_text()
        (path / "state.json").write_text("{}")
        assert "save it again" in complaint(path=str(path))
        (path / "state.json").write_text(state)
        for file in path.glob("*.arrow"):
            file.write_bytes(file.read_bytes()[:50])
        assert f"cannot read {path}" in complaint(path=str(path))

    def test_a_data_set_that_cannot_be_loaded_is_one_message(self) -> None:
        pytest.importorskip("datasets", reason="needs the datasets package")
        assert "cannot load data set 'nobody/nothing'" in complaint(path="nobody/nothing")

    def test_rows_are_left_out_only_when_told_to(self, tmp_path: Path) -> None:
        path = tmp_path / "rows.csv"
        path.write_text("question,answer\na,1\nb,\na,2\nc,3\n")
        both = all_to_train(path, skip=["duplicates", "unanswered"])
        assert [(task.id, task.data["answer"]) for task in both.tasks("train")] == [("rows/0", "1"), ("rows/3", "3")]
        assert "column 'answer' is empty" in complaint(path=str(path), skip=["duplicates"])
        assert "makes the same prompt" in complaint(path=str(path), skip=["unanswered"])

    @pytest.mark.parametrize(
        ("changes", "told"),
        [
            ({}, "needs path"),
            ({"path": "a.csv", "train": "b.csv"}, "needs path"),
            ({"path": "a.csv", "test": "b.csv"}, "path is divided"),
            ({"path": "a.csv", "answer": "question"}, "are the same column"),
            ({"path": "a.csv", "answer": "", "grading": "f1"}, "grading f1 needs a column"),
            ({"path": "a.csv", "grading": "numerik"}, "no grading is called 'numerik'; did you mean 'numeric'?"),
            ({"path": "a.csv", "grading": {"name": "f1", "tolerance": 1.0}}, "unknown key 'tolerance'"),
            ({"path": "a.csv", "grading": {"tolerance": 1.0}}, "no grading is called None; known: choice"),
            ({"path": "a.csv", "split_fractions": {"validation": 0.5, "test": 0.5}}, "leave nothing to train on"),
            ({"path": "a.csv", "prompt": "{question"}, "a brace of its own is written twice"),
            ({"path": "a.csv", "prompt": "{}"}, "a column is named alone"),
            ({"path": "a.csv", "prompt": "{question!r}"}, "a column is named alone"),
            ({"path": "a.csv", "prompt": "{question} {answer}"}, "shows the right answer, 'answer'"),
            ({"path": "a.csv", "skip": ["everything"]}, "skip"),
        ],
    )
    def test_keys_that_do_not_fit_together_are_refused(self, changes: dict[str, Any], told: str) -> None:
        with pytest.raises(ValueError, match="recipe:") as caught:
            parse_recipe(recipe(environment={"name": "table", **changes}))
        assert told in str(caught.value)


class TestSplits:
    @pytest.fixture
    def file(self, tmp_path: Path) -> Path:
        return FORMATS["CSV"](
            tmp_path / "rows", [{"question": f"What is {n} + 1?", "answer": n + 1} for n in range(400)]
        )

    def test_shares_are_by_text_whatever_the_order(self, file: Path, tmp_path: Path) -> None:
        environment = Table(path=str(file))
        sizes = [len(environment.tasks(split)) for split in SPLITS]  # type: ignore[arg-type]
        assert sum(sizes) == 400
        assert 290 < sizes[0] < 350
        assert sorted(prompts(environment)) == sorted(set(prompts(environment)))
        header, *lines = file.read_text().splitlines()
        (tmp_path / "turned.csv").write_text("\n".join([header, *reversed(lines)]))
        turned = Table(path=str(tmp_path / "turned.csv"))
        assert {task.prompt for task in turned.tasks("test")} == {task.prompt for task in environment.tasks("test")}

    def test_shares_are_as_large_as_they_say(self) -> None:
        found = [assign_split_by_share(f"question {n}", validation=0.25, test=0.005) for n in range(20_000)]
        assert abs(found.count("validation") / 20_000 - 0.25) < 0.02
        assert abs(found.count("test") / 20_000 - 0.005) < 0.002

    def test_tables_of_their_own_are_the_splits(self, file: Path, tmp_path: Path) -> None:
        (tmp_path / "test.csv").write_text("question,answer\nx,1\ny,2\n")
        environment = Table(train=str(file), test=str(tmp_path / "test.csv"))
        assert [task.id for task in environment.tasks("test")] == ["test/test/0", "test/test/1"]
        assert len(environment.tasks("validation")) + len(environment.tasks("train")) == 400
        assert 20 < len(environment.tasks("validation")) < 60

    def test_a_held_out_prompt_is_refused_in_training_or_left_out_there(self, file: Path, tmp_path: Path) -> None:
        (tmp_path / "test.csv").write_text("question,answer\nwhat is  7 + 1?,8\n")
        both = {"train": str(file), "test": str(tmp_path / "test.csv")}
        assert f"rows.csv, line 9 makes the same prompt as {tmp_path / 'test.csv'}, line 2" in complaint(**both)
        environment = Table.model_validate({**both, "skip": ["duplicates"]})
        assert [task.prompt for task in environment.tasks("test")] == ["what is  7 + 1?"]
        assert len({normalize_question(prompt) for prompt in prompts(environment)}) == len(prompts(environment)) == 400

    def test_a_limit_holds_for_every_split(self, file: Path) -> None:
        environment = Table(path=str(file), limit=5)
        assert [len(environment.tasks(split)) for split in SPLITS] == [5, 5, 5]  # type: ignore[arg-type]

    def test_ids_may_be_a_column(self, tmp_path: Path) -> None:
        (tmp_path / "rows.csv").write_text("question,answer,uid\na,1,x\nb,2,x\n")
        environment = all_to_train(tmp_path / "rows.csv", id="uid")
        with pytest.raises(ValueError, match="another one has the id 'x' too"):
            read_tasks(environment, "train")


class TestPrompts:
    def draw_record(self, tmp_path: Path, row: dict[str, Any], **changes: Any) -> Task:
        return read_tasks(all_to_train(FORMATS["JSON lines"](tmp_path / "rows", [row]), **changes), "train")[0]

    def test_a_template_names_columns(self, tmp_path: Path) -> None:
        row = {"problem": "Why?", "label": "a", "hints": ["x", 1], "a b": None}
        task = self.draw_record(
            tmp_path, row, question="problem", answer="label", prompt="{{{question}}}|{problem}|{hints}|{a b}|"
        )
        assert task.prompt == '{Why?}|Why?|["x", 1]||'

    def test_choices_are_shown_with_letters(self, tmp_path: Path) -> None:
        row = {"question": "Sky?", "choices": ["red", "blue"], "answer": 1}
        grading = {"name": "choice", "choices": "choices"}
        assert (
            self.draw_record(tmp_path, row, grading=grading, prompt="{question}\n\n{choices}").prompt
            == "Sky?\n\nA. red\nB. blue"
        )

    def test_what_stands_in_a_cell_is_no_template(self, tmp_path: Path) -> None:
        row = {"question": "{answer} {0.__class__} {", "answer": "secret"}
        assert self.draw_record(tmp_path, row, prompt="Q: {question}").prompt == "Q: {answer} {0.__class__} {"

    def test_a_template_that_names_no_column_of_a_row_is_refused(self, tmp_path: Path) -> None:
        path = FORMATS["JSON lines"](tmp_path / "rows", [{"question": "a", "choices": "b", "answer": "1"}])
        message = complaint(path=str(path), prompt="{question} {choises}")
        assert "line 1 has no column 'choises'; did you mean 'choices'?" in message


def length(row: Mapping[str, Any], text: str) -> float:
    return len(text) / row["most"]


class TestPromptsAlone:
    """No column says what is right: a function does, or reward terms do."""

    @pytest.fixture
    def file(self, tmp_path: Path) -> Path:
        return FORMATS["JSON lines"](tmp_path / "rows", [{"question": f"Write {n}.", "most": 10} for n in range(50)])

    def test_a_function_sees_the_row(self, file: Path) -> None:
        environment = all_to_train(file, answer="", grading="tests.marft.envs.test_table:length")
        step = answer(environment, environment.tasks("train")[0], "12345")
        assert (step.reward, step.success) == (0.5, None)

    def test_rewards_of_the_recipe_do_as_well(self, file: Path) -> None:
        table = {"name": "table", "path": str(file), "answer": ""}
        with pytest.raises(ValueError, match=r"nothing says what an answer is worth; .*\[\[rewards\]\]"):
            parse_recipe(recipe(environment=table))
        run = parse_recipe(recipe(environment=table, rewards=[{"name": "format", "pattern": "a"}]))
        assert isinstance(run.environment, Table)
        step = answer(run.environment, run.environment.tasks("train")[0], "a")
        assert (step.reward, step.success) == (0.0, None)


def test_the_recipe_that_the_docs_show_trains_on_a_table_beside_it(tmp_path: Path) -> None:
    rows = "".join(f"Country {n},City {n},Region {n % 7}\n" for n in range(60))
    (tmp_path / "capitals.csv").write_text(f"country,capital,region\n{rows}Nowhere,,X\n")
    shown = shown_in_docs("docs/environments.md", 'path = "capitals.csv"')
    small = {"training": {"steps": 2}, "rollout": {"tasks_per_step": 2, "samples_per_task": 2}, "threads": 1}
    run = parse_recipe({"name": "shown", "output": str(tmp_path), "recipe_folder": str(tmp_path), **shown, **small},
                       ["--agents.solver.sampling.max_new_tokens", "4"])  # fmt: skip
    folder = RunFolder.create(run)
    train(run, folder)
    assert [row["episodes_failed"] for row in folder.read_metrics()] == [0, 0]
    assert read_rows(folder.find_recorded(0))[0]["prompt_text"].startswith("What is the capital of Country ")


def test_a_data_set_of_the_hub_is_read_by_its_subset_and_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str, str]] = []

    def read(*wanted: str) -> Rows:
        asked.append(wanted)  # type: ignore[arg-type]
        return [{"question": f"{wanted}", "answer": "1"}]

    monkeypatch.setattr("marft.envs.table_rows.read_dataset", read)
    made = Table(train="a/b", validation="a/b", test="c/d", subset="main", split_names={"validation": "dev"})  # type: ignore[arg-type]
    assert len(made.tasks("train")) == 1
    assert sorted(asked) == [("a/b", "main", "dev"), ("a/b", "main", "train"), ("c/d", "main", "test")]
