"""Tools in the game: what agents are told, how they call, and that whatever fails stays where it happened."""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from marft.agents.agents import Agent
from marft.agents.game import Attempt
from marft.agents.play import play_all
from marft.agents.prompt_messages import NO_TOKENS
from marft.agents.tools.functions import Functions, FunctionSource
from marft.agents.tools.python import Python
from marft.common.token_data import TokenSource
from marft.common.types import ActionKey, AgentProfile, JointAction, Observation, Step, Task, TokenIds, Tool, ToolCall
from marft.config.interfaces.organization import Agents, Organization
from marft.config.interfaces.tools import StatelessSource
from marft.evaluation.episode_metrics import episode_metrics
from marft.rewards.terms import ToolErrors
from tests import tools as offered
from tests.fakes import FakeEngine, FakeRenderer, Script, ends, game
from tests.nights import NIGHT
from tests.tool_games import call, isolated, run, says, with_tools


class TestWhatAgentsAreTold:
    def test_the_schema_comes_from_the_signature(self) -> None:
        (tool,) = FunctionSource(offered.describe).tools
        assert (tool.name, tool.description) == ("describe", "What a city is like.")
        assert tool.parameters["required"] == ["city"]
        city, units = tool.parameters["properties"]["city"], tool.parameters["properties"]["units"]
        assert (city["type"], city["description"]) == ("string", "Its English name.")
        assert (units["enum"], units["default"]) == (["metric", "imperial"], "metric")
        assert FunctionSource(offered.add).tools[0].description == "Add two numbers.\n\nThe sum is exact."

    def test_the_methods_of_a_class_are_tools(self) -> None:
        assert sorted(tool.name for tool in FunctionSource(offered.Counter).tools) == ["count_up", "draw", "sleep"]

    @pytest.mark.parametrize(
        ("path", "why"),
        [
            ("tests.tools:no_hint", "'a' needs a type hint"),
            ("tests.tools:any_number", "every argument needs a name"),
            ("tests.tools:nothing", "cannot import"),
            ("tests.tools:Task", "no public methods"),
            ("tests.tools:unresolved", "tool 'unresolved': its type hints"),
            ("tests.tools:opaque", "tool 'opaque': its type hints"),
            ("tests.tools:NoPlan", r"NoPlan\(task, seed\) is how"),
            ("tests.marft.agents.test_tools:PARTIAL", "neither a function nor a class"),
        ],
    )
    def test_what_cannot_be_a_tool_is_refused(self, path: str, why: str) -> None:
        with pytest.raises(ValueError, match=why):
            Functions(call=path)

    def test_a_static_method_has_all_its_arguments(self) -> None:
        (tool,) = FunctionSource(offered.Static).tools
        assert sorted(tool.parameters["properties"]) == ["a", "b"]
        (action,) = run(with_tools(says(call("add", a=1, b=2), "ok"), offered.Static)).actions
        assert action.calls[0].output == "3"


class Hears(FakeRenderer):
    """Notes what calls are said to come after."""

    def __init__(self) -> None:
        self.begun: list[str] = []

    def calls(
        self, policy: str, tokens: TokenIds, tools: Sequence[Tool], begun: TokenIds = NO_TOKENS
    ) -> Sequence[ToolCall]:
        self.begun.append(bytes(begun.astype(np.uint8)).decode())
        return super().calls(policy, tokens, tools)


