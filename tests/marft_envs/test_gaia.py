"""GAIA: its scorer, its metadata and files, tools over pages, and questions that are drawn and need them."""

from __future__ import annotations

import asyncio
import json
import re
import string
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from marft.agents.prompt_messages import format_message
from marft.common.types import Step, Task
from marft.config.interfaces.channel import Message
from marft.envs.scripted_policy import PolicyInput, ScriptedReply
from marft_envs.gaia.environment import Gaia, GaiaSession
from marft_envs.gaia.library import Page, PageLibrary, load_library, text_part
from marft_envs.gaia.plans import PARSERS, WRITERS
from marft_envs.gaia.scoring import answers_match, extract_answer
from tests.visits import joint

FEW: dict[str, Any] = {"train_tasks": 60, "held_out_tasks": 20}
TURNS = 12


def gaia(**keys: Any) -> Gaia:
    found = Gaia(**keys)
    found._name = "gaia"
    return found


ANY = gaia(**FEW)


def played(world: Gaia, task: Task, roles: tuple[str, ...], skill: float = 1.0) -> tuple[Step, list[str]]:
    """An attempt by the script: its last step, and the tools that were called."""
    script, called = world.script(skill), list[str]()
    assert script

    def turn(session: GaiaSession, role: str, chat: list[Mapping[str, object]], random: Random) -> str:
        for _ in range(TURNS):
            said = script(PolicyInput(task, role, 0, chat, random))
            if isinstance(said, str) or not said.calls:
                return said if isinstance(said, str) else said.text
            chat.append({"role": "assistant", "content": ""})
            for call in said.calls:
                called.append(call.name)
                output = getattr(session, call.name)(**json.loads(call.arguments))
                chat.append({"role": "tool", "content": output})
        return ""

    async def attempt() -> Step:
        session, texts = world.start(task, 0), dict[str, str]()
        shown = (await session.reset()).text
        for role in roles:
            heard = [format_message(Message(other, text)) for other, text in texts.items()]
            chat: list[Mapping[str, object]] = [{"role": "user", "content": "\n\n".join([shown, *heard])}]
            texts[role] = turn(session, role, chat, Random(role + task.id))
        return await session.step(joint(texts))

    return asyncio.run(attempt()), called


def slow_match(answer: str, right: str) -> bool:
    """The published rules, one after another."""

    def is_number(text: str) -> bool:
        try:
            float(text)
        except ValueError:
            return False
        return True

    def as_number(text: str) -> float:
        plain = "".join(sign for sign in text if sign not in "$%,")
        return float(plain) if is_number(plain) else float("inf")

    def as_text(text: str, marks: bool) -> str:
        kept = ""
        for sign in text.lower():
            if not sign.isspace() and (marks or sign not in string.punctuation):
                kept += sign
        return kept

    if is_number(right):
        return as_number(answer) == float(right)
    if "," in right or ";" in right:
        given, wanted = answer.replace(";", ",").split(","), right.replace(";", ",").split(",")
        if len(given) != len(wanted):
            return False
        for one, other in zip(given, wanted, strict=True):
            if is_number(other):
                if as_number(one) != float(other):
                    return False
            elif as_text(one, True) != as_text(other, True):
                return False
        return True
    return as_text(answer, False) == as_text(right, False)


