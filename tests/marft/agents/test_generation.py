"""How an action comes about: what is sampled after what, whose each token is, and when the action ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from marft.agents.agents import Agent, Request, ToolUse
from marft.agents.chat import Chat, ChatRefusedError, Constraint
from marft.agents.chat_history import ChatHistory
from marft.agents.generation import (
    ActionSampler,
    ResponsePrefix,
    build_response_prefix,
    check_log_probs,
    encode_options,
)
from marft.agents.helpers import HelperReply
from marft.agents.prompt_messages import NO_TOKENS, ChatMessage, InexactContinuation
from marft.agents.quote_tracker import QuoteTracker
from marft.agents.streaming import TextStream, TokenStream
from marft.common.errors import EpisodeFailedError, RowFailedError
from marft.common.reasoning import StopString
from marft.common.token_data import Grammar, GrammarMasks, PromptReset, TokenSource, single_token_mask
from marft.common.types import (
    Action,
    ActionKey,
    AgentProfile,
    Choice,
    Completion,
    HelperCallRecord,
    Observation,
    Option,
    Prompt,
    SamplingParams,
    TokenIds,
    Tool,
    ToolCall,
    VersionRange,
)
from marft.common.usage import Usage
from tests.episodes import make_action
from tests.fakes import FakeEngine, FakeRenderer
from tests.tool_games import call

KEY = ActionKey("train/0", "t", 0, 0, "a", 0)
TOOL = Tool("add", "Add.", {})
ADDS = call("add", a=1)


def ids(text: str) -> TokenIds:
    return np.frombuffer(text.encode(), np.uint8).astype(np.int32)


def spelled(tokens: TokenIds) -> str:
    return bytes(tokens.astype(np.uint8)).decode()


def says(text: str, finish: str = "stop", **fields: Any) -> Completion:
    """A completion of one token a character, of which the first has log-prob -1, the next -2, …"""
    return Completion(ids(text), -1.0 - np.arange(len(text), dtype=np.float32), text, finish, **fields)  # type: ignore[arg-type]


class Engine(FakeEngine):
    """Returns completions in turn, and keeps what it was asked."""

    def __init__(self, *completions: Completion | Exception) -> None:
        super().__init__()
        self.left = iter(completions)
        self.prompts: list[Prompt] = []
        self.samplings: list[SamplingParams] = []
        self.keys: list[ActionKey] = []

    async def sample(self, policy: str, prompt: Prompt, sampling: SamplingParams, key: ActionKey) -> Completion:
        assert policy == "p"
        self.prompts.append(prompt)
        self.samplings.append(sampling)
        self.keys.append(key)
        completion = next(self.left)
        if isinstance(completion, Exception):
            raise completion
        return completion

    @property
    def contexts(self) -> list[str]:
        return [spelled(prompt.ids) for prompt in self.prompts]

    @property
    def limits(self) -> list[int]:
        return [sampling.max_new_tokens for sampling in self.samplings]


class Belt:
    """Answers every call with a long text, and keeps how many it is given at once."""

    def __init__(self, text: str = "5, I think") -> None:
        self.text, self.given = text, list[list[ToolCall]]()

    async def execute(self, limits: ToolUse, calls: Sequence[ToolCall], clip: Callable[[str], str]) -> list[ToolCall]:
        self.given.append(list(calls))
        return [replace(one, output=clip(self.text)) for one in calls]


@dataclass
class Renderer(FakeRenderer):
    """Renders a chat anew after some turns; a text inside a turn begins with the space that it has there.

    Args:
        room: tokens of the context.
        rewrites: of the turns that call tools, those after which the chat is rendered anew.
    """

    room: int = 9000
    rewrites: frozenset[int] = frozenset()
    spaced: bool = False
    chats: list[list[ChatMessage]] = field(default_factory=list)
    begun: list[str] = field(default_factory=list)
    live_of: list[tuple[Any, ...]] = field(default_factory=list)

    def context_length(self, policy: str) -> int:
        return self.room

    def tokenize_prompt(self, policy: str, messages: Sequence[ChatMessage], tools: Sequence[Tool]) -> TokenIds:
        assert (policy, list(tools)) in (("p", [TOOL]), ("p", []))
        return ids("anew>")

    def tool_response(
        self, policy: str, turn: TokenIds, messages: Sequence[ChatMessage], calls: Sequence[ToolCall],
        tools: Sequence[Tool],
    ) -> TokenIds | InexactContinuation:  # fmt: skip
        assert (policy, tools) == ("p", (TOOL,))
        self.chats.append(list(messages))
        if len(self.chats) - 1 in self.rewrites:
            return InexactContinuation("it drops thoughts")
        return super().tool_response(policy, turn, messages, calls, tools)

    def calls(
        self, policy: str, tokens: TokenIds, tools: Sequence[Tool], prefix: TokenIds = NO_TOKENS
    ) -> Sequence[ToolCall]:
        self.begun.append(spelled(prefix))
        return super().calls(policy, tokens, tools)

    def decode_tokens(self, policy: str, tokens: TokenIds, inside: bool = False) -> str:
        return (" " if self.spaced and inside else "") + super().decode_tokens(policy, tokens)

    def text_stream(self, policy: str, stops: Sequence[Any], drops: bool, tools: bool, prefix: str = "") -> TextStream:
        self.live_of.append((policy, stops, drops, tools, prefix))
        return super().text_stream(policy, stops, drops, tools, prefix)


PREFIX = ResponsePrefix(ids("It "), np.array([TokenSource.TEAMMATE, TokenSource.TOOL, TokenSource.TEAMMATE], np.uint8), np.array([-7, -8], np.float32), "It ")  # fmt: skip


def agent(tools: bool = False, thinking: Any = "keep", sampling: SamplingParams | None = None, **limits: Any) -> Agent:
    profile = AgentProfile("a", tools=(TOOL,) if tools else (), version=3)
    return Agent(
        profile, "p", sampling or SamplingParams(max_new_tokens=1000), tool_use=ToolUse(**limits), thinking=thinking
    )


def generated(
    engine: Engine, who: Agent, prefix: ResponsePrefix | None = None, renderer: Renderer | None = None,
    live: TokenStream | None = None, counsel: Any = None, belt: Belt | None = None,
) -> Action:  # fmt: skip
    prompt = Prompt(ids("prompt>"), chat=({"role": "user", "content": "?"},), tools=(TOOL,))
    sampler = ActionSampler(engine, renderer or Renderer(), who, prompt, KEY)
    return asyncio.run(sampler.generate(belt or Belt(), prefix or ResponsePrefix(), live, counsel))  # type: ignore[arg-type]


class Quotes:
    """A helper that answers in brackets whatever ends with a question mark, and nothing where there are two."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int, bool]] = []

    def resolve_sampling(self, sampling: SamplingParams) -> SamplingParams:
        return replace(sampling, stop=(*sampling.stop, "?"))

    async def reply(
        self, agent: Agent, key: ActionKey, before: str, completion: Completion, rounds: int, inside: bool
    ) -> HelperReply | None:
        assert (agent.role, key) == ("a", KEY)
        self.asked.append((before, rounds, inside))
        said = spelled(completion.tokens)
        if not said.endswith("?"):
            return None
        if said.endswith("??"):
            return HelperReply(said)
        told = HelperCallRecord("verify", "", "(yes)", len(before + said), rounds)
        return HelperReply(said, ids("(yes)"), np.full(5, -9, np.float32), "(yes)", told, Usage(1, 2))


