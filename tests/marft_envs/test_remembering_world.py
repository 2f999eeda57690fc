"""Conversations that are noted down: what is asked was said, no budget is exceeded, and nobody answers from more than
was picked."""

from __future__ import annotations

import json
import re
from itertools import islice
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marft.agents.memories.notes import NoteList
from marft.common.types import Observation
from marft.config.interfaces.credit import CreditInputs
from marft.config.load import load_recipe
from marft.config.models import ModelSettings
from marft.models.tokenizer_format import load_format
from marft.rewards.shaping import local_rewards
from marft.trainer.credit.comam import CoMAM
from marft_envs.memory.conversations import KINDS, NOT_MENTIONED, Chunk, Question, grade_answer
from marft_envs.memory.environment import Memory
from marft_envs.memory.generator import ANIMALS, CITIES, COLORS, FOODS, JOBS, OBJECTS, PEOPLE, Fact, day_before
from marft_lab.scripted_team import ScriptedTeam
from tests.nights import NIGHT
from tests.visits import by_script, visit

TEAM = ["writer", "retriever", "answerer"]
ALONE = {"writer": "solver", "retriever": "", "answerer": "solver"}
PLAIN: dict[str, Any] = {
    "style": "plain", "people": 3, "days": 3, "facts": 2, "filler_lines": 1, "questions": 2, "budget": 150, "train_tasks": 20,
    "held_out_tasks": 10,
}  # fmt: skip
ONE_FACT = tuple(kind for kind in KINDS if kind != "multi")  # each question takes one, or none
FULL: dict[str, Any] = {"train_tasks": 10, "held_out_tasks": 4}


def memory(**keys: Any) -> Memory:
    found = Memory(**keys)
    found._name = "memory"
    return found


def read_slowly(chunks: list[Chunk]) -> dict[tuple[str, ...], str]:
    """What a conversation says, by what it is about: a reader that knows words, and no sentence."""
    known: dict[tuple[str, ...], str] = {}
    for chunk in chunks:
        for line in chunk.lines:
            words = re.findall(r"\w+", line)
            who, rest = words[0], words[1:]
            for relation, values in (("city", CITIES), ("job", JOBS), ("food", FOODS), ("cousin", PEOPLE)):
                for word in rest:
                    if word in values and (relation != "cousin" or "cousin" in rest):
                        known[who, relation] = word
            for word in rest:
                if word in ANIMALS:
                    known[who, word] = next(color for color in rest if color in COLORS)
                if word in OBJECTS:
                    known[who, word] = day_before(chunk.date) if "esterday" in line else chunk.date
    return known


def answered_slowly(question: str, known: dict[tuple[str, ...], str]) -> str:
    """The answer to a question, from what the slow reader knows."""
    who = next(word for word in re.findall(r"\w+", question) if word in PEOPLE)
    topics = {"lives?": "city", "job|a": "job", "food|likes": "food"}
    topic = next((name for word, name in topics.items() if re.search(rf"\b({word})\b", question)), "cousin")
    if topic != "cousin" and "cousin" in question:
        who = known.get((who, "cousin"), "")
    thing = next((word for word in re.findall(r"\w+", question) if word in (*ANIMALS, *OBJECTS)), topic)
    return known.get((who, thing), NOT_MENTIONED)


class TestTruth:
    @given(seed=st.integers(0, 10**9), style=st.sampled_from(("plain", "full")))
    @settings(max_examples=1000 if NIGHT else 25)
    def test_a_slow_reader_answers_the_same(self, seed: int, style: Any) -> None:
        world = WORLDS[style]
        data = world.generate_task(Random(seed)).data
        known = read_slowly([Chunk.from_dict(chunk) for chunk in data["chunks"]])
        for question in data["questions"]:
            assert answered_slowly(question["text"], known) == question["answer"], question["text"]
            assert (
                (question["answer"] == NOT_MENTIONED) == (question["kind"] == "abstention") == (not question["needs"])
            )
        assert len(data["questions"]) == world.questions

    @pytest.mark.parametrize("kind", KINDS)
    def test_each_kind_of_question_can_be_asked_alone(self, kind: str) -> None:
        world = memory(**PLAIN, kinds=(kind,))
        assert {q["kind"] for task in world.tasks("train") for q in task.data["questions"]} == {kind}

    def test_what_was_said_before_is_no_answer_after_it_has_changed(self) -> None:
        world = memory(**PLAIN, kinds=("update",))
        for task in world.tasks("train"):
            lines = [line for chunk in task.data["chunks"] for line in chunk["lines"]]
            for question in task.data["questions"]:
                who, new = question["needs"][0]
                about = [line for line in lines if re.match(rf"{who} (lives|is a|likes) ", line)]
                place = next(number for number, line in enumerate(about) if new in line)
                old = [line for line in about[:place] if line.split()[1] == about[place].split()[1]]
                assert len(old) == 1
                assert new not in old[0]

    def test_days_are_as_long_as_is_said(self) -> None:
        world = memory(**FULL)
        chunks = world.tasks("train")[0].data["chunks"]
        assert [len(chunk["lines"]) for chunk in chunks] == [world.facts + world.filler_lines] * world.days
        assert len({chunk["date"] for chunk in chunks}) == world.days


