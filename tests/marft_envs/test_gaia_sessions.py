"""GAIA as a team meets it: what searches show, what files hold, what counts as an answer, and what is held out."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from random import Random

import pytest

from marft.common.types import Step, Task
from marft.envs.scripted_policy import PolicyInput
from marft_envs.gaia import library
from marft_envs.gaia.environment import MAX_UNSOLVED, Gaia, GaiaSession
from marft_envs.gaia.library import Attachments, Page, PageLibrary, read_text_file
from tests.marft_envs.test_gaia import gaia, metadata, row
from tests.visits import joint

PAGES = [Page(f"Tea {number}", f"Tea costs {number}.") for number in range(1, 9)]


def session(
    *, results: int = 5, snippets: bool = True, sources: tuple[str, ...] = (), strict: bool = True
) -> GaiaSession:
    settings = Gaia(require_final_answer=strict, max_results=results, show_snippets=snippets)
    task = Task("tea", "What does tea cost?", {"answer": "3", "sources": sources})
    return GaiaSession(
        settings, task, PageLibrary(PAGES), Attachments({"prices.csv": "tea,3", "notes.txt": "Ask Ada."})
    )


def answered(asked: GaiaSession, text: str) -> Step:
    return asyncio.run(asked.step(joint({"solver": text})))


@pytest.mark.parametrize("results", [1, 3])
def test_a_search_finds_as_many_pages_as_it_may(results: int) -> None:
    assert len(session(results=results).search("tea").splitlines()) == results


def test_results_show_how_pages_begin_where_they_are_to() -> None:
    assert session(results=1).search("3") == "[3] Tea 3: Tea costs 3."
    assert session(results=1, snippets=False).search("3") == "[3] Tea 3"


def test_what_is_thought_is_no_answer() -> None:
    for strict in (True, False):
        step = answered(session(strict=strict), "<think>FINAL ANSWER: 3\n</think>I cannot say.")
        assert (step.success, step.info["measures"]["stated"]) == (False, 0.0)
    assert answered(session(), "<think>FINAL ANSWER: 4</think>FINAL ANSWER: 3").success
    assert answered(session(strict=False), "<think>So it is 3.</think>3").success


@pytest.mark.parametrize("said", ["*" * 4001, "`" * 990 + "3" + "`" * 990, "\\boxed{" * 2000 + "}" * 2000])
def test_marks_without_end_are_an_answer_as_any_other(said: str) -> None:
    assert answered(session(), f"FINAL ANSWER: {said}").success is ("3" in said)


def test_progress_without_an_answer_is_what_was_read_of_what_it_takes_and_never_all() -> None:
    sources = ("Tea 3", "prices.csv")
    for read, progress in ((0, 0.0), (1, MAX_UNSOLVED / 2), (2, MAX_UNSOLVED)):
        for said, whole in (("FINAL ANSWER: 4", progress), ("FINAL ANSWER: 3", 1.0)):
            asked = session(sources=sources)
            for look, source in ((asked.open_page, 3), (asked.read_file, "prices.csv"))[:read]:
                look(source)  # type: ignore[arg-type]
            assert answered(asked, said).info["progress"] == pytest.approx(whole)
    assert MAX_UNSOLVED < 1


def test_every_tool_that_is_called_is_counted() -> None:
    asked = session()
    for said in (asked.search("tea"), asked.open_page(1), asked.read_file("notes.txt"), asked.calculate("1 + 2")):
        assert said
    assert answered(asked, "").info["measures"]["tool_calls"] == 4.0


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "MAX_FILE_BYTES", 4)
    (tmp_path / "some.txt").write_text("four")
    assert read_text_file(tmp_path / "some.txt") == "four"
    (tmp_path / "some.txt").write_text("fives")
    with pytest.raises(ValueError, match=r"some.txt is larger than"):
        read_text_file(tmp_path / "some.txt")


def test_pages_and_files_are_those_of_the_folders_that_are_named(tmp_path: Path) -> None:
    for folder, text in (("beside", "Tea costs 4."), ("files", "Tea costs 3."), ("pages", "A potter, born in 1912.")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "Ada Kern.txt").write_text(text)
    path = metadata(tmp_path / "beside", row(1, file_name="Ada Kern.txt"))
    world = gaia(test_path=path, files=str(tmp_path / "files"), pages=str(tmp_path / "pages"))
    (task,) = world.tasks("test")
    asked = world.start(task, 0)
    assert "Tea costs 3." in asked.read_file("Ada Kern.txt")
    assert asked.search("potter") == "[1] Ada Kern: A potter, born in 1912."


def test_a_question_of_the_test_is_known_by_its_id_too(tmp_path: Path) -> None:
    (tmp_path / "test").mkdir()
    tests = metadata(tmp_path / "test", row(1))
    rows = [row(1, Question="What is one and one?"), row(2), row(3, Question="what is  1 + 1?"), *map(row, range(4, 9))]
    world = gaia(path=metadata(tmp_path, *rows), test_path=tests)
    learned = [task.id for split in ("train", "validation") for task in world.tasks(split)]
    assert sorted(learned) == ["t2", *(f"t{number}" for number in range(4, 9))]


def test_the_script_searches_for_a_page_that_the_question_names_by_the_whole_question() -> None:
    world = gaia(train_tasks=60, held_out_tasks=1, levels=[1, 2])
    script, searched = world.script(1.0), 0
    assert script
    for task in world.tasks("train"):
        said = script(PolicyInput(task, "searcher", 0, [{"role": "user", "content": task.prompt}], Random(0)))
        assert not isinstance(said, str)
        named = [call for call in said.calls if call.name == "search"]
        assert [json.loads(call.arguments) for call in named] in ([], [{"query": task.prompt}])
        searched += len(named)
    assert searched > 20