class TestTools:
    def test_each_turn_goes_on_after_what_the_tools_answered_the_last_one(self) -> None:
        renderer, belt = Renderer(), Belt()
        first, second = (
            says(f"is {ADDS}", versions=VersionRange(4, 4), usage=Usage(3, 4)),
            says("5.", versions=VersionRange(2, 6)),
        )
        engine = Engine(first, second)
        action = generated(engine, agent(tools=True, output_tokens=1), PREFIX, renderer, belt=belt)
        assert engine.contexts == ["prompt>It ", f"prompt>It is {ADDS}[5]"]
        assert spelled(action.tokens) == f"It is {ADDS}[5]5."
        sampled = [TokenSource.SAMPLED] * len(first.tokens)
        kinds = [TokenSource.TEAMMATE, TokenSource.TOOL, TokenSource.TEAMMATE, *sampled]
        assert action.marks.tolist() == [*kinds, *[TokenSource.TOOL] * 3, TokenSource.SAMPLED, TokenSource.SAMPLED]
        assert action.log_probs.tolist() == [*first.log_probs, *second.log_probs]
        assert action.teammate_log_probs is not None
        assert (action.teammate_log_probs.tolist(), action.marks.dtype) == ([-7.0, -8.0], np.dtype(np.uint8))
        assert (action.text, action.intermediate_texts, action.response_prefix) == ("5.", (f"is {ADDS}",), 0)
        assert (action.versions, action.usage, action.finish) == (VersionRange(2, 6), Usage(3, 4), "stop")
        assert (action.key, action.policy, action.profile_version, action.restarts) == (KEY, "p", 3, ())
        assert [(one.name, one.output, one.round) for one in action.calls] == [("add", "5", 0)]
        assert [key.stream for key in engine.keys] == ["train/0", "train/0+1"]
        assert renderer.begun == ["It ", ""]

    def test_the_template_is_shown_the_chat_with_what_a_teammate_began_the_first_turn_with(self) -> None:
        renderer = Renderer()
        engine = Engine(says(f"is {ADDS}"), says(f"so {ADDS}"), says("5."))
        action = generated(engine, agent(tools=True, output_tokens=1), PREFIX, renderer)
        texts = [[message["content"] for message in chat] for chat in renderer.chats]
        assert texts == [["?", f"It is {ADDS}", "5"], ["?", f"It is {ADDS}", "5", f"so {ADDS}", "5"]]
        assert [list(prompt.chat) for prompt in engine.prompts] == [renderer.chats[0][:1], *renderer.chats]
        assert [one.round for one in action.calls] == [0, 1]
        assert action.intermediate_texts == (f"is {ADDS}", f"so {ADDS}")

    def test_a_chat_that_is_rendered_anew_begins_a_segment(self) -> None:
        engine = Engine(says(ADDS), says(f"so {ADDS}"), says(ADDS), says("5."))
        action = generated(engine, agent(tools=True, output_tokens=1), None, Renderer(rewrites=frozenset({1})))
        assert engine.contexts == ["prompt>", f"prompt>{ADDS}[5]", "anew>", f"anew>{ADDS}[5]"]
        (restart,) = action.restarts
        assert isinstance(restart, PromptReset)
        begins = len(f"{ADDS}[5]so {ADDS}")
        assert (restart.at, spelled(restart.context), restart.turns) == (begins, "anew>", 2)
        assert restart.reason == "it drops thoughts"
        assert spelled(action.tokens) == f"{ADDS}[5]so {ADDS}{ADDS}[5]5."
        assert spelled(action.prompt) == "prompt>"

    @pytest.mark.parametrize(
        ("rounds", "calls", "finish"), [(0, 0, "length"), (1, 1, "length"), (2, 2, "stop"), (3, 2, "stop")]
    )
    def test_tools_are_used_so_often_in_one_action(self, rounds: int, calls: int, finish: str) -> None:
        action = generated(Engine(says(ADDS), says(ADDS), says("5.")), agent(tools=True, rounds=rounds))
        assert (len(action.calls), action.finish) == (calls, finish)

    @pytest.mark.parametrize(("tokens", "limits"), [(2, [2]), (3, [3, 1]), (50, [50, 48])])
    def test_its_own_tokens_count_for_its_limit(self, tokens: int, limits: list[int]) -> None:
        made = replace(says("go"), calls=(ToolCall("add"),))
        engine = Engine(made, says("."))
        action = generated(engine, agent(tools=True, sampling=SamplingParams(max_new_tokens=tokens)), PREFIX)
        assert engine.limits == limits
        assert action.finish == ("stop" if len(limits) == 2 else "length")
        assert [one.output for one in action.calls] == ["5, I think"]
        assert bool((action.marks[3:] == TokenSource.TOOL).any()) is (len(limits) == 2)

    @pytest.mark.parametrize("anew", [False, True])
    def test_what_the_context_has_left_is_a_limit_too(self, anew: bool) -> None:
        made = replace(says("go"), calls=(ToolCall("add"),))
        context = len("anew>") if anew else len("prompt>It go[5]")
        for left in (0, 1, 7):
            engine = Engine(made, says("."))
            renderer = Renderer(room=context + left, rewrites=frozenset({0} if anew else ()))
            action = generated(engine, agent(tools=True, output_tokens=1), PREFIX, renderer)
            assert engine.limits == [1000, left][: 2 if left else 1]
            assert action.finish == ("stop" if left else "length")

    def test_a_turn_without_an_end_or_an_agent_without_tools_calls_none(self) -> None:
        assert generated(Engine(says(ADDS, "length")), agent(tools=True)).calls == ()
        assert generated(Engine(says(ADDS)), agent()).calls == ()

    def test_calls_that_the_engine_has_read_are_those_that_count(self) -> None:
        made, read = replace(says(ADDS), calls=()), ToolCall("see")
        assert generated(Engine(made), agent(tools=True)).calls == ()
        (found,) = generated(Engine(replace(made, calls=(read,)), says(".")), agent(tools=True)).calls
        assert found.name == "see"

    def test_what_the_template_cannot_show_fails_the_episode_in_words(self) -> None:
        class Broken(Renderer):
            def tool_call_messages(self, *_: Any) -> Any:
                raise TypeError("no such role")

        with pytest.raises(EpisodeFailedError, match=r"^a: .*no such role") as caught:
            generated(Engine(says(ADDS)), agent(tools=True), renderer=Broken())
        assert caught.value.status == "failed"


