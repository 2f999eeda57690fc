"""A chat that a client brings: what it goes on from and why not, what it depends on, how it is sampled."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from marft.agents.chat import ChatRefusedError
from marft.agents.conversation import Node
from marft.common.errors import EpisodeFailedError
from marft.common.types import ActionKey, Completion, Episode, Observation
from marft.config.interfaces.organization import Agents
from marft.inference.chat_messages import ChatFormat
from marft.inference.renderer import ChatRenderer
from tests.chatting import ADD, SEEK, Parrot, Said, Stopping, asked, talked
from tests.marft_serve.test_gateway_tokens import CALL, format_named, starts

SYSTEM = {"role": "system", "content": "Be brief."}
Talk = Callable[[Observation, Agents], Awaitable[object]]


BAD = {
    "type": "function",
    "function": {"name": "bad", "parameters": {"type": "object", "properties": {"a": {"not": {}}}}},
}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def scripted(*texts: str) -> Callable[[ActionKey], Said]:
    left = iter(texts)
    return lambda _: Said([next(left)])


def played(talk: Talk, *texts: str, format: str = "hermes", **options: Any) -> tuple[Episode, Parrot]:
    return talked(format_named(format), scripted(*texts), talk, **options)


class TestWhatItGoesOnFrom:
    def test_a_conversation_goes_on_by_the_ids_of_its_last_turn(self) -> None:
        async def talk(_: Observation, agents: Agents) -> None:
            first, _ = await asked(agents.a, [SYSTEM, user("1 + 2?")])
            await asked(agents.a, [SYSTEM, user("1 + 2?"), first, user("Sure?")])

        episode, _ = played(talk, "It is 3.", "Yes.")
        one, other = episode.actions
        assert starts(other, one)
        assert (other.continues, other.sees, other.restarted) == ((one.id,), (one.id,), "")

    def test_the_answers_of_tools_are_appended_to_the_turn_that_called_them(self) -> None:
        async def talk(_: Observation, agents: Agents) -> None:
            said, reply = await asked(agents.a, [user("1 + 2?")], tools=[ADD])
            assert [call["function"] for call in said["tool_calls"]] == [
                {"name": "add", "arguments": '{"a": 2}'}, {"name": "add", "arguments": '{"a": 3}'},
            ]  # fmt: skip
            assert said["content"] == "I add."
            assert [call.name for call in reply.calls] == ["add", "add"]
            answers = [{"role": "tool", "tool_call_id": call["id"], "content": "7"} for call in said["tool_calls"]]
            await asked(agents.a, [user("1 + 2?"), said, *answers[::-1]], tools=[ADD])

        episode, _ = played(talk, f"I add.\n{CALL % 2}\n{CALL % 3}", "It is 7.")
        one, other = episode.actions
        assert starts(other, one)
        assert other.restarted == ""
        tail = str(format_named("hermes").tokenizer.decode(other.prompt[len(one.prompt) + len(one.tokens) :].tolist()))
        assert tail.count("<tool_response>\n7\n</tool_response>") == 2

    @pytest.mark.parametrize(("template", "stops"), [("hermes", True), ("list", False)])
    def test_where_one_call_a_turn_is_wanted_it_ends_there_or_the_first_is_told(
        self, template: str, stops: bool
    ) -> None:  # fmt: skip
        """A list of calls has no mark after each: it comes to its end, and what was told of it begins a segment."""
        calls = [{"name": "add", "arguments": {"a": number}} for number in (2, 3)]
        text = f"[TOOL_CALLS] {json.dumps(calls)}" if template == "list" else f"I add.\n{CALL % 2}\n{CALL % 3}"

        async def talk(observation: Observation, agents: Agents) -> None:
            offered: Any = {"tools": [ADD], "parallel_tool_calls": False}
            message, reply = await asked(agents.a, [user("1 + 2?")], **offered)
            assert [call["function"]["arguments"] for call in message["tool_calls"]] == ['{"a": 2}']
            assert len(reply.calls) == len(reply.action.calls) == 1
            answer = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "2"}
            await asked(agents.a, [user("1 + 2?"), message, answer], **offered)

        episode, engine = talked(format_named(template), scripted(text, "2."), talk, speaker=Stopping)
        assert (episode.status, episode.error) == ("terminated", "")
        first, second = episode.actions
        sampled = engine.format.tokenizer.decode(first.tokens.tolist())
        assert engine.sampled[first.key][2].stop == (("</tool_call>",) if stops else ())
        assert sampled.endswith("</tool_call>" if stops else "<|im_end|>")
        assert sampled.count('"add"') == (1 if stops else 2)
        assert first.sampled_mask.all()
        if stops:
            assert second.continues == (first.id,)
            assert starts(second, first)
        assert second.restarted == ("" if stops else "template: of its calls the first alone was told")

    def test_a_call_in_a_thought_is_not_made_and_does_not_end_the_turn(self) -> None:
        thought = f"<think>\nMaybe {CALL % 2}?\n</think>"

        async def talk(_: Observation, agents: Agents) -> None:
            for once in (True, False):
                said, reply = await asked(agents.a, [user("1 + 2?")], tools=[ADD], parallel_tool_calls=not once)
                assert [call["function"]["arguments"] for call in said["tool_calls"]] == ['{"a": 3}', '{"a": 4}'][
                    : 2 - once
                ]
                assert said["content"] == f"{thought}\n\nI add."
                assert len(reply.action.calls) == 2 - once

        text = f"{thought}\n\nI add.\n{CALL % 3}\n{CALL % 4}"
        episode, engine = played(talk, text, text, format="qwen3", speaker=Stopping)
        assert (episode.status, episode.error) == ("terminated", "")
        first, second = (engine.format.tokenizer.decode(action.tokens.tolist()) for action in episode.actions)
        assert first == text.removesuffix(f"\n{CALL % 4}")
        assert second.startswith(text)

    def test_calls_are_not_looked_for_where_the_client_wants_none(self) -> None:
        async def talk(_: Observation, agents: Agents) -> None:
            said, reply = await asked(agents.a, [user("1 + 2?")], tools=[ADD], tool_choice="none")
            assert (said["content"], "tool_calls" in said, reply.calls) == (CALL % 2, False, ())

        played(talk, CALL % 2)

    @pytest.mark.parametrize(
        ("change", "why", "kept"),
        [
            (lambda m: [*m[:2], {**m[2], "content": "It is 4."}, *m[3:]], "edited", 0),
            (lambda m: [*m[:4], {**m[4], "content": "No."}, *m[5:]], "edited", 1),
            (lambda m: [m[0], *m[3:]], "trimmed", 0),
            (lambda m: [m[0], user("Earlier, we said that it is 3."), *m[3:]], "trimmed", 0),
            (lambda m: [m[0], m[3], m[4], m[1], m[2], *m[5:]], "trimmed", 0),
            (lambda m: [*m[:3], {"role": "assistant", "content": "Well."}, *m[3:]], "edited", 1),
            (lambda m: [m[0], *m[5:]], "", 0),
        ],
    )
    def test_a_changed_history_begins_a_segment_where_it_still_agrees_and_says_why(
        self, change: Callable[[list[Any]], list[Any]], why: str, kept: int
    ) -> None:
        async def talk(_: Observation, agents: Agents) -> None:
            messages = [SYSTEM, user("1 + 2?")]
            for question in ("Sure?", "Really?"):
                said, _reply = await asked(agents.a, messages)
                messages += [{"role": "assistant", "content": said["content"]}, user(question)]
            await asked(agents.a, change(messages))

        episode, _ = played(talk, "It is 3.", "Yes.", "Quite.")
        last = episode.actions[2]
        assert last.restarted.partition(":")[0] == why
        assert last.continues == tuple(action.id for action in episode.actions[:kept])
        if kept:
            assert starts(last, episode.actions[kept - 1])

    def test_other_tools_begin_another_segment(self) -> None:
        async def talk(_: Observation, agents: Agents) -> None:
            said, _reply = await asked(agents.a, [user("1 + 2?")], tools=[ADD])
            await asked(agents.a, [user("1 + 2?"), said, user("Sure?")], tools=[ADD, SEEK])

        episode, _ = played(talk, "It is 3.", "Yes.")
        assert episode.actions[1].restarted.startswith("tools: ")

    def test_a_template_that_rewrites_turns_is_named_as_the_reason(self) -> None:
        async def talk(_: Observation, agents: Agents) -> None:
            said, _reply = await asked(agents.a, [user("1 + 2?")])
            await asked(agents.a, [user("1 + 2?"), said, user("Sure?")])

        episode, _ = played(talk, "It is 3.", "Yes.", format="rewrites")
        assert episode.actions[1].restarted.startswith("template: its chat template ")

    def test_equal_questions_are_actions_of_their_own_of_which_any_can_be_gone_on_from(self) -> None:
        async def talk(_: Observation, agents: Agents) -> None:
            drafts = await asyncio.gather(*(asked(agents.a, [user("1 + 2?")]) for _ in range(3)))
            said = [message for message, _reply in drafts]
            assert [message["content"] for message in said] == ["3", "4", "5"]
            await asked(agents.a, [user("1 + 2?"), said[1], user("Sure?")])

        episode, engine = played(talk, "3", "4", "5", "Yes.")
        assert len(engine.sampled) == len(episode.actions) == 4
        assert episode.actions[3].continues == (episode.actions[1].id,)
        assert starts(episode.actions[3], episode.actions[1])

    def test_a_thought_that_is_dropped_is_told_apart_and_is_not_gone_on_from(self) -> None:
        async def talk(_: Observation, agents: Agents) -> None:
            said, _reply = await asked(agents.a, [user("1 + 2?")])
            assert (said["content"], said["reasoning_content"]) == ("It is 3.", "<think>\nHm.\n</think>\n\n")
            await asked(agents.a, [user("1 + 2?"), {"role": "assistant", "content": "It is 3."}, user("Sure?")])

        episode, _ = played(talk, "<think>\nHm.\n</think>\n\nIt is 3.", "Yes.", thinking="drop")
        assert episode.actions[1].restarted == "template: its thoughts were dropped"


class TestWhatItDependsOn:
    def seen(self, question: str, **fields: Any) -> list[str]:
        """What the second agent depends on, asked after the first one has said that it is 42."""

        async def talk(_: Observation, agents: Agents) -> None:
            await asked(agents.a, [user("1 + 2?")])
            await asked(agents.a, [user("And now?")])
            await asked(agents.b, [SYSTEM, user(question)], **fields)

        episode, _ = talked(format_named("hermes"), scripted("42", "", "Yes."), talk, "a", "b")
        assert episode.status == "terminated", episode.error
        return list(episode.actions[2].sees)

    def test_it_is_what_the_messages_hold_word_for_word(self) -> None:
        assert self.seen("Somebody said:\n42\nSure?") == ["0/a/0"]
        assert self.seen("Somebody said: 142. Or 42nd? Or 420?") == []
        assert self.seen("Sure?") == []  # an empty text is held by none

    def test_words_that_stand_in_the_task_are_nobodys(self) -> None:
        async def talk(_: Observation, agents: Agents) -> None:
            task = "Is it so? Say yes or no."
            await asked(agents.a, [user(task)], shown=task)
            for text in (task, f"Question: {task} Hm.", f"{task}\n\nOne says: yes", "yes"):
                await asked(agents.b, [{"role": "system", "content": "You are b."}, user(text)], shown=task)

        episode, _ = talked(format_named("hermes"), scripted("yes", "1", "2", "3", "4"), talk, "a", "b")
        assert [action.sees for action in episode.actions[1:]] == [(), (), ("0/a/0",), ("0/a/0",)]

    def test_what_was_said_beside_a_call_is_what_the_client_was_told(self) -> None:
        async def talk(_: Observation, agents: Agents) -> None:
            said, _reply = await asked(agents.a, [user("1 + 2?")], tools=[ADD])
            await asked(agents.b, [user(f"They say: {said['content']} Sure?")])

        episode, _ = talked(format_named("hermes"), scripted(f"I add.\n{CALL % 2}", "Yes."), talk, "a", "b")
        assert episode.actions[1].sees == ("0/a/0",)

    def test_what_was_asked_for_at_once_does_not_depend_on_each_other(self) -> None:
        async def talk(_: Observation, agents: Agents) -> None:
            await asyncio.gather(asked(agents.a, [user("Say 3.")]), asked(agents.b, [user("3")]))

        episode, _ = talked(format_named("hermes"), scripted("3", "3"), talk, "a", "b")
        assert [action.sees for action in episode.actions] == [(), ()]

    def test_how_much_is_read_of_each_is_counted(self) -> None:
        async def talk(_: Observation, agents: Agents) -> None:
            first, _ = await asked(agents.a, [user("1 + 2?")])
            second, _ = await asked(agents.b, [user(f"{first['content']} Sure?")])
            await asked(agents.b, [user(f"{first['content']} Sure?"), second, user("Really?")])

        episode, _ = talked(format_named("hermes"), scripted("It is 3.", "Yes.", "Quite."), talk, "a", "b")
        count = len(format_named("hermes").tokenizer.encode("It is 3."))
        assert [action.sees for action in episode.actions] == [(), ("0/a/0",), ("0/a/0", "0/b/0")]
        assert [action.message_tokens for action in episode.actions] == [(), (count,), (0, 0)]

    def test_a_critic_reads_what_was_not_seen_too(self) -> None:
        async def talk(_: Observation, agents: Agents) -> None:
            await asked(agents.a, [user("1 + 2?")])
            await asked(agents.b, [user("Sure?")])

        episode, _ = talked(format_named("hermes"), scripted("It is 3.", "Yes."), talk, "a", "b", critic=True)
        state = episode.actions[1].state
        assert state is not None
        text = str(format_named("hermes").tokenizer.decode(state.tolist()))
        assert "Sure?" in text
        assert "Message from a:\nIt is 3." in text


class TestHowItIsSampled:
    def test_limits_and_stops_are_the_narrower_ones_and_the_rest_is_the_recipes(self) -> None:
        async def talk(_: Observation, agents: Agents) -> None:
            ask = [user("1 + 2?")]
            await asked(agents.a, ask, max_tokens=7, stop=["!"], temperature=0.2, top_p=0.5, seed=3)
            await asked(agents.a, ask, max_completion_tokens=500)

        episode, engine = played(talk, "It is 3.", "It is 3.")
        one, other = (engine.sampled[action.key][2] for action in episode.actions)
        assert (one.max_new_tokens, one.stop, one.temperature, one.top_p) == (7, ("!",), 1.0, 1.0)
        assert other.max_new_tokens == 200
        assert episode.actions[0].wishes == '{"seed": 3, "temperature": 0.2, "top_p": 0.5}'
        assert episode.actions[1].wishes == ""

    def test_a_prompt_leaves_what_room_there_is_and_one_that_leaves_none_is_refused(self) -> None:
        format: ChatFormat = replace(format_named("hermes"), context=60)
        refused: list[ChatRefusedError] = []

        async def talk(_: Observation, agents: Agents) -> None:
            await asked(agents.a, [user("1 + 2?")])
            for text in ("1 + " * 60, "1 + " * 60_000):
                with pytest.raises(ChatRefusedError, match="maximum context length is 60 tokens") as caught:
                    await asked(agents.a, [user(text)])
                refused.append(caught.value)
            await asked(agents.a, [user("1 + 2?")])

        episode, engine = talked(format, scripted("It is 3.", "It is 3."), talk)
        assert [error.reason for error in refused] == ["too_long", "too_long"]
        room = 60 - len(episode.actions[0].prompt)
        assert engine.sampled[episode.actions[0].key][2].max_new_tokens == room
        assert [action.id for action in episode.actions] == ["0/a/0", "0/a/1"]  # what was refused was no action
        assert episode.status == "terminated"

    @pytest.mark.parametrize(
        "fields",
        [
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"not": {}}}}},
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "thing"}}}},
            {"tools": [BAD], "tool_choice": "required"},
        ],
    )
    def test_an_answer_of_a_form_that_cannot_be_held_is_refused_in_words(self, fields: dict[str, Any]) -> None:
        pytest.importorskip("llguidance", reason="needs grammars: pip install 'marft[grammar]'")

        async def talk(_: Observation, agents: Agents) -> None:
            with pytest.raises(ChatRefusedError, match="no answer can have the form") as caught:
                await asked(agents.a, [user("1 + 2?")], **fields)
            assert caught.value.reason == "unsupported"

        assert played(talk)[0].status == "terminated"

    def test_a_token_that_no_client_reads_has_its_piece(self) -> None:
        async def talk(_: Observation, agents: Agents) -> None:
            _, reply = await asked(agents.a, [user("1 + 2?")], logprobs=True)
            assert "".join(reply.pieces) == "It is 3.<|im_end|>"
            assert len(reply.pieces) == len(reply.action.tokens)

        assert played(talk, "It is 3.")[0].status == "terminated"


def test_a_conversation_may_be_longer_than_the_stack_is_deep() -> None:
    node = Node(None, (user("0"),), (empty := np.empty(0, np.int32)), empty)
    for number in range(1, 3000):
        node = Node(node, (user(str(number)),), empty, empty)
    assert [message["content"] for message in node.conversation] == [str(number) for number in range(3000)]


@pytest.mark.parametrize("broken", ["tool_call_messages", "tokenize_prompt", "sample"])
def test_an_action_that_goes_wrong_fails_the_episode_whoever_catches_it(
    broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def talk(_: Observation, agents: Agents) -> None:
        with pytest.raises((RuntimeError, EpisodeFailedError)):
            await asked(agents.a, [user("1 + 2?")], tools=[ADD])

    def breaks(*_: object) -> None:
        raise RuntimeError("it broke")

    async def infinite(self: Parrot, *_: object) -> Completion:
        return Completion(np.array([5, 6], np.int32), np.array([-1.0, -np.inf], np.float32), "a", "length")

    owner, put = (Parrot, infinite) if broken == "sample" else (ChatRenderer, breaks)
    monkeypatch.setattr(owner, broken, put)
    episode, _ = played(talk, CALL % 2)
    assert (episode.status, episode.actions) == ("failed", ()), episode
    assert ("log-prob" if broken == "sample" else "it broke") in episode.error


def test_ids_are_those_of_the_engine() -> None:
    async def talk(_: Observation, agents: Agents) -> None:
        await asked(agents.a, [user("1 + 2?")])

    episode, engine = talked(format_named("hermes"), lambda _: Said(["I", "t ", "is 3."]), talk)
    (action,) = episode.actions
    assert np.array_equal(action.tokens, engine.sampled[action.key][1])
    assert len(action.tokens) > len(format_named("hermes").tokenizer.encode("It is 3.")) or action.tokens[-1] == 2