class TestScoring:
    @pytest.mark.parametrize(
        ("answer", "right", "equal"),
        [
            ("17", "17", True), ("17.0", "17", True), ("$1,234.50", "1234.5", True), ("42%", "42", True),
            ("17 thousand", "17", False), ("17000", "17", False), ("", "17", False),
            ("right", "Right", True), ("St. Petersburg", "st petersburg", True), ("sea gull", "seagull", True),
            ("gulls", "gull", False), ("a, b,c", "a,b,c", True), ("a; b", "a, b", True), ("b, a", "a, b", False),
            ("a", "a, b", False), ("a, $2", "a, 2", True), ("a.b, c", "ab, c", False), ("3, 4.0", "3;4", True),
        ],
    )  # fmt: skip
    def test_known_answers_are_graded_as_published(self, answer: str, right: str, equal: bool) -> None:
        assert answers_match(answer, right) is equal

    @given(st.text("aB1.2,;$% -é", max_size=8), st.text("aB1.2,;$% -é", max_size=8))
    def test_it_is_the_slow_reference(self, answer: str, right: str) -> None:
        assert answers_match(answer, right) == slow_match(answer, right)
        assert answers_match(right, right) == slow_match(right, right)

    def test_the_answer_is_what_is_stated_last_on_its_line(self) -> None:
        assert extract_answer("FINAL ANSWER: a\nno: final answer : b \nand so on") == "b"
        assert extract_answer("FINAL ANSWER:\n7") == "7"
        assert extract_answer("FINAL ANSWER:") == ""
        assert extract_answer("the answer is 7") is None

    @pytest.mark.parametrize(
        "text", ["**FINAL ANSWER:** 17", "FINAL ANSWER: **17**", r"Final answer: $\boxed{17}$", "_final answer_: `17`"]
    )
    def test_marks_around_an_answer_are_not_part_of_it(self, text: str) -> None:
        assert extract_answer(text) == "17"

    @pytest.mark.parametrize("answer", ["2 * 3 * 4", "a_b_c", "*", "f(x)**2", "**", r"\boxed{1} or \boxed{2}"])
    def test_marks_within_one_are(self, answer: str) -> None:
        assert extract_answer(f"FINAL ANSWER: {answer}") == answer


def reference_answer(task: Task) -> str:
    """The plan of a drawn question, worked out by plain loops over its pages and files."""
    pages = {t: dict(line.split(": ", 1) for line in text.splitlines()) for t, text in task.data["pages"].items()}
    files = {name: PARSERS[name[name.rindex(".") :]](text) for name, text in task.data["files"].items()}
    values: list[Any] = []
    for kind, *made_of in task.data["plan"]:
        first, *rest = (values[one] if isinstance(one, int) else one for one in made_of)
        if kind == "page":
            values.append([pages[t][rest[0]] for t in first] if isinstance(first, list) else pages[first][rest[0]])
        elif kind in ("cell", "most", "above"):
            header, *rows = files[first]
            place = header.index(rest[-1] if kind == "cell" else rest[0])
            if kind == "cell":
                values.append(next(row[place] for row in rows if row[0] == rest[0]))
            elif kind == "most":
                values.append(sorted(rows, key=lambda row: -int(row[place]))[0][0])
            else:
                values.append([row[0] for row in rows if int(row[place]) > int(rest[1])])
        elif kind == "sorted":
            values.append(sorted(set(first)))
        else:
            one, other = int(first), int(rest[0])
            values.append(str(one + other if kind == "sum" else abs(one - other)))
    return ", ".join(values[-1]) if isinstance(values[-1], list) else str(values[-1])