class TestHelpers:
    def test_a_turn_goes_on_after_each_reply(self) -> None:
        renderer, counsel = Renderer(spaced=True), Quotes()
        turns = [says("ok?"), says(f"so {ADDS}"), says("no?"), says("5.")]
        engine = Engine(*[replace(one, text=one.text.removesuffix("?")) for one in turns])
        action = generated(engine, agent(tools=True, output_tokens=1), PREFIX, renderer, counsel=counsel)
        assert engine.contexts == [
            "prompt>It ", "prompt>It ok?(yes)", f"prompt>It ok?(yes)so {ADDS}[5]", f"prompt>It ok?(yes)so {ADDS}[5]no?(yes)",
        ]  # fmt: skip
        assert counsel.asked == [
            ("", 0, True), ("ok?(yes)", 0, True), ("", 1, False), ("no?(yes)", 1, True),
        ]  # fmt: skip
        assert action.intermediate_texts == (f"ok?(yes) so {ADDS}",)
        assert action.text == "no?(yes) 5."
        assert renderer.begun == ["It ok?(yes)", "no?(yes)"]
        assert [one.reply for one in action.consultations] == ["(yes)", "(yes)"]
        assert action.teammate_log_probs is not None
        assert action.teammate_log_probs.tolist() == [-7, -8, *[-9] * 10]
        assert spelled(action.tokens[action.teammate_mask]) == "I (yes)(yes)"
        assert action.usage == Usage(2, 4)
        assert {sampling.stop for sampling in engine.samplings} == {("?",)}

    @pytest.mark.parametrize(("tokens", "limits"), [(3, [3]), (4, [4, 1]), (50, [50, 47])])
    def test_its_own_tokens_count_for_its_limit(self, tokens: int, limits: list[int]) -> None:
        engine = Engine(says("ok?"), says("."))
        action = generated(engine, agent(sampling=SamplingParams(max_new_tokens=tokens)), counsel=Quotes())
        assert engine.limits == limits
        assert action.finish == ("stop" if len(limits) == 2 else "length")
        assert bool(action.teammate_mask.any()) is (len(limits) == 2)

    @pytest.mark.parametrize("left", [0, 1, 7])
    def test_what_the_context_has_left_is_a_limit_too(self, left: int) -> None:
        engine = Engine(says("ok?"), says("."))
        action = generated(engine, agent(), PREFIX, Renderer(room=len("prompt>It ok?(yes)") + left), counsel=Quotes())
        assert engine.limits == [1000, left][: 2 if left else 1]
        assert action.finish == ("stop" if left else "length")

    def test_several_may_be_asked_in_one_turn_and_a_question_to_nobody_is_text(self) -> None:
        action = generated(Engine(says("a?"), says("b??"), says("c?"), says("d")), agent(), counsel=Quotes())
        assert action.text == spelled(action.tokens) == "a?(yes)b??c?(yes)d"
        assert [one.place for one in action.consultations] == [len("a?"), len("a?(yes)b??c?")]
        assert action.teammate_log_probs is not None
        assert action.teammate_log_probs.tolist() == [-9.0] * 10

    def test_without_any_an_action_has_no_tokens_of_others(self) -> None:
        action = generated(Engine(says("5.")), agent())
        assert (action.teammate_log_probs, action.usage, action.masks, action.consultations) == (None, None, None, ())
        assert (action.text, action.sees, action.index, action.response_prefix) == ("5.", (), 0, 0)


