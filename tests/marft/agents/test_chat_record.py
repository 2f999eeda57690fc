"""What an agent is asked with through a client, what is kept of its turns, and what the client is told of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from marft.agents.agents import Agent
from marft.agents.chat import Chat, ChatRefusedError, Constraint, Reply
from marft.agents.chat_history import MAX_MESSAGES, ChatHistory
from marft.agents.conversation_memory import PromptRequest, ReceivedMessage
from marft.agents.prompt_messages import NO_TOKENS, ChatMessage, InexactContinuation
from marft.agents.quote_tracker import QuoteTracker
from marft.common.reasoning import StopString
from marft.common.types import Action, AgentProfile, SamplingParams, TokenIds, Tool, ToolCall
from marft.config.interfaces.channel import Message
from tests.episodes import make_action
from tests.fakes import FakeRenderer
from tests.tool_games import call

ADD, SEE = Tool("add", "Add.", {}), Tool("see", "See.", {})
ADDS = call("add", a=1)
CHANGED, MOVED = "what was said is changed", "what was said stands after something else"


def ids(text: str) -> TokenIds:
    return np.frombuffer(text.encode(), np.uint8).astype(np.int32)


def spelled(tokens: TokenIds) -> str:
    return bytes(tokens.astype(np.uint8)).decode()


def user(text: str) -> ChatMessage:
    return {"role": "user", "content": text}


def says(text: str) -> ChatMessage:
    return {"role": "assistant", "content": text}


@dataclass
class Letters(FakeRenderer):
    """A template in which a token is a letter: a message is ``u:text;``, and each turn ends with ``.``.

    Args:
        room: tokens of the context.
        fixed: whether a conversation can be gone on from.
        broken: the text of messages that cannot be shown.
    """

    room: int = 9000
    fixed: bool = True
    violations: str = "(broken)"
    shown: list[Sequence[Tool]] = field(default_factory=list)

    def context_length(self, policy: str) -> int:
        assert policy == "p"
        return self.room

    def tokenize_prompt(self, policy: str, messages: Sequence[ChatMessage], tools: Sequence[Tool]) -> TokenIds:
        self.shown.append(tools)
        text = "".join(f"{str(message['role'])[0]}:{message['content']};" for message in messages)
        if self.violations in text:
            raise ValueError("it shows no brackets")
        return ids(text + ">")

    def continue_chat(
        self, policy: str, ids: TokenIds, messages: Sequence[ChatMessage], new: Sequence[ChatMessage],
        tools: Sequence[Tool],
    ) -> TokenIds | InexactContinuation:  # fmt: skip
        return self.tokenize_prompt(policy, new, tools) if self.fixed else InexactContinuation("it drops thoughts")

    def encode_prefix(self, policy: str, text: str) -> TokenIds:
        if self.violations in text:
            raise ValueError("it shows no brackets")
        return super().encode_prefix(policy, text)

    def calls(
        self, policy: str, tokens: TokenIds, tools: Sequence[Tool], prefix: TokenIds = NO_TOKENS
    ) -> Sequence[ToolCall]:
        if not tools or tools[0].name == "bad":
            raise ValueError("nothing here can be called")
        return super().calls(policy, tokens, tools, prefix)

    def grammar(self, policy: str, chat: Chat) -> None:
        assert chat.constraint is not None
        if chat.constraint.kind == "call":
            raise ValueError("it calls nothing")

    def response_prefix(self, policy: str, action: Action) -> int:
        return len(action.tokens) - spelled(action.tokens).endswith(".")

    def token_texts(self, policy: str, tokens: TokenIds, begin: int = 0) -> tuple[str, ...]:
        return tuple(f"{chr(token)}{'^' if place < begin else ''}" for place, token in enumerate(tokens.tolist()))


class Talk:
    """One agent's chats with a client, beside actions of others."""

    def __init__(
        self, renderer: Letters | None = None, stop: tuple[str | StopString, ...] = (), instructions: str = ""
    ) -> None:
        self.renderer, self.quoting = renderer or Letters(), QuoteTracker()
        self.record = self.another("a", stop, instructions)
        self.actions: list[Action] = []

    def another(self, role: str, stop: tuple[str | StopString, ...] = (), instructions: str = "") -> ChatHistory:
        agent = Agent(AgentProfile(role, instructions), "p", SamplingParams(stop=stop))
        return ChatHistory(agent, self.renderer, self.quoting)

    def asked(self, *messages: ChatMessage, task: str = "", **fields: Any) -> PromptRequest:
        return self.record.build_request(Chat(messages, **fields), self.actions, task)

    def refused(self, *messages: ChatMessage, **fields: Any) -> tuple[str, str]:
        with pytest.raises(ChatRefusedError) as caught:
            self.asked(*messages, **fields)
        return caught.value.reason, str(caught.value)

    def say(
        self, text: str, *messages: ChatMessage, sampled: str = "", record: ChatHistory | None = None,
        calls: Sequence[ToolCall] = (), thought: int = 0, task: str = "", **fields: Any,
    ) -> Reply:  # fmt: skip
        """Ask, and have the agent say a text, which ends with a token that is no text of it."""
        record, chat, number = record or self.record, Chat(messages, **fields), len(self.actions)
        asked = record.build_request(chat, self.actions, task)
        seen = (*asked.visible, *(one.action.id for one in asked.received))
        made = make_action(record.agent.role, call=number, index=number, sees=seen, policy="p", text=text)
        tokens = ids(sampled or f"{text}.")
        marks = np.zeros(len(tokens), np.uint8)
        action = replace(
            made, tokens=tokens, marks=marks, log_probs=np.zeros(len(tokens), np.float32), calls=tuple(calls),
            thought=thought, prompt=asked.prompt.ids,
        )  # fmt: skip
        record.store(asked, chat, action)
        self.actions.append(action)
        return record.reply(action)