class TestSplits:
    def test_no_conversation_is_in_two_parts(self) -> None:
        worlds = [memory(**{**PLAIN, "seed": seed}) for seed in (0, 1)]

        def told(tasks: Any) -> set[str]:
            return {json.dumps([facts(t), sorted(q["text"] for q in t.data["questions"])]) for t in tasks}

        def facts(task: Any) -> list[str]:
            said = read_slowly([Chunk.from_dict(chunk) for chunk in task.data["chunks"]])
            return sorted(f"{about}: {value}" for about, value in said.items())

        parts = [told(t for w in worlds for t in w.tasks(split)) for split in ("train", "validation", "test")]  # type: ignore[arg-type]
        parts.append(told(t for w in worlds for t in islice(w.demonstrations(), 30)))
        assert sum(map(len, parts)) == len(set.union(*parts)) == 2 * (20 + 10 + 10 + 30)


class TestPlaying:
    @pytest.mark.parametrize(("keys", "roles"), [
        (PLAIN, TEAM), ({**PLAIN, "retrieval": "choices", "top_k": 2}, TEAM), ({**PLAIN, **ALONE}, ["solver"]),
        (FULL, TEAM), ({**PLAIN, "retrieval": "words", "kinds": ONE_FACT}, TEAM),
        ({**FULL, "retrieval": "words", "kinds": ONE_FACT}, TEAM), ({**PLAIN, "retriever": ""}, ["writer", "answerer"]),
    ])  # fmt: skip
    def test_who_plays_well_answers_everything(self, keys: dict[str, Any], roles: list[str]) -> None:
        world = memory(**keys)
        for task in world.tasks("test"):
            done = by_script(world, task, roles)
            assert done.last.success
            assert done.reward == pytest.approx(1.0)
            assert len(done.steps) == task.data["fewest_steps"]
            assert done.last.info["measures"]["coverage"] == 1.0

    def test_a_weak_team_answers_some(self) -> None:
        world = memory(**PLAIN)
        rewards = [by_script(world, task, TEAM, 0.7).reward for task in world.tasks("train")]
        assert 0.2 < sum(rewards) / len(rewards) < 0.85

    def test_what_is_asked_stands_below_the_notes_so_that_prompts_of_all_questions_begin_alike(self) -> None:
        task = memory(**PLAIN).tasks("test")[0]
        done = visit(memory(**PLAIN), task, lambda role, *_: "Ann is here." if role == "writer" else "1", TEAM)
        asked = [shown for shown in done.observations if shown.turn in (("retriever",), ("answerer",))]
        texts = [shown.views[shown.turn[0]] for shown in asked]
        questions = [question["text"] for question in task.data["questions"] for _ in range(2)]
        notes = [f"{number}: Ann is here." for number in range(1, 4)]
        for text, question, shown in zip(texts, questions, asked, strict=True):
            above = "\n".join(notes) if shown.turn == ("retriever",) else "Ann is here."
            assert text == f"{above}\n\nQuestion: {question}"

    def test_who_retrieves_by_words_reads_the_question_alone(self) -> None:
        world = memory(**{**PLAIN, "retrieval": "words", "top_k": 2, "kinds": ["abstention"]})
        noted = iter(["ANN: likes rice", "Ann likes soup.\nAnnie likes cake.", "Bea likes Ann."])

        def said(role: str, *_: object) -> str:
            return next(noted) if role == "writer" else "likes? Ann!" if role == "retriever" else "soup"

        task = world.tasks("test")[0]
        done = visit(world, task, said, TEAM)
        views = [shown.views[shown.turn[0]] for shown in done.observations]
        first = task.data["questions"][0]["text"]
        at = [shown.turn for shown in done.observations].index(("retriever",))
        assert views[at] == f"Question: {first}"
        picked = views[at + 1].splitlines()[:-2]
        assert picked == ["Ann likes soup.", "Bea likes Ann."]
        answered = len(task.data["questions"])
        assert done.last.info["measures"]["read_characters"] == answered * len("\n".join(picked))

    def test_plain_questions_are_notes_without_their_ends(self) -> None:
        for fact in (
            Fact("pet", "Ann", "cat", "red"), Fact("city", "Ann", "", "Rome"), Fact("job", "Ann", "", "cook"),
            Fact("food", "Ann", "", "rice"), Fact("cousin", "Ann", "", "Bea"), Fact("event", "Ann", "hat", "Day 2"),
        ):  # fmt: skip
            assert fact.note == f"{fact.question('plain').removesuffix('?')}{fact.value}."
        assert Fact("city", "Bea", "", "Rome").question("plain", "Ann") == "Ann's cousin lives in ?"
        assert Fact("city", "Bea", "", "Rome").question("full", "Ann") == "Where does Ann's cousin live?"

    def test_each_acts_in_its_own_steps_and_sees_its_own_alone(self) -> None:
        world = memory(**PLAIN)
        for task in world.tasks("test"):
            done = by_script(world, task, TEAM)
            assert [shown.turn for shown in done.observations] == [("writer",)] * 3 + [
                ("retriever",),
                ("answerer",),
            ] * 2
            assert all(set(shown.views) == set(shown.turn) and not shown.text for shown in done.observations)
            for retrieving, answering in ((3, 4), (5, 6)):
                notes = dict(
                    re.findall(r"^(\d+): (.+)$", done.observations[retrieving].views["retriever"], re.MULTILINE)
                )
                picked = [notes[number] for number in re.findall(r"\d+", done.said[retrieving]["retriever"])]
                *read, _, question = done.observations[answering].views["answerer"].splitlines()
                assert read == (picked or ["(nothing)"])
                assert question in done.observations[retrieving].views["retriever"]

    @given(
        st.lists(
            st.text(max_size=60) | st.sampled_from(("1: x", "drop 1", "9 9 1", "nothing", "0", "1 2 3 4")), max_size=12
        )
    )
    @settings(max_examples=300 if NIGHT else 40)
    def test_no_text_breaks_a_conversation(self, texts: list[str]) -> None:
        waiting = iter(texts)
        done = visit(PLAIN_WORLD, PLAIN_WORLD.tasks("train")[0], lambda *_: next(waiting, ""), TEAM)
        assert len(done.steps) == 7
        assert 0.0 <= done.reward <= 1.0
        assert done.last.info["measures"]["memory_characters"] <= 150

    def test_a_team_that_does_not_act_answers_nothing(self) -> None:
        world = memory(**PLAIN)
        done = visit(world, world.tasks("train")[0], lambda role, *_: "", [])
        assert (done.reward, done.last.success) == (0.0, False)


