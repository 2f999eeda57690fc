"""Loader for GAIA metadata: one row per question, with level, answer and attached file."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

from marft.agents.environment import Split
from marft.common.types import Task
from marft.envs.contents import CONTENT, content_of
from marft.envs.rows import Row, read_table
from marft.envs.splits import bare, share_of

ANSWER, UNTOLD = "Final answer", "?"  # column of the answer, and its value where the answer is hidden
PART = "validation"  # split to read from a data set with several splits
SHARE = 0.1


def tasks_of_tables(
    path: str, test_path: str, files: str, levels: Collection[int], leave_out: bool, pages: str = ""
) -> dict[Split, list[Task]]:
    """Return tasks by split.

    A tenth of the questions of ``path`` is for validation. Without ``test_path``, another tenth is for test. No
    test question appears in another split. Without ``path``, only the test split has tasks.

    Args:
        path: metadata for all splits; "" for none.
        test_path: metadata for the test split; "" for none.
        files: folder of attached files; "" for the folder of the metadata.
        levels: levels to keep.
        leave_out: True to leave out questions with a hidden answer.
        pages: digest of the searchable pages. A task's ``content`` is computed from it and the attached file.

    Raises:
        ValueError: a table is unreadable or a row is invalid.
    """
    found: dict[Split, list[Task]] = {"train": [], "validation": [], "test": []}
    if test_path:
        found["test"] = list(_tasks(test_path, files, levels, leave_out, pages))
    tested = {bare(task.prompt) for task in found["test"]} | {task.id for task in found["test"]}
    for task in _tasks(path, files, levels, leave_out, pages) if path else ():
        if not {bare(task.prompt), task.id} & tested:
            found[share_of(task.prompt, SHARE, 0.0 if test_path else SHARE)].append(task)
    return found


def folder_of(table: str, files: str) -> Path:
    """Return the folder of attached files: ``files``, or else the folder of the table."""
    return Path(files) if files else Path(table).parent


def _tasks(path: str, files: str, levels: Collection[int], leave_out: bool, pages: str) -> Iterator[Task]:
    seen: dict[str, str] = {}
    for row in read_table(path, "", PART):
        question, answer = row.text("Question"), row.text(ANSWER)
        level, name, file = _level(row), row.text("task_id"), row.text("file_name")
        if not answer.strip() or answer.strip() == UNTOLD:
            if leave_out:
                continue
            raise ValueError(
                f"environment: {row.place}: the answer is not told ({ANSWER!r} is {answer!r}), as in GAIA's own test; "
                "take its validation questions, or leave such rows out: ungradable = 'leave_out'"
            )
        if bare(question) in seen:
            raise ValueError(
                f"environment: {row.place} asks what {seen[bare(question)]} asks; take one out, so that nothing held "
                "out is trained on"
            )
        seen[bare(question)] = row.place
        _check_file(row, file, folder_of(path, files))
        if level in levels:
            data = {"level": level, "answer": answer.strip(), "file": file, "fewest_steps": 1}
            if file or pages:
                content = (folder_of(path, files) / file).read_bytes() if file else b""
                data[CONTENT] = content_of(pages, content)
            yield Task(name, question, data)


def _level(row: Row) -> int:
    text = row.text("Level").strip()
    if text not in ("1", "2", "3"):
        raise ValueError(f"environment: {row.place}: Level is {text!r}; it is 1, 2 or 3")
    return int(text)


def _check_file(row: Row, file: str, folder: Path) -> None:
    if not file:
        return
    if Path(file).name != file:
        raise ValueError(f"environment: {row.place}: file_name is {file!r}; it is a name, without folders")
    if not (folder / file).is_file():
        raise ValueError(
            f"environment: {row.place}: its file {file!r} is not in {folder}; put it there, or name the folder that "
            "has it: files"
        )