class TestWhoListens:
    def test_an_action_of_one_text_is_heard_as_it_is_sampled(self) -> None:
        live, renderer = TokenStream(), Renderer()
        engine = Engine(says("5."), says("5."))
        generated(engine, agent(sampling=SamplingParams(stop=("!",))), live=live, renderer=renderer)
        assert engine.samplings[0].on_token is live
        assert live.make_text_stream is not None
        live.make_text_stream()
        generated(engine, agent(thinking="drop"), live=live, renderer=renderer)
        live.make_text_stream()
        assert renderer.live_of == [("p", ("!",), False, False, ""), ("p", (), True, False, "")]

    def test_one_that_may_be_of_several_is_not(self) -> None:
        engine, live = Engine(*[says("5.")] * 4), TokenStream()
        generated(engine, agent(tools=True), live=live)
        generated(engine, agent(), PREFIX, live=live)
        generated(engine, agent(), live=live, counsel=Quotes())
        generated(engine, agent())
        assert [sampling.on_token for sampling in engine.samplings] == [None] * 4
        assert live.make_text_stream is None


class TestAPrefix:
    def test_none_is_empty(self) -> None:
        prefix = build_response_prefix(FakeRenderer(), "p", None)
        kinds = [part.dtype for part in (prefix.tokens, prefix.marks, prefix.log_probs)]
        assert kinds == [np.int32, np.uint8, np.float32]
        assert (len(prefix.tokens), len(prefix.marks), len(prefix.log_probs), prefix.text) == (0, 0, 0, "")

    def test_what_its_authors_wrote_after_a_restart_counts_as_a_teammates(self) -> None:
        class UpToTheEnd(FakeRenderer):
            def response_prefix(self, policy: str, action: Action) -> int:
                assert policy == "p"
                return len(action.tokens) - 1

        marks = (
            TokenSource.SAMPLED, TokenSource.TOOL, TokenSource.TEAMMATE, TokenSource.SAMPLED, TokenSource.TOOL,
            TokenSource.FORCED, TokenSource.SAMPLED,
        )  # fmt: skip
        begins = make_action(tokens=tuple(range(10, 17)), marks=marks, log_probs=(-1.0, -2.0, -3.0), text="so far")
        begins = replace(
            begins,
            teammate_log_probs=np.array([-4.0], np.float32),
            restarts=tuple(PromptReset(at, np.array([1], np.int32), 1, "rewritten") for at in (1, 2)),
        )
        prefix = build_response_prefix(UpToTheEnd(), "p", begins)
        assert prefix.tokens.tolist() == [12, 13, 14, 15]
        teammate = TokenSource.TEAMMATE
        assert prefix.marks.tolist() == [teammate, teammate, TokenSource.TOOL, teammate]
        assert prefix.log_probs.tolist() == [-4.0, -2.0, 0.0]
        assert prefix.text == "so far"

    def test_nothing_begins_with_a_choice(self) -> None:
        chosen = replace(make_action(), choice=Choice((Option(ids("a")),), 0, np.zeros(1, np.float32)))
        with pytest.raises(ValueError, match="0/a/0 was chosen from a list"):
            build_response_prefix(FakeRenderer(), "p", chosen)

    def test_a_turn_of_one_text_shows_it(self) -> None:
        action = generated(Engine(says("is 5.")), agent(), PREFIX, Renderer(spaced=True))
        assert (action.text, action.response_prefix) == ("It  is 5.", 3)