class TestWhatItGoesOnFrom:
    def test_a_turn_goes_on_by_its_own_ids(self) -> None:
        talk = Talk()
        first = talk.say("3", user("1 + 2?"))
        asked = talk.asked(user("1 + 2?"), first.message, user("Sure?"))
        assert spelled(asked.prompt.ids) == "u:1 + 2?;>3.u:Sure?;>"
        assert (asked.continues, asked.visible, asked.restart_reason) == (("0/a/0",), ("0/a/0",), "")
        assert list(asked.prompt.chat) == [user("1 + 2?"), says("3"), user("Sure?")]
        assert (asked.prompt.tools, asked.prompt.truncated_tokens) == ((), 0)
        assert (asked.received, asked.new_messages, asked.from_client) == ([], (), True)

    def test_it_depends_on_its_turns_in_order_each_after_what_it_saw(self) -> None:
        talk = Talk()
        other = talk.another("b")
        talk.say("pears", user("Fruit?"), record=other)
        first = talk.say("Ripe", user("b: pears"))
        talk.say("plums", user("More?"), record=other)
        messages = [user("b: pears"), first.message, user("b: plums")]
        second = talk.say("Also", *messages)
        asked = talk.asked(*messages, second.message, user("b: pears, plums"))
        assert asked.continues == ("0/a/1", "0/a/3")
        assert asked.visible == ("0/b/0", "0/a/1", "0/b/2", "0/a/3")
        assert asked.received == []

    def test_a_template_that_rewrites_turns_is_the_reason_for_a_new_segment(self) -> None:
        talk = Talk(Letters(fixed=False))
        first = talk.say("3", user("1 + 2?"))
        asked = talk.asked(user("1 + 2?"), first.message, user("Sure?"))
        assert spelled(asked.prompt.ids) == "u:1 + 2?;a:3;u:Sure?;>"
        assert (asked.continues, asked.restart_reason) == ((), "template: it drops thoughts")

    @pytest.mark.parametrize(
        ("messages", "why"),
        [
            ([user("1"), says("A"), user("2"), says("B"), user("3")], ""),
            ([user("1"), says("A"), user("3")], ""),
            ([user("9")], ""),
            ([user("9"), says("Z"), user("3")], ""),  # nothing of it was said
            ([user("9"), says("A"), user("3")], f"trimmed: {MOVED}"),
            ([user("9"), says("Z"), user("2"), says("B"), user("3")], f"trimmed: {MOVED}"),
            ([user("1"), says("Z"), user("3")], f"edited: {CHANGED}"),
            ([user("1"), says("A"), user("2"), says("Z"), user("3")], f"edited: {CHANGED}"),
            ([user("1"), says("A"), user("9"), says("Z"), user("3")], f"edited: {CHANGED}"),
            ([user("1"), says("A"), user("9"), says("B"), user("3")], f"trimmed: {MOVED}"),
            ([user("1"), user("2"), says("Z"), user("3")], ""),
        ],
    )
    def test_a_changed_history_says_why_it_is_not_gone_on_from(self, messages: list[ChatMessage], why: str) -> None:
        talk = Talk()
        talk.say("A", user("1"))
        talk.say("B", user("1"), says("A"), user("2"))
        talk.say("C", user("7"))
        restarted = talk.asked(*messages).restart_reason
        assert restarted.startswith(why)
        assert bool(restarted) is bool(why)

    def test_a_change_of_the_history_is_named_before_one_of_the_template(self) -> None:
        talk = Talk(Letters(fixed=False))
        first = talk.say("A", user("1"))
        asked = talk.asked(user("1"), first.message, user("2"), says("Z"), user("3"))
        assert asked.restart_reason.startswith("edited")

    def test_a_question_that_was_never_answered_has_no_answer_to_edit(self) -> None:
        talk = Talk()
        talk.asked(user("1"))
        assert talk.asked(user("1"), says("Z"), user("3")).restart_reason == ""
        talk.say("A", user("1"))
        assert talk.asked(user("1"), says("Z"), user("3")).restart_reason.startswith("edited")

    def test_other_tools_are_another_conversation(self) -> None:
        talk = Talk()
        first = talk.say("3", user("1 + 2?"), tools=(ADD,))
        history = user("1 + 2?"), first.message, user("Sure?")
        changed = (replace(ADD, parameters={"x": 1}),), (replace(ADD, description="Sum."),), (ADD, SEE), ()
        for tools in changed:
            asked = talk.asked(*history, tools=tools)
            assert asked.restart_reason == "tools: other tools are offered than before"
            assert (asked.continues, asked.prompt.tools) == ((), tools)
        asked = talk.asked(*history, tools=(replace(ADD),))
        assert (asked.restart_reason, asked.continues) == ("", ("0/a/0",))
        assert talk.renderer.shown[-1] == (ADD,)

    def test_a_history_that_goes_no_deeper_with_other_tools_is_not_theirs(self) -> None:
        talk = Talk()
        talk.say("A", user("1"), tools=(ADD,))
        talk.say("A", user("1"))
        assert talk.asked(user("1"), says("A"), user("2"), says("Z"), user("3")).restart_reason.startswith("edited")