class TestCalls:
    def test_they_are_read_after_what_a_teammate_began_the_turn_with(self) -> None:
        """Who may have begun a thought, or ended it."""

        class Twice(Organization):
            async def act(self, observation: Observation, agents: Agents) -> JointAction:
                first = await agents.a(observation)
                return JointAction(await agents.a(observation, begins=first))

        renderer = Hears()
        g = replace(with_tools(says(call("add", a=2, b=3), "It is 5."), offered.add), renderer=renderer)
        episode = run(replace(g, team=replace(g.team, organization=Twice())))
        assert not episode.error
        assert renderer.begun == ["", "", f"{call('add', a=2, b=3)}[5]It is 5.", ""]

    def test_an_action_goes_on_after_its_tools_have_answered(self) -> None:
        episode = run(with_tools(says("Let me see. " + call("add", a=2, b=3), "It is 5."), offered.add))
        (action,) = episode.actions
        assert (action.text, action.intermediate_texts, action.finish) == (
            "It is 5.", ("Let me see. " + call("add", a=2, b=3),), "stop",
        )  # fmt: skip
        assert [(c.name, c.output, c.error) for c in action.calls] == [("add", "5", False)]
        text = bytes(action.tokens.astype(np.uint8)).decode()
        assert text == action.intermediate_texts[0] + "[5]" + "It is 5."
        tool = np.flatnonzero(action.marks == TokenSource.TOOL)
        assert bytes(action.tokens[tool].astype(np.uint8)).decode() == "[5]"
        assert action.num_decisions == len(action.log_probs) == len(action.tokens) - 3

    def test_every_turn_has_a_random_stream_of_its_own(self) -> None:
        engine = says(call("add", a=1), "done")
        run(with_tools(engine, offered.add))
        assert [key.stream for key, _ in engine.asked] == ["train/0", "train/0+1"]
        assert engine.asked[1][1] == engine.asked[0][1] + call("add", a=1) + "[2]"

    def test_several_calls_of_one_turn_are_answered_in_order(self) -> None:
        turn = call("later", seconds=0.2) + call("later", seconds=0.2) + call("add", a=1)
        began = time.monotonic()
        (action,) = run(with_tools(says(turn, "ok"), offered.later, offered.add)).actions
        assert [c.output for c in action.calls] == ["later", "later", "2"]
        assert time.monotonic() - began < 0.38  # together, not one after the other

    def test_arguments_are_made_to_fit_or_explained(self) -> None:
        turns = (call("add", a="4"), call("add", a="four"), call("add", b=1), call("add", a=1, c=2), "ok")
        (action,) = run(with_tools(says(*turns), offered.add)).actions
        outputs = [c.output for c in action.calls]
        assert outputs[0] == "5"
        assert "a: Input should be a valid integer" in outputs[1]
        assert "a: Field required" in outputs[2]
        assert "c: Extra inputs are not permitted" in outputs[3]
        assert [c.error for c in action.calls] == [False, True, True, True]

    def test_results_are_json_where_they_are_more_than_a_word(self) -> None:
        (action,) = run(with_tools(says(call("describe", city="Ulm"), "ok"), offered.describe)).actions
        assert action.calls[0].output == '{"city": "Ulm", "units": "metric", "grüße": [1.5, null]}'

    def test_an_agent_has_its_own_tools_and_no_others(self) -> None:
        (action,) = run(with_tools(says(call("ad", a=1), call("describe", city="x"), "ok"), offered.add)).actions
        assert "no tool is called 'ad'; did you mean 'add'?" in action.calls[0].output
        assert "no tool is called 'describe'" in action.calls[1].output

    def test_an_agent_that_never_stops_calling_is_stopped(self) -> None:
        (action,) = run(with_tools(says(call("add", a=1)), offered.add, rounds=3)).actions
        assert len(action.calls) == 3
        assert action.finish == "length"
        assert action.marks[-1] == TokenSource.SAMPLED

    def test_all_turns_share_one_budget_of_tokens(self) -> None:
        g = with_tools(says(call("add", a=1)), offered.add, rounds=100)
        (agent,) = g.team.agents
        agent = replace(agent, sampling=replace(agent.sampling, max_new_tokens=150))
        (action,) = run(replace(g, team=replace(g.team, agents=(agent,)))).actions
        assert action.finish == "length"
        assert len(action.calls) == 150 // len(call("add", a=1)) + 1

    def test_only_so_many_calls_are_made_in_one_turn(self) -> None:
        before = threading.active_count()
        g = with_tools(says(call("add", a=1) * 200, "ok"), offered.add, calls=10)
        (action,) = run(g).actions
        assert [c.error for c in action.calls] == [False] * 10 + [True] * 190
        assert "too many calls in one turn" in action.calls[-1].output
        assert threading.active_count() - before <= 12
        g.threads.close()

    def test_long_answers_are_cut(self) -> None:
        (action,) = run(with_tools(says(call("shouts", words=100), "ok"), offered.shouts, output_tokens=20)).actions
        assert action.calls[0].output == ("word " * 4)


