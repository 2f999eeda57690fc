"""A client's turns reach the model as the client means them: tools' answers, texts in parts, stops, turns it begins."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from marft.agents.chat import ChatRefusedError, Reply
from marft.agents.streaming import ActionStart
from marft.common.types import Action, Observation
from marft.config.interfaces.organization import Agents
from marft.inference.chat_messages import render_text
from marft.inference.renderer import ChatRenderer
from marft_serve.gateway.errors import RequestError
from marft_serve.gateway.protocol.anthropic import Messages
from marft_serve.gateway.protocol.base import ParsedRequest, Protocol, get_reply_text
from marft_serve.gateway.protocol.chat_completions import ChatCompletions
from marft_serve.gateway.protocol.responses import Responses
from marft_serve.traces.messages import parse_text
from tests.chatting import ADD, Said, Stopping, asked, talked
from tests.marft_serve.test_gateway_chats import scripted, user
from tests.marft_serve.test_gateway_tokens import CALL, format_named, starts

PROTOCOLS: list[Protocol] = [ChatCompletions(), Responses(), Messages()]
TOLD: dict[str, Any] = {"model": "any", "marft": {}}


def read(protocol: Protocol, **fields: Any) -> ParsedRequest:
    more = {"max_tokens": 50} if isinstance(protocol, Messages) else {}
    return protocol.parse_request(json.dumps({**more, **fields}).encode())


def history(protocol: Protocol, calls: Sequence[str], answers: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """A turn that makes calls of these ids, and answers by id."""
    if isinstance(protocol, Messages):
        uses = [{"type": "tool_use", "id": c, "name": f"tool-{c}", "input": {}} for c in calls]
        results = [{"type": "tool_result", "tool_use_id": c, "content": text} for c, text in answers]
        return {"messages": [user("?"), {"role": "assistant", "content": uses}, {"role": "user", "content": results}]}
    if isinstance(protocol, Responses):
        made = [{"type": "function_call", "call_id": c, "name": f"tool-{c}", "arguments": "{}"} for c in calls]
        outputs = [{"type": "function_call_output", "call_id": c, "output": text} for c, text in answers]
        return {"input": [user("?"), *made, *outputs]}
    turn = {"role": "assistant", "tool_calls": [
        {"id": c, "type": "function", "function": {"name": f"tool-{c}", "arguments": "{}"}} for c in calls
    ]}  # fmt: skip
    tools = [{"role": "tool", "tool_call_id": c, "content": text} for c, text in answers]
    return {"messages": [user("?"), turn, *tools]}


@pytest.mark.parametrize("protocol", PROTOCOLS)
class TestAnswersOfTools:
    def test_in_any_order_they_stand_in_the_order_of_the_calls(self, protocol: Protocol) -> None:
        calls = ["x", "y", "z"]
        for order in itertools.permutations(calls):
            chat = read(protocol, **history(protocol, calls, [(c, f"of {c}") for c in order])).chat.messages
            shown = [(message["name"], message["content"]) for message in chat if message["role"] == "tool"]
            assert shown == [("tool-x", "of x"), ("tool-y", "of y"), ("tool-z", "of z")]

    @pytest.mark.parametrize(
        ("calls", "answers", "why"),
        [
            ("xy", "x", "have no answer right after it, and others have: y"),
            ("xy", "xyx", "'x' has two answers"),
            ("xy", "xyw", "'w' belongs to no call"),
            ("xx", "x", "the same id"),
        ],
    )
    def test_what_cannot_be_matched_is_refused_in_words(
        self, protocol: Protocol, calls: str, answers: str, why: str
    ) -> None:
        with pytest.raises(RequestError, match=why) as refused:
            read(protocol, **history(protocol, list(calls), [(c, "7") for c in answers]))
        assert refused.value.status == 400


def test_each_answer_is_shown_to_the_model_after_the_call_that_it_belongs_to() -> None:
    async def talk(_: Observation, agents: Agents) -> None:
        said, _reply = await asked(agents.a, [user("1 + 2?")], tools=[ADD])
        first, second = (call["id"] for call in said["tool_calls"])
        answers = [{"role": "tool", "tool_call_id": i, "content": f"of {i}"} for i in (second, first)]
        await asked(agents.a, [user("1 + 2?"), said, *answers], tools=[ADD])

    episode, engine = talked(format_named("hermes"), scripted(f"{CALL % 2}\n{CALL % 3}", "7."), talk)
    assert starts(episode.actions[1], episode.actions[0])
    shown = engine.format.tokenizer.decode(episode.actions[1].prompt.tolist())
    assert shown.index("of call_00000000") < shown.index("of call_00000001")


class TestTextsInParts:
    PARTS = ("Is it 3?", "Or 4?")

    def parts(self, kind: str = "text") -> list[dict[str, str]]:
        return [{"type": kind, "text": text} for text in self.PARTS]

    @pytest.mark.parametrize("role", ["system", "developer", "user", "assistant"])
    def test_a_line_break_stands_between_them(self, role: str) -> None:
        for protocol, field in ((ChatCompletions(), "messages"), (Responses(), "input")):
            chat = read(protocol, **{field: [{"role": role, "content": self.parts()}, user("?")]}).chat
            assert chat.messages[0]["content"] == "Is it 3?\nOr 4?"
        assert parse_text(self.parts()) == "Is it 3?\nOr 4?"  # in recorded conversations too

    def test_so_it_is_in_all_places_of_anthropics_and_in_answers_of_tools(self) -> None:
        use = {"type": "tool_use", "id": "x", "name": "add", "input": {}}
        result = {"type": "tool_result", "tool_use_id": "x", "content": self.parts()}
        messages = [
            {"role": "user", "content": self.parts()},
            {"role": "assistant", "content": [*self.parts(), use]},
            {"role": "user", "content": [*self.parts(), result]},
        ]
        chat = read(Messages(), system=self.parts(), messages=messages).chat
        assert [message["role"] for message in chat.messages] == ["system", "user", "assistant", "tool", "user"]
        assert {message["content"] for message in chat.messages} == {"Is it 3?\nOr 4?"}
        for protocol in (ChatCompletions(), Responses()):
            fields: Any = history(protocol, ["x"], [("x", "")])
            (items,) = fields.values()
            items[-1]["output" if "output" in items[-1] else "content"] = self.parts()
            assert read(protocol, **fields).chat.messages[-1]["content"] == "Is it 3?\nOr 4?"


def stopped(
    pieces: Sequence[str], stop: Sequence[str], format: str = "hermes", **fields: Any
) -> tuple[list[Action], Reply, str, str]:
    """A turn that a stop string ends, and one more → the actions, the first reply, the second prompt as it was sampled
    from, and as the template shows what the client sends."""
    replies = list[Reply]()

    async def talk(_: Observation, agents: Agents) -> None:
        said, reply = await asked(agents.a, [user("1 + 2?")], stop=stop, **fields)
        replies.append(reply)
        answers = [{"role": "tool", "tool_call_id": call["id"], "content": "7"} for call in said.get("tool_calls", ())]
        await asked(agents.a, [user("1 + 2?"), said, *answers, user("Sure?")], **fields)

    turns = iter([Said(pieces), Said(["Yes."])])
    episode, engine = talked(format_named(format), lambda _: next(turns), talk, speaker=Stopping)
    assert (episode.status, episode.error) == ("terminated", "")
    prompt = engine.sampled[episode.actions[1].key][0]
    shown = render_text(engine.format, prompt.chat, prompt.tools)
    return list(episode.actions), replies[0], str(engine.format.tokenizer.decode(prompt.ids.tolist())), shown


class TestStops:
    @pytest.mark.parametrize("pieces", [["It is 3. STOP"], ["It is 3. ", "S", "TO", "P"], ["It", " is 3. ST", "OP!"]])
    def test_the_next_prompt_holds_what_the_client_read_and_the_action_what_was_sampled(
        self, pieces: Sequence[str]
    ) -> None:
        (first, second), reply, prompt, shown = stopped(pieces, ["STOP"])
        assert (get_reply_text(reply), reply.stop_string) == ("It is 3. ", "STOP")
        assert "STOP" not in prompt
        assert prompt.replace("It is 3. ", "It is 3.") == shown.replace("It is 3. ", "It is 3.")
        assert second.continues == (first.id,)
        assert first.sampled_mask.all()
        sampled = format_named("hermes").tokenizer.decode(first.tokens.tolist())
        assert sampled.startswith("It is 3. STOP")

    def test_a_stop_in_the_middle_of_a_token_cuts_the_token(self) -> None:
        tokenizer = format_named("list").tokenizer
        assert "Message" in tokenizer.get_vocab()
        (first, _), reply, prompt, _ = stopped(["It is ", "Message"], ["ssa"], "list")
        assert tokenizer.decode(first.tokens.tolist()) == "It is Message"
        assert (get_reply_text(reply), reply.stop_string) == ("It is Me", "ssa")
        assert "It is Me<|im_end|>" in prompt

    def test_calls_behind_a_stop_are_not_made_and_those_before_it_are(self) -> None:
        text = f"I add.\n{CALL % 2}\nSTOP {CALL % 3}"
        (first, second), reply, prompt, shown = stopped([text], ["STOP"], tools=[ADD])
        assert [call.arguments for call in reply.calls] == ['{"a": 2}']
        assert "STOP" not in prompt
        assert prompt == shown
        assert second.restarted.startswith("template: the stop string")
        assert "STOP" in format_named("hermes").tokenizer.decode(first.tokens.tolist())
        _, reply, prompt, shown = stopped([f"I add.\n{CALL % 2}"], ['"a"'], tools=[ADD])
        assert reply.calls == ()
        assert get_reply_text(reply) == 'I add.\n<tool_call>\n{"name": "add", "arguments": {'
        assert prompt.count('"a"') == shown.count('"a"')

    @pytest.mark.parametrize(
        ("text", "stop", "reason", "sequence"),
        [
            ("It is 3. STOP", ["!", "STOP"], "stop_sequence", "STOP"),
            ("It is 3.", ["!", "STOP"], "end_turn", None),
            ("It is 3! STOP", ["STOP", "!"], "stop_sequence", "!"),
            (f"{CALL % 2} STOP", ["STOP"], "tool_use", "STOP"),
        ],
    )
    def test_anthropics_clients_are_told_which_ended_it(
        self, text: str, stop: list[str], reason: str, sequence: str | None
    ) -> None:
        _, reply, _, _ = stopped([text], stop, tools=[ADD])
        request = read(Messages(), messages=[user("?")], stop_sequences=stop)
        whole = Messages().build_response(request, [reply], TOLD)
        events = list(Messages().stream_type(request, ActionStart.from_action(reply.action), TOLD).end([reply], TOLD))
        delta: Any = next(event for name, event in events if name == "message_delta")
        assert (whole["stop_reason"], whole["stop_sequence"]) == (reason, sequence)
        assert delta["delta"] == {"stop_reason": reason, "stop_sequence": sequence}

    def test_a_stop_of_the_recipe_is_no_sequence_of_the_clients(self) -> None:
        _, reply, _, _ = stopped(["It is 3. STOP"], ["STOP"])
        response = Messages().build_response(read(Messages(), messages=[user("?")]), [reply], TOLD)
        assert (response["stop_reason"], response["stop_sequence"]) == ("end_turn", None)


GOES_ON: dict[str, Any] = {"continue_final_message": True, "add_generation_prompt": False}


class TestTurnsThatAClientBegins:
    @pytest.mark.parametrize("fields", [GOES_ON, {"continue_final_message": True}, {"add_generation_prompt": False}])
    def test_the_turn_goes_on_and_what_was_given_is_not_trained(self, fields: dict[str, Any]) -> None:
        async def talk(_: Observation, agents: Agents) -> None:
            begun = {"role": "assistant", "content": "The answer is "}
            said, _reply = await asked(agents.a, [user("1 + 2?"), begun], **fields)
            assert said["content"] == "3."
            whole = {"role": "assistant", "content": "The answer is 3."}
            await asked(agents.a, [user("1 + 2?"), whole, user("Sure?")])

        episode, engine = talked(format_named("hermes"), scripted("3.", "Yes."), talk)
        assert (episode.status, episode.error) == ("terminated", "")
        first, second = episode.actions
        decode = engine.format.tokenizer.decode
        assert str(decode(first.prompt.tolist())).endswith("<|im_start|>assistant\nThe answer is ")
        assert str(decode(first.prompt.tolist())).count("<|im_start|>assistant") == 1
        assert (first.text, str(decode(first.tokens.tolist()))) == ("3.", "3.<|im_end|>")
        assert first.sampled_mask.all()
        assert starts(second, first)
        assert (second.continues, second.restarted) == ((first.id,), "")

    def test_an_own_turn_that_was_cut_goes_on_by_its_ids(self) -> None:
        async def talk(_: Observation, agents: Agents) -> None:
            said, _reply = await asked(agents.a, [user("1 + 2?")])
            await asked(agents.a, [user("1 + 2?"), said], **GOES_ON)
            whole = {"role": "assistant", "content": "The answer is 3."}
            await asked(agents.a, [user("1 + 2?"), whole, user("Sure?")])

        turns = iter([Said(["The an", "swer is"], stopped=False), Said([" 3."]), Said(["Yes."])])
        episode, _ = talked(format_named("hermes"), lambda _: next(turns), talk)
        first, second, third = episode.actions
        assert first.finish == "length"
        assert np.array_equal(second.prompt, np.concatenate([first.prompt, first.tokens]))
        assert (second.continues, second.sees) == ((first.id,), (first.id,))
        assert starts(third, second)

    def test_of_one_question_a_turn_may_begin_in_several_ways(self) -> None:
        async def talk(_: Observation, agents: Agents) -> None:
            for begun in ("Yes", "No", ""):
                turn = [{"role": "assistant", "content": begun}]
                said, _reply = await asked(agents.a, [user("1 + 2?"), *turn], **GOES_ON)
                assert said["content"] == ", it is."

        episode, engine = talked(format_named("hermes"), lambda _: Said([", it is."]), talk)
        ends = [str(engine.format.tokenizer.decode(action.prompt.tolist()))[-10:] for action in episode.actions]
        assert ends == ["istant\nYes", "sistant\nNo", "assistant\n"]

    def test_a_critic_reads_what_was_not_seen_before_the_beginning(self) -> None:
        async def talk(_: Observation, agents: Agents) -> None:
            await asked(agents.a, [user("1 + 2?")])
            await asked(agents.b, [user("And?"), {"role": "assistant", "content": "Well: "}], **GOES_ON)

        episode, engine = talked(format_named("hermes"), scripted("Three.", "3."), talk, "a", "b", critic=True)
        state = episode.actions[1].state
        assert state is not None
        text = str(engine.format.tokenizer.decode(state.tolist()))
        assert text.endswith("Message from a:\nThree.<|im_end|>\n<|im_start|>assistant\nWell: ")

    def test_the_last_turn_of_anthropics_messages_is_one(self) -> None:
        blocks = [{"type": "text", "text": "The answer"}, {"type": "text", "text": "is"}]
        asked_ = read(Messages(), messages=[user("1 + 2?"), {"role": "assistant", "content": blocks}])
        assert (asked_.chat.prefix, asked_.chat.messages) == ("The answer\nis", (user("1 + 2?"),))

    @pytest.mark.parametrize(
        ("messages", "fields", "why"),
        [
            ([user("?")], GOES_ON, "no turn to continue"),
            ([user("?"), {"role": "assistant", "content": "It"}],
             {**GOES_ON, "add_generation_prompt": True}, "opens no turn"),
            ([{"role": "assistant", "content": "It"}], GOES_ON, "at least one message"),
            ([user("?"), {"role": "assistant", "tool_calls": [
                {"id": "x", "type": "function", "function": {"name": "add"}}]}], GOES_ON, "calls tools"),
        ],
    )  # fmt: skip
    def test_what_is_no_beginning_is_refused_in_words(
        self, messages: list[Any], fields: dict[str, Any], why: str
    ) -> None:
        with pytest.raises(RequestError, match=why):
            read(ChatCompletions(), messages=messages, **fields)

    def test_a_model_that_begins_each_turn_with_a_thought_is_given_one_that_has_ended(self) -> None:
        format = format_named("deepseek r1 distilled")
        renderer = ChatRenderer({"a": format})
        with pytest.raises(ValueError, match="end it in the text"):
            renderer.encode_prefix("a", "It is")
        ids = renderer.encode_prefix("a", "<think>\nHm.\n</think>\n\nIt is")
        assert format.tokenizer.decode(ids.tolist()) == "\nHm.\n</think>\n\nIt is"
        assert (
            renderer.reasoning_length("a", " 3."),
            renderer.reasoning_length("a", " 3.", prefix="</think>It is"),
        ) == (3, 0)
        assert renderer.text_stream("a", (), True, False, prefix="</think>It is").add_tokens(ids[-5:].tolist()) != (
            "",
            "",
        )

    def test_what_cannot_begin_a_turn_is_refused(self) -> None:
        format = replace(format_named("hermes"), remote=True)

        async def talk(_: Observation, agents: Agents) -> None:
            begun = {"role": "assistant", "content": "It"}
            with pytest.raises(ChatRefusedError, match="behind an endpoint"):
                await asked(agents.a, [user("?"), begun], **GOES_ON)

        assert talked(format, scripted(), talk)[0].status == "terminated"
