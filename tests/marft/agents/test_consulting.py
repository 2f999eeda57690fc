"""Helpers whom an agent asks in the middle of its turn: what stands there, whose it is, and when there are none."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from marft.agents.game import Attempt, Game
from marft.agents.helpers import Helper, HelperConfig
from marft.agents.play import play
from marft.agents.prompt_messages import PromptTooLongError
from marft.common.errors import EpisodeFailedError
from marft.common.token_data import TokenSource
from marft.common.types import (
    Action,
    ActionKey,
    AgentProfile,
    Completion,
    Episode,
    HelperCallRecord,
    Prompt,
    SamplingParams,
    Task,
    TokenIds,
    strip_helper_replies,
)
from marft.common.usage import Usage
from marft.evaluation.episode_metrics import episode_metrics
from marft.trainer.batching import normalizer
from tests import tools as offered
from tests.fakes import FakeEngine, FakeRenderer, Script, ends, game
from tests.nights import MANY
from tests.tool_games import call, with_tools
from tests.tool_games import run as played_with

HELPERS = {
    kind: Helper(f"{kind}s", AgentProfile(kind, f"You {kind}."), SamplingParams()) for kind in ("verify", "recall")
}
CONSULTING = HelperConfig(HELPERS, "<ask {kind}>{question}</ask>", "<re>{text}</re>", description="You may ask.")


class Stopping(FakeEngine):
    """Says what it is told to, and stops as an engine does: the text leaves the stop out, the tokens do not."""

    def __init__(self, *turns: str, helpers: Mapping[str, str] | None = None, usage: Usage | None = None) -> None:
        super().__init__()
        self.turns, self.helpers, self.used = iter(turns), helpers or {}, usage
        self.samplings: list[tuple[str, SamplingParams, str]] = []

    async def sample(self, policy: str, prompt: Prompt, sampling: SamplingParams, key: ActionKey) -> Completion:
        self.samplings.append((policy, sampling, key.stream))
        self.asked.append((key, bytes(prompt.ids.astype(np.uint8)).decode()))
        said = self.helpers[policy] if policy in self.helpers else next(self.turns)
        ended = [said.find(stop) + len(stop) for stop in sampling.stop if isinstance(stop, str) and stop in said]
        end = min(ended, default=len(said))
        assert end == len(said), f"a turn goes on after {said[:end]!r}"
        tokens = np.frombuffer(said.encode(), np.uint8).astype(np.int32)
        text = next((said.removesuffix(s) for s in sampling.stop if isinstance(s, str) and said.endswith(s)), said)
        usage = self.used if policy in self.helpers else None
        return Completion(tokens, np.linspace(-0.1, -0.9, len(tokens), dtype=np.float32), text, "stop", usage=usage)


def asked(
    *turns: str, questions: int = 2, helpers: Mapping[str, str] | None = None, consulting: HelperConfig = CONSULTING,
    renderer: FakeRenderer | None = None, usage: Usage | None = None, **changes: Any,
) -> tuple[Episode, Stopping]:  # fmt: skip
    """An episode of one agent that says these turns, which end where it asks."""
    engine = Stopping(*turns, helpers=helpers or {"verifys": "No, 7.", "recalls": "Seven."}, usage=usage)
    played: Game = game(Script([ends()]), "solver", engine=engine)
    agent = replace(played.team.agents[0], **changes)
    team = replace(played.team, agents=(agent,), helpers=consulting, helper_callers=frozenset({"solver"}))
    played = replace(played, team=team, renderer=renderer or played.renderer)
    return asyncio.run(play(played, Attempt(Task("t0", "begin"), "train/0", max_helper_calls=questions))), engine


def spelled(action: Action, *marks: TokenSource) -> str:
    return bytes(action.tokens[np.isin(action.marks, marks)].astype(np.uint8)).decode()


class TestATurn:
    TURNS = ("3 + 4 = 8. <ask verify>3 + 4 = 8?</ask>", " So 7.")

    def action(self, **changes: Any) -> Action:
        episode, _ = asked(*self.TURNS, **changes)
        assert episode.error == ""
        return episode.actions[0]

    def test_a_reply_stands_where_it_was_asked_for_and_the_agent_goes_on_from_there(self) -> None:
        action, (_, engine) = self.action(), asked(*self.TURNS)
        assert action.text == "3 + 4 = 8. <ask verify>3 + 4 = 8?</ask><re>No, 7.</re> So 7."
        assert bytes(action.tokens.astype(np.uint8)).decode() == action.text
        assert engine.asked[2][1].endswith("</ask><re>No, 7.</re>")

    def test_it_is_marked_as_somebody_elses(self) -> None:
        action = self.action()
        assert spelled(action, TokenSource.TEAMMATE) == "<re>No, 7.</re>"
        assert spelled(action, TokenSource.SAMPLED) == "".join(self.TURNS)
        assert len(action.log_probs) == len("".join(self.TURNS))

    def test_it_has_its_authors_log_probs_and_the_marks_around_it_count_as_sure(self) -> None:
        known = self.action().teammate_log_probs
        assert known is not None
        of_author = np.linspace(-0.1, -0.9, len("No, 7."), dtype=np.float32)
        np.testing.assert_array_equal(known, np.concatenate([np.zeros(4), of_author, np.zeros(5)]))

    def test_what_was_asked_is_recorded(self) -> None:
        (one,) = self.action().consultations
        assert (one.kind, one.question, one.reply) == ("verify", "3 + 4 = 8?", "<re>No, 7.</re>")
        assert (one.place, one.round, one.tokens, one.error) == (len(self.TURNS[0]), 0, len("No, 7."), "")
        assert self.action().text[one.place :].startswith(one.reply)

    def test_of_an_endless_reply_no_more_is_taken_than_its_tokens_can_hold(self) -> None:
        (one,) = self.action(helpers={"verifys": "x" * 10**6, "recalls": ""}).consultations
        assert set(one.reply[4:-5]) == {"x"}
        assert len(one.reply) <= 64 * max(h.sampling.max_new_tokens for h in CONSULTING.helpers.values()) + len(
            "<re></re>"
        )

    def test_the_agents_own_words_are_without_it(self) -> None:
        action = self.action()
        assert action.agent_text == "".join(self.TURNS)
        assert normalizer(action, "words") == len(action.agent_text.split())
        assert normalizer(action, "tokens") == len("".join(self.TURNS))

    def test_a_helper_sees_the_task_the_turn_and_the_question(self) -> None:
        _, engine = asked(*self.TURNS)
        key, shown = engine.asked[1]
        assert "You verify." in shown
        assert "begin" in shown
        assert "Message from solver:" in shown
        assert shown.rstrip("'}]").endswith("3 + 4 = 8?")
        assert (key.agent, key.stream) == ("solver", "train/0+?1")

    def test_a_helper_may_see_the_question_alone(self) -> None:
        blind = {kind: replace(helper, sees=frozenset[Any]()) for kind, helper in HELPERS.items()}
        _, engine = asked(*self.TURNS, consulting=HelperConfig(blind, CONSULTING.call, CONSULTING.reply))
        shown = engine.asked[1][1]
        assert "begin" not in shown
        assert "Message from" not in shown

    def test_every_text_has_a_random_stream_of_its_own(self) -> None:
        _, engine = asked("<ask recall>x</ask>", "<ask verify>y</ask>", ".")
        assert [stream for _, _, stream in engine.samplings] == [
            "train/0", "train/0+?1", "train/0+1", "train/0+?2", "train/0+2",
        ]  # fmt: skip

    def test_tokens_that_an_agent_may_sample_are_its_own_in_all_its_parts(self) -> None:
        _, engine = asked(*self.TURNS, sampling=SamplingParams(max_new_tokens=60))
        assert [s.max_new_tokens for policy, s, _ in engine.samplings if policy == "solver"] == [
            60, 60 - len(self.TURNS[0])
        ]  # fmt: skip

    def test_one_that_has_no_tokens_left_ends_before_the_reply(self) -> None:
        action = self.action(sampling=SamplingParams(max_new_tokens=len(self.TURNS[0])))
        assert action.finish == "length"
        assert action.text == self.TURNS[0].removesuffix("</ask>")
        assert not action.teammate_mask.any()

    def test_one_whose_context_ends_with_the_reply_ends_before_it(self) -> None:
        whole = self.action()
        reply = len("<re>No, 7.</re>")

        class Short(FakeRenderer):
            room = reply

            def context_length(self, policy: str) -> int:
                return len(whole.prompt) + len(TestATurn.TURNS[0]) + self.room

        assert self.action(renderer=Short()).finish == "length"
        roomy = Short()
        roomy.room += 1
        assert self.action(renderer=roomy).text == whole.text

    def test_a_helper_has_room_for_its_answer(self) -> None:
        reserved = dict[str, int]()

        class Reserving(FakeRenderer):
            def render(self, policy: str, *given: Any, **named: Any) -> Prompt:
                reserved[policy] = named["reserve"]
                return super().render(policy, *given, **named)

        brief = {kind: replace(helper, sampling=SamplingParams(max_new_tokens=9)) for kind, helper in HELPERS.items()}
        self.action(renderer=Reserving(), consulting=replace(CONSULTING, helpers=brief))
        assert reserved["verifys"] == 9

    def test_what_a_remote_helper_takes_counts_as_the_agents(self) -> None:
        assert self.action(usage=Usage(3, 5)).usage == Usage(3, 5)
        assert self.action().usage is None

    def test_metrics_count_questions(self) -> None:
        episode, _ = asked("<ask recall>x</ask>", "<ask verify>y</ask>", ".")
        found = episode_metrics([episode], ["solver"], lambda _: 0)
        assert (found["helper_call_rate"], found["helper_calls"]) == (1.0, 2.0)
        assert found["agents/solver/teammate_tokens"] == len("<re>Seven.</re><re>No, 7.</re>")
        alone, _ = asked("7")
        assert "helper_calls" not in episode_metrics([alone], ["solver"], lambda _: 0)


class TestWhatIsNoQuestion:
    def test_without_a_budget_nobody_is_asked_and_nothing_stops(self) -> None:
        whole = "<ask verify>x</ask> It is 7."
        episode, engine = asked(whole, questions=0)
        assert episode.actions[0].text == whole
        assert engine.samplings[0][1].stop == ()
        assert episode.actions[0].teammate_log_probs is None

    def test_the_budget_is_of_one_action(self) -> None:
        episode, engine = asked("<ask verify>x</ask>", "<ask verify>y</ask> On.", questions=1)
        assert len(episode.actions[0].consultations) == 1
        assert engine.samplings[-1][1].stop == ()

    @pytest.mark.parametrize("turn", ["no beginning</ask>", "<ask nobody>x</ask>", "<ask>x</ask>"])
    def test_what_asks_nobody_is_gone_on_from(self, turn: str) -> None:
        episode, engine = asked(turn, " On.")
        action = episode.actions[0]
        assert action.text == f"{turn} On."
        assert action.consultations == ()
        assert spelled(action, TokenSource.SAMPLED) == action.text
        assert len(engine.asked) == 2

    def test_an_end_without_a_beginning_asks_nothing_that_was_asked_before(self) -> None:
        episode, engine = asked("<ask verify>1</ask>", " and 2</ask>", " On.", questions=5)
        assert [one.question for one in episode.actions[0].consultations] == ["1"]
        assert len(engine.asked) == 4

    def test_a_beginning_that_a_helper_wrote_is_none(self) -> None:
        episode, _ = asked("<ask recall>1</ask>", " 2</ask>", " On.", helpers={"recalls": "<ask recall>"}, questions=5)
        assert [one.question for one in episode.actions[0].consultations] == ["1"]

    def test_what_begins_alike_in_a_question_is_part_of_it(self) -> None:
        consulting = replace(CONSULTING, call="The {kind} is {question}.")
        assert consulting.parse_call("The recall is The end of the story.") == ("recall", "The end of the story")
        assert consulting.parse_call("The recall is: The verify is that so.") == ("verify", "that so")

    def test_an_end_of_the_agents_own_is_its_end(self) -> None:
        episode, _ = asked("<ask verify>x</ask>", sampling=SamplingParams(stop=("</ask>",)))
        assert episode.actions[0].consultations == ()

    def test_agents_that_are_not_named_ask_nobody(self) -> None:
        engine = Stopping("<ask verify>x</ask>")
        played = game(Script([ends()]), "solver", engine=engine)
        team = replace(played.team, helpers=CONSULTING, helper_callers=frozenset({"other"}))
        asyncio.run(play(replace(played, team=team), Attempt(Task("t0", "begin"), "s", max_helper_calls=2)))
        assert len(engine.asked) == 1

    def test_a_helper_that_cannot_be_had_says_nothing_and_the_agent_goes_on(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        says = Stopping.sample

        async def sample(self: Stopping, policy: str, *given: Any) -> Completion:
            if policy == "verifys":
                raise EpisodeFailedError("timed_out", "endpoint: no answer")
            return await says(self, policy, *given)

        monkeypatch.setattr(Stopping, "sample", sample)
        episode, _ = asked("<ask verify>x</ask>", " On.")
        assert (episode.status, episode.actions[0].text) == ("terminated", "<ask verify>x</ask><re></re> On.")
        assert episode.actions[0].consultations[0].error == "endpoint: no answer"

    def test_a_question_that_does_not_fit_is_answered_with_nothing(self) -> None:
        class Narrow(FakeRenderer):
            def render(self, policy: str, *given: Any, **named: Any) -> Prompt:
                if policy == "verifys":
                    raise PromptTooLongError("it has 9,000 tokens")
                return super().render(policy, *given, **named)

        episode, _ = asked("<ask verify>x</ask>", " On.", renderer=Narrow())
        assert episode.actions[0].text == "<ask verify>x</ask><re></re> On."
        assert episode.actions[0].consultations[0].error == "it has 9,000 tokens"


def test_a_helper_with_other_tokens_is_read_in_the_agents_and_counts_as_sure() -> None:
    class Elsewhere(FakeRenderer):
        def shared_tokens(self, policy: str, source_policy: str, tokens: TokenIds, text: str) -> TokenIds | None:
            return None

    episode, _ = asked("<ask recall>x</ask>", ".", renderer=Elsewhere())
    action = episode.actions[0]
    assert spelled(action, TokenSource.TEAMMATE) == "<re>Seven.</re>"
    assert action.teammate_log_probs is not None
    assert not action.teammate_log_probs.any()


def test_thoughts_of_a_helper_are_not_passed_on() -> None:
    episode, _ = asked("<ask recall>x</ask>", ".", helpers={"recalls": "<think>hm</think>Seven."})
    assert episode.actions[0].text == "<ask recall>x</ask><re>Seven.</re>."


@pytest.mark.parametrize(
    ("told", "questions", "says"),
    [("when_available", 1, True), ("when_available", 0, False), ("always", 0, True), ("never", 1, False)],
)
def test_agents_are_told_when_a_recipe_wants_it(told: str, questions: int, says: bool) -> None:
    consulting = replace(CONSULTING, prompt_mode=told)
    _, engine = asked("7", questions=questions, consulting=consulting)
    assert ("You may ask." in engine.asked[0][1]) == says


WORD = st.text(st.sampled_from("ab <>/{}?\\.*"), max_size=8)


@given(before=WORD, question=WORD, kind=st.sampled_from(["verify", "recall"]), mark=st.sampled_from(["?", "*(", "\\d"]))
@examples(max_examples=MANY)
def test_a_question_is_read_back_whatever_the_marks_are(before: str, question: str, kind: str, mark: str) -> None:
    consulting = replace(CONSULTING, call=f"{mark}ask {{kind}}: {{question}};;")
    if ";" in question or mark in question:
        return
    said = before + consulting.call.format(kind=kind, question=question)
    assert consulting.parse_call(said) == (kind, question)


@given(parts=st.lists(st.tuples(WORD, WORD), max_size=4), last=WORD)
def test_own_words_are_what_is_left_without_replies(parts: list[tuple[str, str]], last: str) -> None:
    text, found = "", []
    for own, reply in parts:
        text += own
        found.append(HelperCallRecord("verify", "", reply, len(text)))
        text += reply
    assert strip_helper_replies(text + last, found) == "".join(own for own, _ in parts) + last


class TestWithTools:
    """A turn that asks, and calls a tool, and asks again."""

    TURNS = ("<ask verify>1</ask>", " Then " + call("add", a=1, b=2), " So <ask recall>2</ask>", " done.")

    def action(self, **helpers: str) -> Action:
        engine = Stopping(*self.TURNS, helpers={"verifys": "No.", "recalls": "Yes."} | helpers)
        played = with_tools(engine, offered.add)
        team = replace(played.team, helpers=CONSULTING, helper_callers=frozenset({"a"}))
        return played_with(replace(played, team=team), max_helper_calls=2).actions[0]

    def test_replies_stand_in_their_turns_and_answers_of_tools_between_them(self) -> None:
        action = self.action()
        assert action.intermediate_texts == (f"{self.TURNS[0]}<re>No.</re>{self.TURNS[1]}",)
        assert action.text == f"{self.TURNS[2]}<re>Yes.</re>{self.TURNS[3]}"
        assert [call.output for call in action.calls] == ["3"]
        assert spelled(action, TokenSource.TOOL) == "[3]"
        assert spelled(action, TokenSource.TEAMMATE) == "<re>No.</re><re>Yes.</re>"
        assert spelled(action, TokenSource.SAMPLED) == "".join(self.TURNS)

    def test_each_is_known_by_its_turn_and_place(self) -> None:
        first, second = self.action().consultations
        assert (first.round, first.place, second.round, second.place) == (0, len(self.TURNS[0]), 1, len(self.TURNS[2]))
        assert self.action().agent_texts == (self.TURNS[0] + self.TURNS[1], self.TURNS[2] + self.TURNS[3])

    def test_what_a_helper_writes_calls_no_tool(self) -> None:
        action = self.action(verifys=call("add", a=5, b=5))
        assert [call.output for call in action.calls] == ["3"]