class TestWhatGoesWrong:
    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("turn", "told"),
        [
            (call("raises", what="fly"), "ValueError: cannot fly ?"),
            (call("raises", what="exit"), "SystemExit: 3"),
            (call("raises", what="interrupt"), "KeyboardInterrupt"),
            (call("blocks", seconds=30), "blocks took over 0.3 s"),
            (call("later", seconds=30), "later took over 0.3 s"),
            ("CALL{oops", "this call could not be read"),
            ('CALL{"name": "add", "arguments": "[1"}', "no valid JSON"),
            ('CALL{"name": "add", "arguments": [1]}', "must be a JSON object"),
            (call("broken"), "half ? character"),
            (call("cancels"), "asyncio.exceptions.CancelledError"),
            (call("panics"), "tests.tools.PanicError: boom"),
        ],
    )
    def test_it_is_told_to_the_agent_that_goes_on(self, turn: str, told: str) -> None:
        found = (
            offered.raises, offered.blocks, offered.later, offered.add, offered.broken, offered.cancels, offered.panics,
        )  # fmt: skip
        episode = run(with_tools(says(turn, "I see."), *found, seconds=0.3))
        assert (episode.status, episode.total_reward) == ("terminated", 1.0)
        (action,) = episode.actions
        assert told in action.calls[0].output
        assert action.text == "I see."

    @pytest.mark.slow
    def test_a_tool_that_blocks_for_ever_costs_only_its_own_episode_time(self) -> None:
        def say(key: ActionKey, prompt: str) -> str:
            slow = key.sample == 0 and "+" not in key.stream
            return call("blocks", seconds=60) if slow else "fast" if "+" not in key.stream else "slow"

        g = with_tools(FakeEngine(say), offered.blocks, seconds=0.5)
        attempts = [Attempt(Task("t0", "begin"), "train/0", sample) for sample in range(20)]
        done: list[tuple[int, float]] = []
        began = time.monotonic()
        episodes = asyncio.run(
            play_all(g, attempts, 20, lambda episode: done.append((episode.sample, time.monotonic() - began)))
        )
        assert all(episode.status == "terminated" for episode in episodes)
        assert done[-1][0] == 0
        assert all(seconds < 0.5 for _, seconds in done[:-1])
        assert g.threads.blocked_threads == 1

    def test_a_source_that_answers_no_text_is_read_all_the_same(self) -> None:
        class Odd(StatelessSource):
            tools = (Tool("odd", "Odd."),)

            async def call(self, tool: str, arguments: Mapping[str, Any]) -> str:
                return None  # type: ignore[return-value]

        (action,) = run(with_tools(says(call("odd"), "ok"), Odd())).actions
        assert action.calls[0].output == "None"

    def test_a_call_that_will_not_be_cancelled_keeps_its_thread_to_itself(self) -> None:
        g = with_tools(says(call("stubborn"), "ok"), offered.stubborn, seconds=0.2)
        assert run(g).actions[0].calls[0].error
        assert g.threads.blocked_threads == 1

    def test_environments_that_raise_what_is_no_exception_lose_only_their_episode(self) -> None:
        def off(_: Any) -> Step:
            raise asyncio.CancelledError

        def panic(_: Any) -> Step:
            raise offered.PanicError("boom \ud83d")

        for step in (off, panic):
            episode = run(game(Script([step])))
            assert episode.status == "failed"
            episode.error.encode()

    def test_errors_are_counted_and_may_be_priced(self) -> None:
        episode = run(with_tools(says("CALL{", call("add", a=1), "ok"), offered.add))
        metrics = episode_metrics([episode], ["a"], lambda _: 0)
        assert (metrics["tool_calls"], metrics["tool_errors"], metrics["agents/a/tool_errors"]) == (2, 1, 1)
        assert metrics["tool_use_rate"] == 1.0
        assert [dict(earned.agents) for earned in ToolErrors().score(episode)] == [{"a": -1.0}]
        assert "tool_calls" not in episode_metrics([run(game(Script([ends()])))], ["a"], lambda _: 0)

    @pytest.mark.slow
    @given(texts=st.lists(st.lists(st.one_of(
        st.sampled_from(["CALL", '{"name": "add"', ', "arguments": ', '{"a": ', "}", '"', "null", "1e999", "\\ud800", "[" * 2000]),
        st.text(st.characters(exclude_categories=["Cs"]), max_size=6),
    ), max_size=8).map("".join), min_size=50, max_size=50))  # fmt: skip
    @examples(max_examples=40)
    @pytest.mark.skipif(not NIGHT, reason="thousands: make nightly")
    def test_thousands_of_malformed_calls_and_messages_crash_nothing_and_earn_nothing(self, texts: list[str]) -> None:
        """Two agents, the first with a tool: what it writes, garbled, is also what the second reads."""

        def say(key: ActionKey, prompt: str) -> str:
            return texts[key.sample] if key.agent == "a" and "+" not in key.stream else "the end"

        def pays(joint: Any) -> Step:
            assert joint.answer.text == "the end"
            return ends(float(joint.answer.text == "right"))(joint)

        g = with_tools(FakeEngine(say), offered.add)
        reader = Agent(AgentProfile("b", "You are b.", answers=True), "b")
        g = replace(g, team=replace(g.team, agents=(*g.team.agents, reader)), environment=Script([pays]))
        attempts = [Attempt(Task("t0", "begin"), "train/0", sample) for sample in range(len(texts))]
        for episode in asyncio.run(play_all(g, attempts, 50)):
            assert (episode.status, episode.total_reward) == ("terminated", 0.0), episode.error
            for made in (c for action in episode.actions for c in action.calls):
                assert made.error or made.name == "add"
                made.output.encode()
        g.threads.close()


@isolated
class TestTheSandboxAsATool:
    def test_a_program_runs_and_its_output_is_read(self) -> None:
        source = Python().connect()
        turns = (call("python", code="print(6 * 7)"), call("python", code="1 / 0"), call("python", kode=1), "ok")
        (action,) = run(with_tools(says(*turns), source, seconds=20)).actions
        outputs = [c.output for c in action.calls]
        assert outputs[0] == "42"
        assert "ZeroDivisionError" in outputs[1]
        assert "[exit status 1]" in outputs[1]
        assert "code must be a string" in outputs[2]

    def test_what_runs_too_long_is_stopped(self) -> None:
        source = Python.model_validate({"limits": {"timeout_seconds": 0.5}}).connect()
        (action,) = run(with_tools(says(call("python", code="while True: pass"), "ok"), source, seconds=20)).actions
        assert "[stopped: it ran over" in action.calls[0].output


PARTIAL = functools.partial(offered.add, 1)