class TestWhatItDependsOn:
    def test_others_are_heard_in_the_order_of_their_actions(self) -> None:
        talk = Talk()
        for role, text in (("b", "ripe pears"), ("c", "green plums"), ("b", "old figs")):
            talk.say(text, user("?"), record=talk.another(role))
        asked = talk.asked(user("old figs"), user("ripe pears"))
        assert [one.action.id for one in asked.received] == ["0/b/0", "0/b/2"]
        assert [(one.message, one.original_text) for one in asked.received] == [
            (Message("b", "ripe pears"), "ripe pears"), (Message("b", "old figs"), "old figs"),
        ]  # fmt: skip

    def test_what_the_client_names_counts_in_place_of_what_is_found(self) -> None:
        talk = Talk()
        other = talk.another("b")
        talk.say("pears", user("?"), record=other)
        talk.say("plums", user("?"), record=other)
        asked = talk.asked(user("pears"), sees=("0/b/1", "0/b/1"))
        assert [one.action.id for one in asked.received] == ["0/b/1"]
        assert talk.asked(user("pears"), sees=()).received == []
        first = talk.say("A", user("pears"))
        asked = talk.asked(user("pears"), first.message, user("!"), sees=("0/b/1", "0/b/0", "0/a/2"))
        assert asked.visible == ("0/b/0", "0/a/2")
        assert [one.action.id for one in asked.received] == ["0/b/1"]

    def test_words_of_the_task_or_of_its_instructions_are_nobodys(self) -> None:
        talk = Talk(instructions="Count pears.")
        talk.say("pears", user("?"), record=talk.another("b"))
        assert talk.asked(user("Count pears.")).received == []
        assert talk.asked(user("Pick pears, plums."), task="Pick pears, plums.").received == []
        assert [one.action.id for one in talk.asked(user("Pick pears, plums.")).received] == ["0/b/0"]

    def test_arguments_of_calls_are_words_of_the_one_who_makes_them(self) -> None:
        talk = Talk()
        made = ToolCall("add", '{"what": "ripe pears"}')
        talk.say("I add.", user("?"), record=talk.another("b"), tools=(ADD,), calls=(made,))
        assert [one.action.id for one in talk.asked(user("ripe pears")).received] == ["0/b/0"]

    def test_only_what_is_new_in_a_chat_is_looked_at(self) -> None:
        talk = Talk()
        first = talk.say("A", user("pears"))
        talk.say("pears", user("!"), record=talk.another("b"))
        assert talk.asked(user("pears"), first.message, user("On")).received == []
        assert [one.action.id for one in talk.asked(user("pears"), first.message, user("pears")).received] == ["0/b/1"]