class TestDrawn:
    def test_answers_are_those_of_the_plain_reference(self) -> None:
        tasks = [task for split in ("train", "validation", "test") for task in ANY.tasks(split)]  # type: ignore[arg-type]
        assert [task.data["answer"] for task in tasks] == [reference_answer(task) for task in tasks]

    def test_an_oracle_that_reads_what_tools_show_answers_everything(self) -> None:
        for task in ANY.tasks("train"):
            for roles in (("searcher", "answerer"), ("solver",)):
                step, called = played(ANY, task, roles)
                assert (step.reward, step.success) == (1.0, True), task
                assert set(called) == set(task.data["right_tools"]), task

    @pytest.mark.parametrize("results", [1, 2])
    def test_an_oracle_searches_on_where_one_search_shows_less_than_it_needs(self, results: int) -> None:
        world = gaia(train_tasks=60, held_out_tasks=1, levels=[2, 3], max_results=results)
        assert all(played(world, task, ("solver",))[0].success for task in world.tasks("train"))

    def test_a_team_that_says_nothing_answers_nothing(self) -> None:
        for task in ANY.tasks("test"):
            session = ANY.start(task, 0)
            step = asyncio.run(session.step(joint({"solver": ""})))
            assert (step.reward, step.success, step.terminated) == (0.0, False, True)

    def test_weak_players_fail_often_and_without_an_error(self) -> None:
        solved = [played(ANY, task, ("searcher", "answerer"), 0.0)[0].reward for task in ANY.tasks("train")]
        assert sum(solved) < len(solved) / 4

    def test_levels_take_more_and_more(self) -> None:
        of = {level: [t.data for t in ANY.tasks("train") if t.data["level"] == level] for level in (1, 2, 3)}
        assert all(of.values())
        assert {len(data["sources"]) for data in of[1]} == {1}
        assert all(len(data["sources"]) > 1 for data in of[2] + of[3])
        assert all("calculate" in data["right_tools"] or data["plan"][-1][0] == "sorted" for data in of[3])

    def test_no_question_with_its_answer_is_in_two_parts_whatever_the_seed(self) -> None:
        worlds = [gaia(**FEW, seed=seed, levels=[1]) for seed in (0, 1)]

        def asked(tasks: Any) -> set[tuple[str, str]]:
            return {(task.prompt, task.data["answer"]) for task in tasks}

        held_out = {one for w in worlds for split in ("validation", "test") for one in asked(w.tasks(split))}  # type: ignore[arg-type]
        trained = {one for w in worlds for one in asked(w.tasks("train"))}
        shown = {one for w in worlds for one in asked(islice(w.demonstrations(), 60))}
        assert len(held_out) + len(trained) + len(shown) == len(held_out | trained | shown)

    def test_questions_are_the_same_again(self) -> None:
        assert [t.data for t in gaia(**FEW).tasks("test")] == [t.data for t in ANY.tasks("test")]

    def test_tables_are_read_back_in_every_format(self) -> None:
        rows = [["name", "points"], ["Ada Kern", "12"], ["Bo Holm", "7"]]
        assert {ending: PARSERS[ending](write(rows)) for ending, write in WRITERS.items()} == dict.fromkeys(
            WRITERS, rows
        )


class TestTools:
    def session(self, **keys: Any) -> GaiaSession:
        task = next(t for t in ANY.tasks("train") if t.data["files"])
        return gaia(**FEW, **keys).start(task, 0)

    def test_what_cannot_be_had_is_said_in_words(self) -> None:
        session = self.session()
        (name,) = session.attachments.files
        for call, says in (
            (lambda: session.open_page(0), "there is no page 0; search"),
            (lambda: session.open_page(1, 9), "there is no part 9: it has 1"),
            (lambda: session.read_file("../etc/passwd"), rf"there is no file '../etc/passwd'; there are: {name}"),
            (lambda: session.calculate("open('x')"), "invalid expression"),
        ):
            with pytest.raises(Exception, match=says):
                call()
        assert session.search("zzz") == "no page has these words"
        assert session.calculate("(2 + 3) / 8") == "(2 + 3) / 8 = 0.625"

    def test_a_page_is_found_first_by_its_title(self) -> None:
        for task in ANY.tasks("test"):
            session = ANY.start(task, 0)
            for title in task.data["pages"]:
                assert re.match(rf"\[\d+\] {title}\b", session.search(title))

    def test_several_steps_end_with_the_first_answer_that_is_stated(self) -> None:
        session = self.session(max_steps=3)

        async def attempt() -> list[Step]:
            await session.reset()
            said = ("I look it up.", f"FINAL ANSWER: {session.task.data['answer']}")
            return [await session.step(joint({"solver": text})) for text in said]

        first, second = asyncio.run(attempt())
        assert (first.terminated, first.success, first.reward) == (False, None, 0.0)
        assert "So far: I look it up.\nStep 2 of 3." in first.observation.text
        assert (second.terminated, second.success, second.reward) == (True, True, 1.0)

    def test_a_bare_answer_counts_where_that_is_allowed(self) -> None:
        for strict in (True, False):
            session = self.session(require_final_answer=strict)
            step = asyncio.run(session.step(joint({"solver": session.task.data["answer"]})))
            assert step.success is not strict

    @given(st.text("ab\n", max_size=60), st.integers(1, 20))
    def test_parts_are_the_whole_text(self, text: str, whole: int) -> None:
        parts, number = list[str](), 1
        while True:
            try:
                part = text_part(text, number, whole)
            except ValueError:
                break
            parts.append(re.sub(r"\n\[part \d+ of \d+\]$", "", part))
            number += 1
        assert "".join(parts).replace("\n", "") == text.replace("\n", "")
        assert max(map(len, parts)) <= whole

    def test_numbers_of_pages_are_places_in_the_corpus(self) -> None:
        library = PageLibrary([Page("one", "red"), Page("two", "blue red red")])
        assert [number for number, _ in library.search("red", 5)] == [2, 1]
        assert library.get_page(1).title == "one"