class TestLocalRewards:
    def played(self, writes: str, picks: str, kinds: tuple[str, ...] = ("single", "multi")) -> Any:
        """An episode whose writer notes all of the lines or nothing, and whose retriever picks the same."""
        world = memory(**{**PLAIN, "budget": 1000, "top_k": 20}, kinds=kinds, local_weight=1.0)

        def says(role: str, shown: Observation, *_: object) -> str:
            if role == "writer":
                return (
                    "\n".join(shown.views[role].split("\n\nNotes")[0].splitlines()[1:]) if writes == "all" else writes
                )
            return " ".join(map(str, range(1, 20))) if picks == "all" and role == "retriever" else picks

        return visit(world, world.tasks("train")[0], says, TEAM)

    def test_a_writer_earns_what_its_notes_cover(self) -> None:
        assert self.played("all", "none").earned("writer") == 1.0
        assert self.played("nothing", "none").earned("writer") == 0.0
        assert self.played("all", "none").last.info["measures"]["coverage"] == 1.0

    def test_a_retriever_earns_what_it_finds(self) -> None:
        assert self.played("all", "all").earned("retriever") == pytest.approx(1.0)
        assert self.played("all", "none").earned("retriever") == 0.0
        assert self.played("nothing", "all").earned("retriever") == 0.0

    def test_where_nothing_was_mentioned_it_earns_picking_nothing(self) -> None:
        assert self.played("all", "none", ("abstention",)).earned("retriever") == pytest.approx(1.0)
        assert self.played("all", "all", ("abstention",)).earned("retriever") == 0.0
        assert "retrieval_recall" not in self.played("all", "all", ("abstention",)).last.info["measures"]

    def test_a_writer_may_earn_the_share_of_all_that_is_said(self) -> None:
        """Who notes the events alone holds all that is asked, and a part of what is said."""
        keys = {**PLAIN, "budget": 1000, "top_k": 20, "kinds": ("temporal",), "local_weight": 1.0}
        world = memory(**keys, coverage="all")

        def events(role: str, shown: Observation, *_: object) -> str:
            day, *lines = shown.views.get(role, "").split("\n\nNotes")[0].splitlines()
            return "\n".join(line.replace(".", f", {day}") for line in lines if "bought" in line) or "nothing"

        for task in world.tasks("train"):
            texts = [line for chunk in task.data["chunks"] for line in chunk["lines"]]
            share = sum("bought" in line for line in texts) / len(task.data["said"])
            played = visit(world, task, events, TEAM)
            assert played.earned("writer") == pytest.approx(share) == played.last.info["measures"]["coverage"]
            assert visit(memory(**keys), task, events, TEAM).earned("writer") == 1.0

    def test_what_is_said_of_a_file_is_not_known(self) -> None:
        with pytest.raises(ValueError, match="facts of a file are not known"):
            memory(path="conversations.json", coverage="all")

    def test_no_weight_is_no_local_reward(self) -> None:
        world = memory(**PLAIN)
        done = by_script(world, world.tasks("train")[0], TEAM)
        assert not any(step.agent_rewards for step in done.steps)

    def test_costs_are_measured(self) -> None:
        measures = self.played("all", "all").last.info["measures"]
        assert (
            measures["write_characters"] == measures["memory_characters"] - 2 > 0
        )  # but for breaks between three texts
        assert measures["read_characters"] == 4 * measures["memory_characters"]  # two questions, by two agents

    @pytest.mark.slow
    def test_comam_weighs_them(self) -> None:
        run = load_recipe("memory", changes={"models.base.path": "tiny-tools", "environment.train_tasks": 6})
        world: Any = run.environment
        form = load_format(ModelSettings(path="tiny-tools"))
        with ScriptedTeam(run, world.script(0.6), dict.fromkeys(run.models, form)) as team:
            episodes = tuple(team.play(world.tasks("train")[:4], samples=4))
        assert all(episode.is_scored for episode in episodes), [episode.error for episode in episodes]
        assert {role for episode in episodes for role in local_rewards(episode)} == {"writer", "retriever"}
        credits = CoMAM().assign(CreditInputs(episodes=episodes, level="action"))
        assert 0.0 < credits.metrics["global_weight"] <= 1.0
        assert any(advantages.any() for advantages in credits.advantages)