class TestWhatIsRefused:
    def test_too_many_messages(self) -> None:
        talk = Talk(Letters(room=30))
        limit = "This model's maximum context length is 30 tokens, and the messages have"
        assert talk.refused(*[user("")] * 31) == ("too_long", f"{limit} 31 messages.")
        assert "tokens." in talk.refused(*[user("")] * 30)[1]
        assert "8193 messages" in Talk(Letters(room=10**6)).refused(*[user("")] * (MAX_MESSAGES + 1))[1]
        assert MAX_MESSAGES == 8192

    def test_too_many_characters(self) -> None:
        talk = Talk(Letters(room=30))
        assert "1921 characters." in talk.refused(user("a" * 1000), user("b" * 921))[1]
        assert "1921 characters." in talk.refused(user("a" * 1000), prefix="b" * 921)[1]
        assert "tokens." in talk.refused(user("a" * 1000), user("b" * 920))[1]

    def test_a_prompt_that_leaves_no_room(self) -> None:
        messages, size = [user("1 + 2?")], len("u:1 + 2?;>")
        assert f"{size} tokens." in Talk(Letters(room=size)).refused(*messages)[1]
        assert len(Talk(Letters(room=size + 1)).asked(*messages).prompt.ids) == size
        assert f"{size + 2} tokens." in Talk(Letters(room=size + 2)).refused(*messages, prefix="It")[1]

    def test_what_is_not_there_or_cannot_be_shown_or_called(self) -> None:
        talk = Talk()
        talk.say("3", user("?"))
        assert talk.refused(user("?"), sees=("0/b/9", "0/a/0", "0/b/8")) == (
            "invalid", "no action of this episode is called '0/b/8'",
        )  # fmt: skip
        assert talk.refused(user("(broken)")) == ("invalid", "it shows no brackets")
        bad: Any = {"tools": (Tool("bad", "", {}),)}
        assert talk.refused(user("?"), **bad) == ("invalid", "nothing here can be called")
        assert talk.asked(user("?"), parse_calls=False, **bad).prompt.tools == bad["tools"]

    def test_a_form_that_no_answer_can_have(self) -> None:
        refused = Talk().refused(user("?"), constraint=Constraint("call"))
        assert refused == ("unsupported", "no answer can have the form that is asked for: it calls nothing")
        assert Talk().asked(user("?"), constraint=Constraint("json")).continues == ()

    def test_a_turn_that_cannot_begin_so(self) -> None:
        assert Talk().refused(user("?"), prefix="(broken)") == (
            "unsupported", "the last message cannot be continued: it shows no brackets",
        )  # fmt: skip
        refused = Talk().refused(user("?"), prefix="It", constraint=Constraint("json"))
        assert refused == ("unsupported", "an answer of a given form is written from its beginning on")


