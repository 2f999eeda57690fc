"""Channels: what agents pass on to each other, what it costs, and that D records what was read."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marft.agents.channels import Last, Record, Truncated
from marft.agents.game import Attempt
from marft.agents.play import play
from marft.agents.prompt_messages import build_messages, format_message, split_messages
from marft.common.types import AgentProfile, Episode, Task
from marft.config import parse_recipe
from marft.config.interfaces.channel import Message
from marft.evaluation.episode_metrics import episode_metrics
from marft.runs.run_folder import RunFolder
from marft.trainer.train import train
from tests.fakes import FakeEngine, Script, ends, game
from tests.helpers import recipe, settings

STEP = Record(fields={"result": r"= (-?\d+)", "state": r"leaving (.+)\."})


def played(channel: Any, *said: str) -> tuple[Episode, list[str]]:
    """A chain of agents a, b, …: what each says, and the prompts that they read."""
    roles = "abcdef"[: len(said)]
    engine = FakeEngine(lambda key, _: said[roles.index(key.agent)])
    whole = game(Script([ends()]), *roles, engine=engine)
    whole = replace(whole, team=replace(whole.team, channel=channel))
    episode = asyncio.run(play(whole, Attempt(Task("t0", "begin"), "train/0")))
    assert episode.status == "terminated", episode.error
    return episode, [text for _, text in engine.asked]


def test_messages_can_be_read_back_from_a_prompt() -> None:
    messages = [Message("a", "Add.\n\nThen stop."), Message("b_2", "")]
    prompt = build_messages(AgentProfile("c", "Act."), "2 + 3 =", messages)[1]["content"]
    assert split_messages(prompt) == ("2 + 3 =", messages)
    assert split_messages(format_message(messages[0])) == ("", messages[:1])
    assert split_messages("A Message from a:\nno") == ("A Message from a:\nno", [])
    advised = build_messages(AgentProfile("c", guidance="Be brief."), "?", messages[:1])[0]["content"]
    assert split_messages(advised) == ("?", [Message("a", "Add.\n\nThen stop.\n\nBe brief.")])


def test_a_record_replaces_prose() -> None:
    episode, prompts = played(STEP, "I add them: 23 + 45 = 68, leaving 68 - 12.", "done")
    assert "Message from a:\\nresult: 68; state: 68 - 12" in prompts[1]
    assert "I add them" not in prompts[1]
    assert episode.actions[1].sees == ("0/a/0",)
    assert episode.actions[0].text.startswith("I add them")  # the action itself is untouched


def test_a_record_reads_as_its_template_says() -> None:
    record = Record(fields={"state": r"leaving (.+)\.", "result": r"= (-?\d+)"}, template="{{{result}}}: do {state}.")
    _, prompts = played(record, "I add them: 23 + 45 = 68, leaving 68 - 12.", "done")
    assert "Message from a:\\n{68}: do 68 - 12." in prompts[1]
    _, prompts = played(record, "23 + 45 = 68.", "done")  # it leaves nothing to do: no record
    assert "Message from a:\\n23 + 45 = 68." in prompts[1]


def test_what_a_model_writes_is_never_a_template() -> None:
    record = Record(fields={"x": r"x = (.+)"}, template="<{x}>")
    assert record.transform([Message("a", "x = {x!r:>9} {0}")]) == [Message("a", "<{x!r:>9} {0}>")]


def test_text_without_any_field_goes_on_raw_or_not_at_all() -> None:
    _, prompts = played(STEP, "no idea", "done")
    assert "no idea" in prompts[1]
    silent, prompts = played(STEP.model_copy(update={"fallback": "none"}), "no idea", "done")
    assert "Message from a" not in prompts[1]
    assert silent.actions[1].sees == ()


def test_the_last_message_is_all_that_was_seen() -> None:
    episode, prompts = played(Last(), "one", "two", "three")
    assert episode.actions[2].sees == ("0/b/0",)
    assert "one" not in prompts[2]
    assert "two" in prompts[2]


@pytest.mark.parametrize(("keep", "expected"), [("start", "a b …"), ("end", "… c d")])
def test_long_messages_are_cut(keep: Any, expected: str) -> None:
    _, prompts = played(Truncated(max_words=2, keep=keep), "a b c d", "done")
    assert f"Message from a:\\n{expected}" in prompts[1]
    assert "Message from a:\\nx y" in played(Truncated(max_words=2), "x y", "done")[1][1]


@pytest.mark.slow
@given(texts=st.lists(st.text(max_size=40), max_size=4))
def test_channels_take_anything_that_models_write(texts: list[str]) -> None:
    messages = [Message("a", text) for text in texts]
    for channel in (
        STEP,
        Last(),
        Truncated(max_words=3),
        Record(fields={"x": "(a)|b"}, fallback="none", template="{x}"),
    ):
        carried = channel.transform(messages)
        assert len(carried) == len(messages)
        assert all(message is None or message.role == "a" for message in carried)


def test_what_others_read_is_counted_and_priced_for_its_author() -> None:
    episode, _ = played(Record(fields={"n": r"\d+"}), "number 7", "it is 8", "done")
    assert [a.message_tokens for a in episode.actions] == [(), (4,), (4, 4)]  # "n: 7" is 4 long
    metrics = episode_metrics([episode], ("a", "b", "c"), lambda _: 0)
    assert metrics["message_tokens"] == 12
    assert [metrics[f"agents/{role}/message_tokens"] for role in "abc"] == [8, 4, 0]


def test_a_team_trains_over_a_channel_with_a_price(tmp_path: Path) -> None:
    run = settings(
        "tiny", tmp_path, "--channel", "{ name = 'truncated', max_words = 2 }",
        "--rewards", "[{ name = 'outcome' }, { name = 'message_tokens', weight = 0.001 }]",
    )  # fmt: skip
    folder = RunFolder.create(run)
    assert train(run, folder).step == 2
    metrics = folder.read_metrics()[0]
    assert metrics["agents/reasoner/message_tokens"] > 0
    assert metrics["agents/reasoner/own_reward"] == pytest.approx(-0.001 * metrics["agents/reasoner/message_tokens"])


@pytest.mark.parametrize(
    ("channel", "complaint"),
    [
        ("{ name = 'recrod' }", "did you mean 'record'?"),
        ("{ name = 'record', fields = { } }", "needs at least one field"),
        ("{ name = 'record', fields = { x = '(' } }", "is no regular expression"),
        ("{ name = 'record', fields = { state = 'a' }, template = '{stat}' }", "did you mean 'state'?"),
        ("{ name = 'record', fields = { x = 'a', y = 'b' }, template = '{x}' }", "leaves out the field 'y'"),
        ("{ name = 'record', fields = { x = 'a' }, template = 'x' }", "leaves out the field 'x'"),
        ("{ name = 'record', fields = { x = 'a' }, template = '{x:>3}' }", "a field is named alone"),
        ("{ name = 'record', fields = { x = 'a' }, template = '{x' }", "template: expected '}' before end of string"),
    ],
)
def test_channels_that_cannot_work_are_refused(channel: str, complaint: str) -> None:
    with pytest.raises(ValueError, match="recipe:") as caught:
        parse_recipe(recipe(), ["--channel", channel])
    assert complaint in str(caught.value)
