"""Loader for GAIA metadata: one row per question, with level, answer and attached file."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

from marft.agents.environment import Split
from marft.common.types import Task
from marft.envs.content_digest import DIGEST_KEY, digest_content
from marft.envs.splits import assign_split_by_share, normalize_question
from marft.envs.table_rows import Row, read_table

ANSWER_COLUMN, HIDDEN_ANSWER = "Final answer", "?"  # column of the answer, and its value where the answer is hidden
SPLIT_NAME = "validation"  # split to read from a data set with several splits
HELD_OUT_SHARE = 0.1


def load_tasks(
    path: str, test_path: str, files: str, levels: Collection[int], skip_ungradable: bool, pages: str = ""
) -> dict[Split, list[Task]]:
    """Return tasks by split.

    A tenth of the questions of ``path`` is for validation. Without ``test_path``, another tenth is for test. No
    test question appears in another split. Without ``path``, only the test split has tasks.

    Args:
        path: metadata for all splits; "" for none.
        test_path: metadata for the test split; "" for none.
        files: folder of attached files; "" for the folder of the metadata.
        levels: levels to keep.
        skip_ungradable: True to leave out questions with a hidden answer.
        pages: digest of the searchable pages. A task's ``content`` is computed from it and the attached file.

    Raises:
        ValueError: a table is unreadable or a row is invalid.
    """
    tasks_by_split: dict[Split, list[Task]] = {"train": [], "validation": [], "test": []}
    if test_path:
        tasks_by_split["test"] = list(_read_tasks(test_path, files, levels, skip_ungradable, pages))
    test_keys = {normalize_question(task.prompt) for task in tasks_by_split["test"]} | {
        task.id for task in tasks_by_split["test"]
    }
    for task in _read_tasks(path, files, levels, skip_ungradable, pages) if path else ():
        if not {normalize_question(task.prompt), task.id} & test_keys:
            tasks_by_split[
                assign_split_by_share(task.prompt, HELD_OUT_SHARE, 0.0 if test_path else HELD_OUT_SHARE)
            ].append(task)
    return tasks_by_split


def attachment_folder(table: str, files: str) -> Path:
    """Return the folder of attached files: ``files``, or else the folder of the table."""
    return Path(files) if files else Path(table).parent


def _read_tasks(path: str, files: str, levels: Collection[int], skip_ungradable: bool, pages: str) -> Iterator[Task]:
    seen: dict[str, str] = {}
    for row in read_table(path, "", SPLIT_NAME):
        question, answer = row.text("Question"), row.text(ANSWER_COLUMN)
        level, name, file = _parse_level(row), row.text("task_id"), row.text("file_name")
        if not answer.strip() or answer.strip() == HIDDEN_ANSWER:
            if skip_ungradable:
                continue
            raise ValueError(
                f"environment: {row.location}: the answer is not told ({ANSWER_COLUMN!r} is {answer!r}), as in GAIA's "
                "own test; take its validation questions, or leave such rows out: ungradable = 'skip'"
            )
        if normalize_question(question) in seen:
            raise ValueError(
                f"environment: {row.location} asks what {seen[normalize_question(question)]} asks; take one out, so "
                "that nothing held out is trained on"
            )
        seen[normalize_question(question)] = row.location
        _check_file(row, file, attachment_folder(path, files))
        if level in levels:
            data = {"level": level, "answer": answer.strip(), "file": file, "fewest_steps": 1}
            if file or pages:
                content = (attachment_folder(path, files) / file).read_bytes() if file else b""
                data[DIGEST_KEY] = digest_content(pages, content)
            yield Task(name, question, data)


def _parse_level(row: Row) -> int:
    text = row.text("Level").strip()
    if text not in ("1", "2", "3"):
        raise ValueError(f"environment: {row.location}: Level is {text!r}; it is 1, 2 or 3")
    return int(text)


def _check_file(row: Row, file: str, folder: Path) -> None:
    if not file:
        return
    if Path(file).name != file:
        raise ValueError(f"environment: {row.location}: file_name is {file!r}; it is a name, without folders")
    if not (folder / file).is_file():
        raise ValueError(
            f"environment: {row.location}: its file {file!r} is not in {folder}; put it there, or name the folder that "
            "has it: files"
        )