class TestWhatAClientIsTold:
    def test_a_turn_as_it_must_come_back(self) -> None:
        reply = Talk().say("<think>Hm</think>3", user("?"), thought=len("<think>Hm</think>"))
        assert (reply.message, reply.thought, reply.prefix) == (says("3"), "<think>Hm</think>", "")
        assert (reply.calls, reply.stop_string, reply.pieces, reply.alternatives) == ((), "", (), ())

    def test_calls_that_could_be_read_stand_beside_the_text(self) -> None:
        made, unread = ToolCall("add", '{"a": 1}'), ToolCall("", error=True)
        reply = Talk().say("I add.", user("?"), tools=(ADD,), calls=(unread, made))
        assert reply.calls == (made,)
        assert reply.message["content"] == "I add."
        calls: Any = reply.message["tool_calls"]
        assert [one["function"] for one in calls] == [{"name": "add", "arguments": {"a": 1}}]
        alone = Talk().say("I add.", user("?"), tools=(ADD,), calls=(unread,))
        assert (alone.message, alone.calls) == (says("I add."), ())

    @pytest.mark.parametrize("stop", [{"stop": ("!",)}, {}])
    def test_what_a_stop_string_ended(self, stop: Mapping[str, Any]) -> None:
        talk = Talk(stop=(StopString("</call>", False), *(() if stop else ("!",))))
        reply = talk.say("3", user("?"), sampled="3!!", **stop)
        assert (reply.message, reply.stop_string) == (says("3"), "!")
        asked = talk.asked(user("?"), reply.message, user("Sure?"))
        assert (spelled(asked.prompt.ids), asked.restart_reason) == ("u:?;>3u:Sure?;>", "")

    def test_each_token_and_those_that_were_as_likely(self) -> None:
        talk = Talk()
        talk.say("ok", user("?"))
        (action,) = talk.actions
        assert talk.record.reply(action, pieces=True).pieces == ("o^", "k", ".")
        assert talk.record.reply(action, pieces=True).alternatives == ()
        two = [[(ord("O"), -0.5), (ord("n"), -1.5)], [(ord("h"), -2.5)]]
        talk.record.store_alternatives(action.id, two)
        told = talk.record.reply(action, pieces=True).alternatives
        assert told == ((("O^", -0.5), ("n^", -1.5)), (("h", -2.5),))
        assert talk.record.reply(action).alternatives == ()

    def test_tokens_after_what_the_client_began_begin_no_text(self) -> None:
        talk = Talk()
        talk.say("ok", user("?"), prefix="It is ")
        (action,) = talk.actions
        talk.record.store_alternatives(action.id, [[(ord("O"), -0.5)]])
        reply = talk.record.reply(action, pieces=True)
        assert (reply.pieces, reply.alternatives) == (("o", "k", "."), ((("O", -0.5),),))


class TestTurnsThatAClientBegins:
    def test_the_turn_goes_on_after_the_beginning(self) -> None:
        talk = Talk()
        asked = talk.asked(user("?"), prefix="It is ")
        assert spelled(asked.prompt.ids) == "u:?;>It is "
        assert list(asked.prompt.chat) == [user("?"), says("It is ")]
        reply = talk.say("3", user("?"), prefix="It is ")
        assert (reply.message, reply.prefix) == (says("It is 3"), "It is ")
        asked = talk.asked(user("?"), reply.message, user("Sure?"))
        assert spelled(asked.prompt.ids) == "u:?;>It is 3.u:Sure?;>"
        assert (asked.continues, asked.restart_reason) == (("0/a/0",), "")

    def test_calls_alone_come_after_the_beginning_too(self) -> None:
        made = ToolCall("add", "{}")
        reply = Talk().say("", user("?"), prefix="I add", tools=(ADD,), calls=(made,))
        assert (reply.message["content"], reply.calls) == ("I add", (made,))

    @pytest.mark.parametrize("sampled", ["It is", "It is."])
    def test_an_own_turn_goes_on_by_its_ids_without_its_end(self, sampled: str) -> None:
        talk = Talk()
        talk.say("It was", user("?"))
        first = talk.say("It is", user("?"), sampled=sampled)
        asked = talk.asked(user("?"), prefix="It is")
        assert spelled(asked.prompt.ids) == "u:?;>It is"
        assert (asked.continues, asked.visible) == (("0/a/1",), ("0/a/1",))
        other = talk.asked(user("?"), prefix="It")
        assert (spelled(other.prompt.ids), other.continues) == ("u:?;>It", ())
        assert first.message == says("It is")

    def test_an_own_turn_that_a_stop_string_ended_goes_on_before_it(self) -> None:
        talk = Talk()
        talk.say("It is", user("?"), sampled="It is!.", stop=("!",))
        asked = talk.asked(user("?"), prefix="It is")
        assert (spelled(asked.prompt.ids), asked.continues) == ("u:?;>It is", ("0/a/0",))

    def test_an_own_turn_that_was_told_in_part_is_begun_anew(self) -> None:
        talk = Talk()
        talk.say("(Hm)3", user("?"), thought=len("(Hm)"))
        asked = talk.asked(user("?"), prefix="3")
        assert (spelled(asked.prompt.ids), asked.continues) == ("u:?;>3", ())

    def test_words_of_others_in_the_beginning_are_seen(self) -> None:
        talk = Talk()
        talk.say("ripe pears", user("?"), record=talk.another("b"))
        assert [one.action.id for one in talk.asked(user("!"), prefix="ripe pears").received] == ["0/b/0"]