def row(number: int, **keys: Any) -> dict[str, Any]:
    return {
        "task_id": f"t{number}", "Question": f"What is {number} + {number}?", "Level": 1 + number % 3,
        "Final answer": str(2 * number), "file_name": "", "Annotator Metadata": {"Steps": "1. Add."}, **keys,
    }  # fmt: skip


def metadata(folder: Path, *rows: Mapping[str, Any]) -> str:
    (folder / "metadata.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return str(folder / "metadata.jsonl")


class TestMetadata:
    def test_it_is_read_as_it_is_published_with_its_files(self, tmp_path: Path) -> None:
        (tmp_path / "prices.csv").write_text("item,price\ntea,3\n")
        (tmp_path / "picture.png").write_bytes(b"\x89PNG\0")
        rows = [row(n) for n in range(80)]
        rows[0]["file_name"], rows[1]["file_name"] = "prices.csv", "picture.png"
        world = gaia(path=metadata(tmp_path, *rows))
        tasks = {t.id: t for split in ("train", "validation", "test") for t in world.tasks(split)}  # type: ignore[arg-type]
        assert len(tasks) == 80
        assert (tasks["t5"].prompt, tasks["t5"].data["answer"], tasks["t5"].data["level"]) == (
            "What is 5 + 5?",
            "10",
            3,
        )
        session = world.start(tasks["t0"], 0)
        assert asyncio.run(session.reset()).text == "What is 0 + 0?\nFile: prices.csv"
        assert session.read_file("prices.csv") == "prices.csv\nitem,price\ntea,3"
        with pytest.raises(ValueError, match=r"picture.png is no text in UTF-8"):
            world.start(tasks["t1"], 0).read_file("picture.png")
        assert world.start(tasks["t2"], 0).search("anything") == "no page has these words"
        assert all(t.data["level"] == 2 for t in gaia(path=metadata(tmp_path, *rows), levels=[2]).tasks("train"))

    def test_what_a_test_needs_is_missed_before_anything_is_learned(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match=r"cannot read .*nowhere\.jsonl"):
            gaia(test_path=str(tmp_path / "nowhere.jsonl")).tasks("train")
        with pytest.raises(ValueError, match="nopages"):
            gaia(test_path=metadata(tmp_path, row(1)), pages=str(tmp_path / "nopages")).tasks("train")

    def test_pages_of_a_folder_are_searched(self, tmp_path: Path) -> None:
        (tmp_path / "Ada Kern.txt").write_text("A potter, born in 1912.")
        assert load_library(str(tmp_path)).search("potter", 1) == [(1, Page("Ada Kern", "A potter, born in 1912."))]

    def test_what_is_in_the_test_is_in_no_other_split(self, tmp_path: Path) -> None:
        tests = tmp_path / "test"
        tests.mkdir()
        world = gaia(path=metadata(tmp_path, *map(row, range(40))), test_path=metadata(tests, *map(row, range(30, 50))))
        assert len(world.tasks("test")) == 20
        assert not {t.prompt for t in world.tasks("test")} & {t.prompt for t in world.tasks("train")}

    def test_a_question_of_the_test_is_known_by_its_id_too(self, tmp_path: Path) -> None:
        (tests := tmp_path / "test").mkdir()
        again = row(3, Question="Said otherwise: what is it?")
        world = gaia(path=metadata(tmp_path, *map(row, range(10, 40)), again), test_path=metadata(tests, row(3)))
        assert "t3" not in {t.id for split in ("train", "validation") for t in world.tasks(split)}  # type: ignore[arg-type]

    def test_a_test_from_a_file_is_all_of_it_and_what_is_learned_from_is_drawn(self, tmp_path: Path) -> None:
        (tmp_path / "notes.txt").write_text("Tea costs 3.")
        world = gaia(test_path=metadata(tmp_path, *(row(n, file_name="notes.txt") for n in range(20))), train_tasks=5)
        assert [task.id for task in world.tasks("test")] == [f"t{n}" for n in range(20)]
        assert len(world.tasks("train")) == 5
        assert all("pages" in task.data for task in world.tasks("train"))
        session = world.start(world.tasks("test")[0], 0)
        assert "Tea costs 3." in session.read_file("notes.txt")
        assert world.script() is None

    def test_files_are_beside_the_table_that_names_them(self, tmp_path: Path) -> None:
        (tmp_path / "test").mkdir()
        (tmp_path / "test" / "notes.txt").write_text("Tea costs 3.")
        (tmp_path / "notes.txt").write_text("Tea costs 4.")
        tests = metadata(tmp_path / "test", row(7, file_name="notes.txt"))
        world = gaia(path=metadata(tmp_path, *(row(n, file_name="notes.txt") for n in range(5))), test_path=tests)
        assert "Tea costs 3." in world.start(world.tasks("test")[0], 0).read_file("notes.txt")
        learned = next(task for split in ("train", "validation") for task in world.tasks(split))  # type: ignore[arg-type]
        assert "Tea costs 4." in world.start(learned, 0).read_file("notes.txt")

    @pytest.mark.parametrize(
        ("keys", "says"),
        [
            ({"Final answer": "?"}, r"line 1: the answer is not told .* leave such rows out: ungradable = 'skip'"),
            ({"Level": 4}, "Level is '4'; it is 1, 2 or 3"),
            ({"file_name": "gone.csv"}, "its file 'gone.csv' is not in"),
            ({"file_name": "../gone.csv"}, "it is a name, without folders"),
            ({"Question": "What is 2 + 2?"}, r"line 2\w* asks what .*line 1 asks"),
        ],
    )
    def test_a_row_that_cannot_be_used_is_named(self, tmp_path: Path, keys: dict[str, Any], says: str) -> None:
        rows = [row(1, **keys), row(2)]
        with pytest.raises(ValueError, match=says):
            gaia(path=metadata(tmp_path, *rows)).tasks("train")

    def test_rows_without_an_answer_are_left_out_where_that_is_said(self, tmp_path: Path) -> None:
        rows = [row(n, **({"Final answer": "?"} if n % 2 else {})) for n in range(60)]
        world = gaia(path=metadata(tmp_path, *rows), ungradable="skip")
        assert sum(len(world.tasks(split)) for split in ("train", "validation", "test")) == 30  # type: ignore[arg-type]

    def test_pages_without_questions_from_a_file_are_refused(self) -> None:
        with pytest.raises(ValidationError, match="are for questions from a file; name it"):
            gaia(pages="corpus")


def test_an_oracle_knows_nothing_before_it_has_read() -> None:
    script = ANY.script()
    assert script
    task = ANY.tasks("train")[0]
    said = script(PolicyInput(task, "solver", 0, [{"role": "user", "content": task.prompt}], Random(0)))
    assert isinstance(said, ScriptedReply)
    assert said.calls, "nothing is known before it was read"