class TestNotes:
    @given(st.integers(1, 60), st.lists(st.text(alphabet="ab 12:\n-", max_size=30), max_size=8))
    def test_a_budget_is_never_exceeded_and_only_what_exceeds_it_is_cut(self, budget: int, texts: list[str]) -> None:
        small, large = NoteList(budget), NoteList(10_000)
        for text in texts:
            told, _ = small.write(text), large.write(text)
            assert small.num_characters == len("\n".join(small.notes)) <= budget
            if large.num_characters <= budget and "cut" not in told and not small_was_cut(texts, budget):
                assert small.notes == large.notes
        assert small.written_characters == sum(map(len, texts))

    def test_lines_are_notes_and_numbers_change_them(self) -> None:
        book = NoteList(100)
        book.write("Ann lives in Rome.\n\n- Bea  is a cook.\nnothing")
        assert book.notes == ["Ann lives in Rome.", "Bea is a cook."]
        assert book.write("1: Ann lives in Oslo.\ndrop 2\nDan is here.") == ""
        assert book.notes == ["Ann lives in Oslo.", "Dan is here."]
        assert book.format_numbered() == "1: Ann lives in Oslo.\n2: Dan is here."
        book.write("Cal is here.\ndrop 3")
        assert book.notes[2:] == ["Cal is here."]  # numbers are those that were shown
        assert book.write("7: No.\ndrop 0") == "There is no note 7. There is no note 0."

    def test_what_does_not_fit_is_cut_where_it_does_not(self) -> None:
        book = NoteList(12)
        assert book.write("12345\nabcdefghij\nmore") == "The notes are full: the rest was cut."
        assert book.notes == ["12345", "abcdef"]
        book.write("1: x")
        assert book.notes == ["x", "abcdef"]