class TestForcedTokens:
    def forced(self, *places: int) -> Action:
        made = Completion(ids("abc"), np.zeros(3, np.float32), "abc", "stop", forced=places)
        return generated(Engine(made), agent(), PREFIX)

    def test_they_are_marked_and_have_no_log_probs(self) -> None:
        action = self.forced(0, 2)
        assert action.marks.tolist()[3:] == [TokenSource.FORCED, TokenSource.SAMPLED, TokenSource.FORCED]
        assert (len(action.log_probs), action.masks) == (1, None)

    def test_of_an_action_without_others_the_last_stands_for_a_decision(self) -> None:
        action = self.forced(0, 1, 2)
        assert action.marks.tolist()[3:] == [TokenSource.FORCED, TokenSource.FORCED, TokenSource.SAMPLED]
        assert action.masks is not None
        assert (action.masks.at.tolist(), action.masks.table) == ([5], (single_token_mask(ord("c")),))

    def test_an_action_may_have_no_tokens(self) -> None:
        action = generated(Engine(says("", "length")), agent())
        assert (len(action.tokens), action.masks, action.finish) == (0, None, "length")

    def test_masks_keep_to_their_tokens(self) -> None:
        made = says("ab", masks=GrammarMasks.from_masks([1], [b"\x06"]), forced=(0,))
        action = generated(Engine(replace(made, calls=(ToolCall("add"),)), made), agent(tools=True, output_tokens=1))
        assert action.masks is not None
        turn = [TokenSource.FORCED, TokenSource.SAMPLED]
        assert action.marks.tolist() == [*turn, *[TokenSource.TOOL] * 3, *turn]
        assert action.masks.at.tolist() == [1, 2 + len("[5]") + 1]


