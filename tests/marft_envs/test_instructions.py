"""Instructions that can be checked: what follows them, what does not, and that what is drawn can be followed."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from pydantic import ValidationError

from marft.common.types import JointAction
from marft.envs.scripted_policy import PolicyInput
from marft_envs.instructions.environment import GENERATED_KINDS, Instructions
from marft_envs.instructions.kinds import (
    JSON_SCHEMA_KIND,
    KINDS,
    Instruction,
    check_instructions,
    from_dicts,
    satisfies_relation,
)
from marft_envs.instructions.texts import SAMPLE_TEXTS, may_be_language, split_sentences, split_words
from marft_envs.instructions.writer import TOPICS
from tests.episodes import make_action

F, L, K, C = "detectable_format:", "length_constraints:", "keywords:", "change_case:"
# of each kind: parameters, a text that follows, and texts that do not
CASES = [
    (f"{L}number_words", {"num_words": 3, "relation": "exactly"}, "one two three", ["one two", "one-two three four"]),
    (f"{L}number_words", {"num_words": 3, "relation": "less than"}, "one two", ["one two three"]),
    (f"{L}number_words", {"num_words": 3, "relation": "at least"}, "a b c d", ["a b"]),
    (f"{L}number_sentences", {"num_sentences": 2, "relation": "exactly"}, "Dr. No left. Why?", ["One.", "A. b. c. Then. Now."]),
    (f"{L}number_sentences", {"num_sentences": 2, "relation": "at least"}, "One. Two. Three.", ["One."]),
    (f"{L}number_sentences", {"num_sentences": 2, "relation": "less than"}, "One.", ["One. Two."]),
    (f"{L}number_paragraphs", {"num_paragraphs": 2}, "a\n***\nb", ["a", "a\n\nb", "a\n***\n***\nb", "a***b***c"]),
    (f"{L}nth_paragraph_first_word", {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "Sea"}, "a\n\n\"sea, b", ["sea\n\na", "a\n\nb\n\nsea", "a\n\nseal", "sea"]),
    (f"{K}existence", {"keywords": ["salt", "sea"]}, "SEA and salt", ["sea"]),
    (f"{K}forbidden_words", {"forbidden_words": ["sea"]}, "seal", ["The Sea!", "a sea"]),
    (f"{K}frequency", {"keyword": "sea", "frequency": 2, "relation": "at least"}, "sea Sea", ["sea"]),
    (f"{K}frequency", {"keyword": "sea", "frequency": 2, "relation": "less than"}, "a sea", ["sea Sea", "the sea of seas"]),
    (f"{K}letter_frequency", {"letter": "a", "let_frequency": 2, "let_relation": "at least"}, "abcA", ["abc", ""]),
    (f"{K}letter_frequency", {"letter": "A", "let_frequency": 2, "let_relation": "less than"}, "abc", ["aa", "aAb"]),
    (f"{C}english_capital", {}, "THE SEA IS BLUE 7", ["THE SEa", "DAS MEER IST BLAU UND DIE SONNE", "МОРЕ"]),
    (f"{C}english_lowercase", {}, "the sea is blue", ["The sea", "das meer ist blau und die sonne", "123"]),
    (f"{C}capital_word_frequency", {"capital_frequency": 2, "capital_relation": "at least"}, "NASA and TOP-TEN", ["NASA and top", "Nasa A"]),
    (f"{C}capital_word_frequency", {"capital_frequency": 2, "capital_relation": "less than"}, "NASA and top", ["A TOP day"]),
    ("punctuation:no_comma", {}, "a; b", ["a, b"]),
    (f"{F}number_bullet_lists", {"num_bullets": 2}, "x\n- a\n* b", ["- a", "- a\n- b\n- c", "** a\n- b"]),
    (f"{F}numbered_list", {"num_items": 2}, "x\n1. a\n2) b", ["1. a", "1. a\n3. b", "1. a\n2. b\n3. c", "1.\n2. a"]),
    (f"{F}number_highlighted_sections", {"num_highlights": 2}, "*a* and *b*", ["*a*", "* * *c", "a"]),
    (f"{F}multiple_sections", {"section_spliter": "Section", "num_sections": 2}, "Section 1\na\nSection 2\nb", ["Section 1 a", "section 1 section 2"]),
    (f"{F}title", {}, "<<Sea>>\nblue", ["<Sea>", "<< >>", "<<a\nb>>"]),
    (f"{F}constrained_response", {}, "My answer is no.", ["no", "My answer is no"]),
    (f"{F}json_format", {}, '```json\n{"a": [1]}\n```', ["{a: 1}", "x {}", "[" * 100_000]),
    (f"{F}json_schema", {"schema": {"type": "object", "required": ["a"], "properties": {"a": {"type": "integer"}}}}, '{"a": 1}', ['{"a": "1"}', "{}", "nothing"]),
    ("detectable_content:number_placeholders", {"num_placeholders": 2}, "[a] [b c]", ["[a]", "a b"]),
    ("detectable_content:postscript", {"postscript_marker": "P.P.S"}, "a\nP. P. S. b", ["P.S. b", "pps"]),
    ("detectable_content:postscript", {"postscript_marker": "P.S."}, "a\np.s. b", ["ps b"]),
    ("language:response_language", {"language": "de"}, "Das ist gut.", ["This is good.", "Это хорошо."]),
    ("startend:end_checker", {"end_phrase": "The end."}, 'a the END."', ["The end. a", "the end"]),
    ("startend:quotation", {}, ' "a" ', ['"a', "a", '"', "'a'"]),
    ("combination:repeat_prompt", {"prompt_to_repeat": "Write."}, "write. a", ["a Write."]),
    ("combination:two_responses", {}, "a\n******\nb", ["a", "a******a", "a******b******c", "a************b"]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "parameters", "good", "bad"), CASES)
def test_what_follows_an_instruction_is_told_from_what_does_not(
    name: str, parameters: dict[str, object], good: str, bad: list[str]
) -> None:
    one = [Instruction(name, parameters)]
    assert check_instructions(one, good) == [True]
    assert [text for text in bad if check_instructions(one, text) != [False]] == []
    assert check_instructions(one, " \n ") == [False]
    assert KINDS[name].parameter_error(parameters) == ""
    assert KINDS[name].format_text(parameters)


def test_every_kind_has_a_case_and_ifevals_are_all_known() -> None:
    assert {name for name, *_ in CASES} == set(KINDS)
    assert len(KINDS) - len({f"{F}numbered_list", JSON_SCHEMA_KIND}) == 25


@given(st.integers(0, 2**40), st.integers(1, 5))
@examples(max_examples=60, deadline=None)
def test_everything_that_is_drawn_is_followed_by_the_script_and_counts_as_solved(seed: int, most: int) -> None:
    world = Instructions(
        seed=seed, train_tasks=3, held_out_tasks=1, max_instructions=most, kinds=tuple(KINDS), reward="all"
    )
    script = world.script()
    assert script is not None
    for task in world.tasks("train"):
        assert json.loads(json.dumps(task.data)) == task.data
        chat = [{"role": "user", "content": task.prompt}]
        draft = str(script(PolicyInput(task, "drafter", 0, chat, Random(seed))))
        told = [{"role": "user", "content": f"{task.prompt}\n\nMessage from drafter:\n{draft}"}]
        text = str(script(PolicyInput(task, "editor", 0, told, Random(seed))))
        assert text == draft.strip()
        step = asyncio.run(world.start(task, 0).step(JointAction(make_action("editor", text=text))))
        assert (step.reward, step.success, step.terminated, step.info["progress"]) == (1.0, True, True, 1.0)


def test_no_two_of_a_group_are_drawn_together_and_what_stands_alone_is_alone() -> None:
    world = Instructions(train_tasks=300, held_out_tasks=1, max_instructions=5)
    for task in world.tasks("train"):
        kinds = [KINDS[one["id"]] for one in task.data["instructions"]]
        groups = [kind.group or kind.id for kind in kinds]
        assert len(set(groups)) == len(groups)
        assert len(kinds) == 1 or not any(kind.is_exclusive for kind in kinds)
    assert {one["id"] for task in world.tasks("train") for one in task.data["instructions"]} == set(GENERATED_KINDS)
    pairs = Instructions(train_tasks=40, held_out_tasks=1, min_instructions=2, max_instructions=2, max_words=9)
    assert {len(task.data["instructions"]) for task in pairs.tasks("train")} == {2}
    assert all(
        one["given"].get("num_words", 0) <= 9 for task in pairs.tasks("train") for one in task.data["instructions"]
    )


def test_a_team_is_told_every_instruction_and_their_order_makes_no_other_task() -> None:
    world = Instructions(kinds=("punctuation:no_comma", f"{F}title", "startend:quotation"), min_instructions=3)
    drawn = [world.generate_task(Random(seed)) for seed in range(200)]
    for drawing in drawn:
        asked = from_dicts(drawing.data["instructions"])
        assert drawing.prompt == " ".join(
            [f"Write about {drawing.data['topic']}.", *(one.format_text() for one in asked)]
        )
    assert (
        len({drawing.content for drawing in drawn}) == len({drawing.data["topic"] for drawing in drawn}) == len(TOPICS)
    )
    assert len({drawing.prompt for drawing in drawn}) > 3 * len(TOPICS)


def test_without_skill_the_script_forgets_something_and_an_editor_repairs_it() -> None:
    world = Instructions(train_tasks=60, held_out_tasks=1, min_instructions=2)
    weak, good = world.script(0.0), world.script(1.0)
    assert weak is not None and good is not None  # noqa: PT018  both are there
    lost = 0
    for task in world.tasks("train"):
        asked = from_dicts(task.data["instructions"])
        draft = str(weak(PolicyInput(task, "drafter", 0, [{"role": "user", "content": task.prompt}], Random(1))))
        told = [{"role": "user", "content": f"{task.prompt}\n\nMessage from drafter:\n{draft}"}]
        lost += not all(check_instructions(asked, draft))
        assert str(weak(PolicyInput(task, "editor", 0, told, Random(1)))).strip() == draft.strip()
        assert all(check_instructions(asked, str(good(PolicyInput(task, "editor", 0, told, Random(1))))))
    assert lost > 30


def test_loose_grading_reads_past_a_first_line_a_last_one_and_stars() -> None:
    one = [Instruction(f"{C}english_lowercase", {}), Instruction("startend:quotation", {})]
    text = 'Sure:\n"the sea"\nDone!'
    assert check_instructions(one, text) == [False, False]
    assert check_instructions(one, text, loose=True) == [True, True]
    assert check_instructions([Instruction("startend:quotation", {})], '*"a"*', loose=True) == [True]
    for either in ('Sure:\n"the sea"', '"the sea"\nDone!'):
        assert check_instructions(one, either, loose=True) == [True, True]
    assert check_instructions(one, "\n\n", loose=True) == [False, False]


def test_the_reward_is_the_share_or_all() -> None:
    async def reward(world: Instructions, text: str) -> float:
        task = world.tasks("train")[0]
        return (await world.start(task, 0).step(JointAction(make_action(text=text)))).reward

    kinds = ("punctuation:no_comma", f"{F}title")
    keys = {"kinds": kinds, "min_instructions": 2, "max_instructions": 2, "train_tasks": 1, "held_out_tasks": 1}
    assert asyncio.run(reward(Instructions(**keys), "a")) == 0.5
    assert asyncio.run(reward(Instructions(**keys, reward="all"), "a")) == 0.0
    nobody = asyncio.run(Instructions(**keys).start(Instructions(**keys).tasks("train")[0], 0).step(JointAction()))
    assert (nobody.reward, nobody.success) == (0.0, False)


@given(st.text(max_size=300))
@examples(max_examples=60, deadline=None)
def test_any_text_can_be_checked_by_every_kind(text: str) -> None:
    check_instructions([Instruction(name, parameters) for name, parameters, *_ in CASES], text, loose=True)


def test_words_and_sentences_are_counted_as_people_do() -> None:
    assert len(split_words("It's 3.5 well-known_things")) == 6
    texts = {
        "Mr. J. Doe, e.g. he. Then (so) he left... Why?": 3,
        "no end": 1,
        "": 0,
        "A.\nB": 1,
        "今日は。元気？": 2,
        "3.14 is pi.": 1,
        "Did he go? No. He stayed at home.": 3,
        "You and I. We went with vitamin C. It helps.": 3,
        "We met at 5 p.m. Then we ate apples, pears, etc. It was good.": 3,
        "No. 5 is J. A. Smith's, of Co. Smith, etc. and Mrs. It.": 1,
        "Ask Dr. He. P.S. I ask, too.": 2,
    }
    assert {text: len(split_sentences(text)) for text in texts} == texts
    assert [satisfies_relation(2, relation, 2) for relation in ("at least", "less than", "exactly")] == [
        True,
        False,
        True,
    ]


def test_languages_are_told_apart() -> None:
    for language, sample in SAMPLE_TEXTS.items():
        assert [other for other in SAMPLE_TEXTS if may_be_language(sample, other)] == [language]
    assert not may_be_language("zzz " * 12, "en")
    assert may_be_language("sea salt", "en")
    assert may_be_language("123", "th")
    assert may_be_language("สวัสดีครับ", "th")
    assert not may_be_language("สวัสดีครับ", "ko")


ROW = {"key": 1, "prompt": "Write.", "instruction_id_list": ["punctuation:no_comma", f"{L}number_words"], "kwargs": [{}, {"num_words": 3, "relation": "at least", "num_bullets": None}]}  # fmt: skip


def rows(folder: Path, *found: dict[str, object], **keys: object) -> Instructions:
    (folder / "input.jsonl").write_text("".join(json.dumps(row) + "\n" for row in found))
    return Instructions(path=str(folder / "input.jsonl"), **keys)


def everything(world: Instructions) -> list[str]:
    return [task.id for split in ("train", "validation", "test") for task in world.tasks(split)]  # type: ignore[arg-type]


def test_ifevals_own_file_is_read_and_graded(tmp_path: Path) -> None:
    world = rows(tmp_path, ROW, {**ROW, "prompt": "Other.", "kwargs": json.dumps(ROW["kwargs"])}, ROW)
    assert sorted(everything(world)) == ["input/1", "input/1#1"]
    task = next(task for split in ("train", "validation", "test") for task in world.tasks(split))  # type: ignore[arg-type]
    step = asyncio.run(world.start(task, 0).step(JointAction(make_action(text="a, b c"))))
    assert (step.reward, step.success) == (0.5, False)
    assert world.script() is None


def test_rows_beside_a_test_of_its_own_are_all_trained_on_or_validated_with(tmp_path: Path) -> None:
    (tmp_path / "own.jsonl").write_text("".join(json.dumps({**ROW, "prompt": f"{n}"}) + "\n" for n in range(35, 45)))
    keys = {"test_path": str(tmp_path / "own.jsonl")}
    found = [{**ROW, "prompt": f"{n}"} for n in range(40)]
    world, alone = rows(tmp_path, *found, **keys), rows(tmp_path, *found)
    prompts = {split: {task.prompt for task in world.tasks(split)} for split in ("train", "validation", "test")}  # type: ignore[arg-type]
    assert prompts["test"] == {str(n) for n in range(35, 45)}
    assert sorted(map(int, prompts["train"] | prompts["validation"])) == list(range(35))
    assert {task.prompt for task in alone.tasks("test")} - prompts["test"] <= prompts["train"]
    other = rows(tmp_path, {**ROW, "prompt": " 35"}, *found, **keys)
    assert " 35" not in {task.prompt for split in ("train", "validation") for task in other.tasks(split)}  # type: ignore[arg-type]
    few = rows(tmp_path, *found, **keys, limit=2)
    assert [task.prompt for task in few.tasks("test")] == ["35", "36"]
    assert [len(few.tasks(split)) for split in ("train", "test")] == [2, 2]  # type: ignore[arg-type]


def test_what_is_drawn_may_be_tested_on_a_file_and_shares_nothing_with_it(tmp_path: Path) -> None:
    alone = Instructions(train_tasks=20, held_out_tasks=5)
    known = alone.tasks("train")[0].prompt
    path = rows(tmp_path, ROW, {**ROW, "key": 2, "prompt": f" {known}"}).path
    world = Instructions(train_tasks=20, held_out_tasks=5, test_path=path)
    assert [task.id for task in world.tasks("test")] == ["input/1", "input/2"]
    assert [len(world.tasks(split)) for split in ("train", "validation")] == [20, 5]  # type: ignore[arg-type]
    assert world.tasks("train")[0].id == alone.tasks("train")[1].id
    assert known not in {task.prompt for task in world.tasks("train")}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"instruction_id_list": ["punctuation:no_comas", f"{L}number_words"]}, "did you mean 'punctuation:no_comma'"),
        ({"kwargs": [{}, {"num_words": 3}]}, "lacks relation"), ({"kwargs": [{}, {"num_words": "3", "relation": "at least"}]}, "no count"),
        ({"kwargs": [{}, {"num_words": 3, "relation": "about"}]}, "not one of at least"),
        ({"kwargs": [{}, {"num_words": True, "relation": "at least"}]}, "no count"), ({"kwargs": [{}, {"num_words": -1, "relation": "at least"}]}, "no count"),
        ({"instruction_id_list": ["language:response_language"], "kwargs": [{"language": "tlh"}]}, "is in 'tlh', which nobody tells"),
    ],
)  # fmt: skip
def test_rows_that_ask_for_what_is_not_known_are_refused_or_left_out(
    change: dict[str, object], words: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        everything(rows(tmp_path, {**ROW, **change}))
    assert "input.jsonl, line 1" in str(caught.value)
    assert everything(rows(tmp_path, {**ROW, **change}, {**ROW, "prompt": "b"}, unknown="skip")) == ["input/1"]


def test_damaged_rows_and_settings_that_cannot_be_meant_are_refused(tmp_path: Path) -> None:
    for change in ({"kwargs": [{}]}, {"kwargs": "{"}, {"kwargs": 3}, {"kwargs": [1, 2]}, {"instruction_id_list": []}):
        with pytest.raises(ValueError, match=r"input\.jsonl, line 1"):
            everything(rows(tmp_path, {**ROW, **change}))
    with pytest.raises(ValidationError, match="did you mean"):
        Instructions(kinds=("keywords:existance",))
    with pytest.raises(ValidationError, match="min_instructions"):
        Instructions(kinds=("punctuation:no_comma",), min_instructions=2)