class TestGrades:
    @pytest.mark.parametrize(("kind", "right", "text", "exact", "holds", "f1"), [
        ("single", "Rome", "rome.", 1, 1, 1), ("single", "Rome", "She lives in Rome.", 0, 1, 0.4), ("single", "Rome", "Romeo", 0, 0, 0),
        ("single", "Rome", "not mentioned", 0, 0, 0), ("single", "8 May 2023", r"\boxed{8 May, 2023}", 1, 1, 1),
        ("abstention", "not mentioned", "That was Not  mentioned.", 1, 1, 1), ("abstention", "not mentioned", "Rome", 0, 0, 0),
        ("abstention", "not mentioned", "No information available", 1, 1, 1), ("multi", "tea, red wine", "red wine, tea", 0, 0, 1),
        ("multi", "tea, red wine", "tea", 0, 0, 0.5), ("single", "Rome", "", 0, 0, 0),
    ])  # fmt: skip
    def test_answers_are_graded(self, kind: Any, right: str, text: str, exact: float, holds: float, f1: float) -> None:
        question = Question(kind, "?", right, ())
        assert grade_answer(question, text, "exact") == exact
        assert grade_answer(question, text, "contains") == holds
        assert grade_answer(question, text, "f1") == pytest.approx(f1)

    def test_a_threshold_says_what_counts_as_right(self) -> None:
        def success(threshold: float) -> bool:
            world = memory(**{**PLAIN, **ALONE}, kinds=("single",), grading="f1", threshold=threshold)
            task = world.tasks("train")[0]
            answers = iter(q["answer"] for q in task.data["questions"])
            done = visit(
                world,
                task,
                lambda role, shown, *_: f"so {next(answers)}" if "Question" in shown.views[role] else "",
                [],
            )
            assert done.reward == pytest.approx(2 / 3)
            return bool(done.last.success)

        assert success(0.6)
        assert not success(0.9)


class TestSettings:
    @pytest.mark.parametrize(("keys", "words"), [
        ({"kinds": ("singel",)}, "did you mean 'single'"), ({"kinds": ()}, "names none"), ({"days": 1, "facts": 1}, "two facts a question"),
        ({"days": 100}, "at most"),
    ])  # fmt: skip
    def test_what_cannot_be_is_refused(self, keys: dict[str, Any], words: str) -> None:
        with pytest.raises(ValueError, match=words):
            memory(**keys)

    def test_too_many_questions_for_so_few_people_are_refused_in_words(self) -> None:
        world = memory(**{**PLAIN, "people": 2, "questions": 3}, kinds=("multi",))
        with pytest.raises(ValueError, match="ask fewer, of more kinds, or about more people"):
            world.tasks("train")

    def test_roles_that_the_team_lacks_are_named(self) -> None:
        assert "environment.writer: no agent is called 'writer'" in next(iter(memory().problems(["a", "b"])))
        assert not list(memory(**ALONE).problems(["solver"]))

    @pytest.mark.parametrize("name", ["memory", "memory_single"])
    def test_the_recipes_are_read(self, name: str) -> None:
        assert isinstance(load_recipe(name).environment, Memory)


def small_was_cut(texts: list[str], budget: int) -> bool:
    """Whether anything was ever cut from notes of that budget."""
    book = NoteList(budget)
    return any("cut" in book.write(text) for text in texts)


PLAIN_WORLD = memory(**PLAIN)
WORLDS = {"plain": PLAIN_WORLD, "full": memory(**FULL)}