class TestChoices:
    @pytest.mark.parametrize(
        ("normalisation", "values"), [("none", [1.0, 1.0]), ("tokens", [6.0, 1.0]), ("words", [2.0, 1.0])]
    )
    def test_an_option_is_divided_by_its_size(self, normalisation: Any, values: list[float]) -> None:
        request = Request(Observation("?"), options=("yes no", "\n"), normalisation=normalisation)
        options = encode_options(FakeRenderer(), "p", request)
        assert [spelled(option.tokens) for option in options] == ["yes no", "\n"]
        assert [option.normaliser for option in options] == values
        assert encode_options(FakeRenderer(), "p", Request(Observation("?"))) == []

    def test_an_action_is_the_option_that_was_chosen(self) -> None:
        options = [Option(ids("yes")), Option(ids("no"))]
        made = Choice(tuple(options), 1, np.array([-1.0, -0.5], np.float32), Usage(1, 2))

        class Chooses(FakeEngine):
            async def choose(self, *given: Any) -> tuple[Choice, VersionRange]:
                assert given == ("p", prompt, options, who.sampling, KEY)
                return made, VersionRange(1, 2)

        prompt, who = Prompt(ids("prompt>")), agent()
        action = asyncio.run(ActionSampler(Chooses(), FakeRenderer(), who, prompt, KEY).choose(("Yes", "No"), options))
        assert (action.text, spelled(action.tokens), action.marks.tolist()) == ("No", "no", [TokenSource.SAMPLED] * 2)
        assert (action.log_probs.tolist(), action.choice, action.usage) == ([-0.5], made, Usage(1, 2))
        assert (action.key, action.policy, action.profile_version) == (KEY, "p", 3)
        assert (action.index, action.sees, action.finish, action.versions) == (0, (), "stop", VersionRange(1, 2))
        assert action.prompt is prompt.ids

    @pytest.mark.parametrize(
        ("values", "chosen", "fine"),
        [([-1.0, -np.inf], 0, True), ([-1.0, -np.inf], 1, False), ([-1.0, np.nan], 0, False), ([-1.0, -2.0], 1, True)],
    )
    def test_what_was_chosen_must_have_been_possible(self, values: list[float], chosen: int, fine: bool) -> None:
        known = np.array(values, np.float32)
        choice = Choice((Option(ids("a")), Option(ids("b"))), chosen, known)
        action = replace(make_action(tokens=(1,), log_probs=(float(known[chosen]),)), choice=choice)
        if fine:
            check_log_probs(action)
        else:
            with pytest.raises(EpisodeFailedError, match="a sampled a token"):
                check_log_probs(action)

    @pytest.mark.parametrize("value", [np.nan, -np.inf])
    def test_each_token_must_have_been_possible(self, value: float) -> None:
        with pytest.raises(EpisodeFailedError, match="a sampled a token"):
            check_log_probs(make_action(log_probs=(-1.0, value)))
        check_log_probs(make_action(log_probs=(-1.0, 0.0)))