class TestTurnsThatAreToldInPart:
    def restarted(self, *calls: ToolCall, sampled: str, text: str = "", **fields: Any) -> str:
        talk = Talk()
        offered: dict[str, Any] = {"tools": (ADD,), **fields}
        reply = talk.say(text, user("?"), sampled=sampled, calls=calls, **offered)
        answer = {"role": "tool", "content": "2"}
        asked = talk.asked(user("?"), reply.message, answer, **offered)
        assert bool(asked.continues) is not bool(asked.restart_reason)
        return asked.restart_reason

    def test_nothing_goes_on_from_a_turn_of_which_one_call_of_several_was_told(self) -> None:
        made = ToolCall("add", '{"a": 1}')
        one = "template: of its calls the first alone was told"
        assert self.restarted(made, sampled=ADDS * 2, allow_parallel_calls=False) == one
        assert self.restarted(made, sampled=ADDS, allow_parallel_calls=False) == ""
        assert self.restarted(made, made, sampled=ADDS * 2) == ""
        assert self.restarted(ToolCall("", error=True), made, sampled=ADDS * 2) == ""  # one could not be read
        assert self.restarted(sampled=ADDS, allow_parallel_calls=False) == ""  # none was told, as of one that was cut

    def test_nothing_goes_on_from_calls_that_a_stop_string_ended(self) -> None:
        made = ToolCall("add", '{"a": 1}')
        stopped = "template: the stop string behind its calls was not told"
        assert self.restarted(made, sampled=f"{ADDS}!", stop=("!",)) == stopped
        assert self.restarted(made, sampled=ADDS, stop=("!",)) == ""
        assert self.restarted(sampled="3!", text="3", stop=("!",)) == ""

    def test_nothing_goes_on_from_a_turn_whose_thought_was_dropped(self) -> None:
        talk = Talk()
        reply = talk.say("(Hm)3", user("?"), thought=len("(Hm)"))
        asked = talk.asked(user("?"), reply.message, user("Sure?"))
        assert (asked.restart_reason, asked.continues) == ("template: its thoughts were dropped", ())


class TestWhatACriticReads:
    UNSEEN = [("b", "ripe pears"), ("c", "figs")]

    def read(self, talk: Talk, asked: PromptRequest) -> str:
        unseen = [ReceivedMessage(make_action(role), Message(role, text), text) for role, text in self.UNSEEN]
        return spelled(talk.record.critic_tokens(asked, unseen))

    def test_the_chat_and_what_was_not_seen(self) -> None:
        talk = Talk()
        asked = talk.asked(user("?"), tools=(ADD,))
        assert self.read(talk, asked) == "u:?;u:Message from b:\nripe pears\n\nMessage from c:\nfigs;>"
        assert talk.renderer.shown[-1] == (ADD,)

    def test_the_beginning_of_the_turn_comes_last(self) -> None:
        talk = Talk()
        asked = talk.asked(user("?"), user("!"), prefix="It is ")
        assert self.read(talk, asked) == "u:?;u:!;u:Message from b:\nripe pears\n\nMessage from c:\nfigs;>It is "

    def test_the_chat_alone_where_its_template_cannot_show_more(self) -> None:
        talk = Talk(Letters(violations="Message from"))
        assert self.read(talk, talk.asked(user("?"))) == "u:?;>"