@dataclass
class Served(Renderer):
    """Knows a grammar, and a mark that ends a call."""

    end: str | StopString = ""

    def grammar(self, policy: str, chat: Chat) -> Grammar | None:
        return Grammar("regex", f"{policy} {chat.constraint.kind if chat.constraint else 'none'}")

    def call_end(self, policy: str) -> str | StopString:
        return self.end


class TestClients:
    """Turns of chats that a client brings."""

    def answered(
        self, completion: Completion | Exception, renderer: Renderer | None = None, who: Agent | None = None, **fields: Any
    ) -> tuple[Action, SamplingParams, ChatHistory]:  # fmt: skip
        who, engine = who or agent(), Engine(completion)
        record = ChatHistory(who, renderer or Served(), QuoteTracker())
        chat = Chat(({"role": "user", "content": "?"},), **fields)
        action = asyncio.run(
            ActionSampler(engine, record.renderer, who, Prompt(ids("prompt>")), KEY).answer_chat(record, chat)
        )
        return action, engine.samplings[0], record

    def names(self, completion: Completion, **fields: Any) -> list[str]:
        return [one.name for one in self.answered(completion, **fields)[0].calls]

    def test_a_turn_has_what_room_the_prompt_leaves(self) -> None:
        action, sampling, _ = self.answered(says("5."), Served(room=20))
        assert (sampling.max_new_tokens, sampling.grammar, sampling.stop) == (20 - len("prompt>"), None, ())
        assert (action.text, spelled(action.prompt), action.wishes) == ("5.", "prompt>", "")
        assert self.answered(says("5."), recorded_options={"seed": 3})[0].wishes == '{"seed": 3}'

    def test_an_answer_of_a_form_follows_a_grammar(self) -> None:
        _, sampling, _ = self.answered(says("5."), constraint=Constraint("json"))
        assert sampling.grammar == Grammar("regex", "p json")

    def test_calls_are_the_clients_to_make(self) -> None:
        tools = (TOOL,)
        assert self.names(says(ADDS * 2), tools=tools) == ["add", "add"]
        assert self.names(says(ADDS), tools=tools, parse_calls=False) == []
        assert self.names(says(ADDS)) == []
        assert self.names(says(ADDS, "length"), tools=tools) == []
        assert self.names(says(ADDS, calls=(ToolCall("see"),)), tools=tools) == ["see"]
        assert self.names(says(ADDS, calls=()), tools=tools) == []

    def test_of_calls_that_may_be_one_the_first_with_a_name_is_made(self) -> None:
        unread, add, see = ToolCall("", error=True), ToolCall("add"), ToolCall("see")
        once: dict[str, Any] = {"tools": (TOOL,), "allow_parallel_calls": False}
        assert self.names(says(".", calls=(unread, add, see)), **once) == ["add"]
        assert self.names(says(".", calls=(unread, unread)), **once) == ["", ""]
        assert self.names(says(".", calls=()), **once) == []

    @pytest.mark.parametrize(
        ("end", "begun", "stop"),
        [
            ("", "", ()), ("</call>", "", ("</call>",)), ("</call>", "<think>", ("</call>",)),
            (StopString("</call>", False), "", (StopString("</call>", False),)),
            (StopString("</call>", False), "<think>Hm", (StopString("</call>", True),)),
            (StopString("</call>", True), "Hm</think>", (StopString("</call>", False),)),
        ],
    )  # fmt: skip
    def test_a_turn_of_one_call_ends_with_it(
        self, end: str | StopString, begun: str, stop: tuple[str | StopString, ...]
    ) -> None:
        once: dict[str, Any] = {"tools": (TOOL,), "allow_parallel_calls": False, "prefix": begun}
        assert self.answered(says("."), Served(end=end), **once)[1].stop == stop
        assert self.answered(says("."), Served(end=end), **(once | {"allow_parallel_calls": True}))[1].stop == ()

    def test_calls_are_looked_for_after_what_the_client_began_and_before_a_stop(self) -> None:
        renderer = Served()
        completion = replace(says(f"{ADDS} STOP {ADDS}"), text=f"{ADDS} ")
        assert self.names(completion, renderer=renderer, tools=(TOOL,), stop=("STOP",), prefix="I add") == ["add"]
        assert renderer.begun == ["I add"]
        self.names(says(ADDS), renderer=renderer, tools=(TOOL,))
        assert renderer.begun[1:] == [""]

    def test_a_turn_that_the_client_began_goes_on_with_its_space(self) -> None:
        assert self.answered(says("5."), Served(spaced=True), prefix="It is")[0].text == " 5."
        assert self.answered(says(""), Served(spaced=True), prefix="It is")[0].text == " "
        assert self.answered(says("5."), Served(spaced=True))[0].text == "5."

    def test_it_is_heard_as_it_is_sampled(self) -> None:
        for thinking, tools, begun in (("drop", (TOOL,), "It"), ("keep", (TOOL,), ""), ("keep", (), "")):
            live, renderer = TokenStream(), Served()
            _, sampling, _ = self.answered(
                says("5."), renderer, agent(thinking=thinking), stop=("!",), tools=tools, prefix=begun,
                token_stream=live,
            )  # fmt: skip
            assert live.make_text_stream is not None
            live.make_text_stream()
            assert sampling.on_token is live
            assert renderer.live_of == [("p", ("!",), thinking == "drop", bool(tools), begun)]

    @pytest.mark.parametrize(("form", "why"), [(True, "unsupported"), (False, "failed")])
    def test_a_row_that_fails_refuses_this_chat_alone(self, form: bool, why: str) -> None:
        with pytest.raises(ChatRefusedError, match="no room") as caught:
            self.answered(RowFailedError("no room", grammar_failed=form))
        assert caught.value.reason == why

    def test_tokens_that_were_as_likely_are_told_the_client(self) -> None:
        told: Mapping[str, Any] = {"alternatives": (((ord("6"), -0.5),), ((ord("!"), -1.5),))}
        action, sampling, record = self.answered(says("5.", **told), alternatives=1)
        assert sampling.alternatives == 1
        chat = Chat(({"role": "user", "content": "?"},))
        record.store(record.build_request(chat, []), chat, action)
        assert record.reply(action, pieces=True).alternatives == ((("6", -0.5),), (("!", -1.5),))
        assert record.reply(action, pieces=True).pieces == ("5", ".")
        assert record.reply(action).pieces == ()
