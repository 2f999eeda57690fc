"""Tools in the game: what agents are told, how they call, and that whatever fails stays where it happened."""

from __future__ import annotations

import asyncio
import functools
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from marft.config.parts import OrganizationPart
from marft.evaluation.metrics import episode_metrics
from marft.game.agents import Agent, Agents
from marft.game.game import Attempt, Game, Replay
from marft.game.play import play
from marft.game.rollout import play_all
from marft.game.team import Team
from marft.game.tool_sources import StatelessSource, ToolSource, ToolUse
from marft.rewards.terms import ToolErrors
from marft.sandbox.runner import isolation_problem
from marft.tools.functions import Functions, FunctionSource, SessionSource
from marft.tools.python import Python
from marft.tools.skills import SkillSource, read_skill
from marft.types import ActionKey, Episode, JointAction, Mark, Observation, Profile, Step, Task, Tool
from tests import tools as offered
from tests.fakes import FakeEngine, Script, ends, game, goes_on

isolated = pytest.mark.skipif(bool(isolation_problem()), reason=f"no isolation here: {isolation_problem()}")


def call(name: str, **arguments: Any) -> str:
    return "CALL" + json.dumps({"name": name, "arguments": arguments})


def says(*turns: str) -> FakeEngine:
    """Says these, one a turn of an action."""

    def say(key: ActionKey, prompt: str) -> str:
        turn = int(key.stream.partition("+")[2] or 0)
        return turns[min(turn, len(turns) - 1)]

    return FakeEngine(say)


def with_tools(engine: FakeEngine, *found: Callable[..., Any] | ToolSource, script: Script | None = None, **limits: Any) -> Game:  # fmt: skip
    """A game of one agent that has these tools."""
    sources = {str(n): f if isinstance(f, ToolSource) else FunctionSource(f) for n, f in enumerate(found)}
    specs = [(tool, name) for name, source in sources.items() for tool in source.tools]
    agent = Agent(
        Profile("a", "You are a.", answers=True, tools=tuple(tool for tool, _ in specs)), "a",
        tool_use=ToolUse({tool.name: name for tool, name in specs}, **{"seconds": 2.0, **limits}),
    )  # fmt: skip
    g = game(script or Script([ends()]), "a", engine=engine)
    return replace(g, team=Team((agent,), g.team.organization), tools=sources)


def run(g: Game, **changes: Any) -> Episode:
    return asyncio.run(play(g, Attempt(**{"task": Task("t0", "begin"), "stream": "train/0", **changes})))


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
            ("tests.test_tools:PARTIAL", "neither a function nor a class"),
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


class TestCalls:
    def test_an_action_goes_on_after_its_tools_have_answered(self) -> None:
        episode = run(with_tools(says("Let me see. " + call("add", a=2, b=3), "It is 5."), offered.add))
        (action,) = episode.actions
        assert (action.text, action.intermediate_texts, action.finish) == (
            "It is 5.", ("Let me see. " + call("add", a=2, b=3),), "stop",
        )  # fmt: skip
        assert [(c.name, c.output, c.error) for c in action.calls] == [("add", "5", False)]
        text = bytes(action.tokens.astype(np.uint8)).decode()
        assert text == action.intermediate_texts[0] + "[5]" + "It is 5."
        tool = np.flatnonzero(action.marks == Mark.TOOL)
        assert bytes(action.tokens[tool].astype(np.uint8)).decode() == "[5]"
        assert action.decisions == len(action.log_probs) == len(action.tokens) - 3

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
        assert action.marks[-1] == Mark.SAMPLED

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
            (call("calls_off"), "asyncio.exceptions.CancelledError"),
            (call("panics"), "tests.tools.PanicError: boom"),
        ],
    )
    def test_it_is_told_to_the_agent_that_goes_on(self, turn: str, told: str) -> None:
        found = (
            offered.raises, offered.blocks, offered.later, offered.add, offered.broken, offered.calls_off, offered.panics,
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
        assert g.threads.given_up == 1

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
        assert g.threads.given_up == 1

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
        assert metrics["tool_rate"] == 1.0
        assert [dict(earned.agents) for earned in ToolErrors().score(episode)] == [{"a": -1.0}]
        assert "tool_calls" not in episode_metrics([run(game(Script([ends()])))], ["a"], lambda _: 0)

    @pytest.mark.slow
    @given(texts=st.lists(st.lists(st.one_of(
        st.sampled_from(["CALL", '{"name": "add"', ', "arguments": ', '{"a": ', "}", '"', "null", "1e999", "\\ud800", "[" * 2000]),
        st.text(st.characters(exclude_categories=["Cs"]), max_size=6),
    ), max_size=8).map("".join), min_size=50, max_size=50))  # fmt: skip
    @examples(max_examples=200)
    def test_ten_thousand_malformed_calls_and_messages_crash_nothing_and_earn_nothing(self, texts: list[str]) -> None:
        """Two agents, the first with a tool: what it writes, garbled, is also what the second reads."""

        def say(key: ActionKey, prompt: str) -> str:
            return texts[key.sample] if key.agent == "a" and "+" not in key.stream else "the end"

        def pays(joint: Any) -> Step:
            assert joint.answer.text == "the end"
            return ends(float(joint.answer.text == "right"))(joint)

        g = with_tools(FakeEngine(say), offered.add)
        reader = Agent(Profile("b", "You are b.", answers=True), "b")
        g = replace(g, team=replace(g.team, agents=(*g.team.agents, reader)), environment=Script([pays]))
        attempts = [Attempt(Task("t0", "begin"), "train/0", sample) for sample in range(len(texts))]
        for episode in asyncio.run(play_all(g, attempts, 50)):
            assert (episode.status, episode.total_reward) == ("terminated", 0.0), episode.error
            for made in (c for action in episode.actions for c in action.calls):
                assert made.error or made.name == "add"
                made.output.encode()
        g.threads.close()


class TestTheStateOfAnEpisode:
    def test_an_object_of_a_class_lives_as_long_as_its_episode(self) -> None:
        offered.Counter.ended.clear()
        g = with_tools(
            says(call("count_up"), call("count_up", by=2) + call("count_up"), "ok"), offered.Counter,
            script=Script([goes_on(), ends()]),
        )  # fmt: skip
        first = run(g)
        assert [c.output for action in first.actions for c in action.calls] == [
            "t0: 1", "t0: 3", "t0: 4", "t0: 5", "t0: 7", "t0: 8",
        ]  # fmt: skip
        assert offered.Counter.ended == ["t0"]
        assert [c.output for c in run(g).actions[0].calls] == ["t0: 1", "t0: 3", "t0: 4"]

    @pytest.mark.slow
    def test_an_object_that_hangs_is_not_asked_again(self) -> None:
        turns = (call("sleep", seconds=60), call("count_up"), "ok")
        (action,) = run(with_tools(says(*turns), offered.Counter, seconds=0.3)).actions
        assert [c.output for c in action.calls] == [
            "sleep took over 0.3 s",
            "RuntimeError: an earlier call still hangs",
        ]

    def test_an_episode_that_is_played_again_brings_its_tools_to_the_same_state(self) -> None:
        g = with_tools(says(call("count_up") + call("draw"), "ok"), offered.Counter, script=Script([goes_on(), ends()]))
        first = run(g)
        served = {first.actions[0].id: first.actions[0]}
        again = run(g, stream="fork", replay=Replay(first.name, first.stream, first.sample, served))
        assert again.status == "terminated", again.error
        assert [c.output for c in again.actions[1].calls] == [c.output for c in first.actions[1].calls]
        assert again.actions[1].calls[0].output == "t0: 2"
        lying = replace(first.actions[0], calls=(replace(first.actions[0].calls[0], output="t0: 9"),))
        failed = run(g, stream="fork", replay=Replay(first.name, first.stream, first.sample, {lying.id: lying}))
        assert failed.status == "failed"
        assert "count_up answers something else than recorded" in failed.error

    def test_calls_that_failed_are_made_again_too(self) -> None:
        g = with_tools(says(call("bump"), "ok"), offered.Moody, script=Script([goes_on(), goes_on(), ends()]))
        first = run(g)
        assert [a.calls[0].output for a in first.actions] == ["OSError: disk full", "2", "3"]
        served = {first.actions[0].id: first.actions[0]}
        again = run(g, stream="fork", replay=Replay(first.name, first.stream, first.sample, served))
        assert [a.calls[0].output for a in again.actions] == ["OSError: disk full", "2", "3"], again.error

    def test_turns_that_agents_took_with_one_object_are_not_played_again_in_another_order(self) -> None:
        class Both(OrganizationPart):
            async def act(self, observation: Observation, agents: Agents) -> JointAction:
                done = await asyncio.gather(agents["a"](observation), agents["b"](observation))
                return JointAction(answer=done[1])

        g = with_tools(
            says(call("count_up"), call("count_up"), "ok"), offered.Counter, script=Script([goes_on(), ends()])
        )
        (one,) = g.team.agents
        other = replace(one, profile=replace(one.profile, role="b"))
        g = replace(g, team=replace(g.team, agents=(one, other), organization=Both()))
        first = run(g)
        assert sorted(c.index for a in first.actions[:2] for c in a.calls) == [1, 2, 3, 4]
        served = {a.id: a for a in first.actions[:2]}
        again = run(g, stream="fork", replay=Replay(first.name, first.stream, first.sample, served))
        assert again.status == "failed"
        assert "agents used '0' in turns" in again.error

    @pytest.mark.slow
    def test_an_object_that_begins_late_ends_with_its_episode_all_the_same(self) -> None:
        offered.SlowToOpen.made.clear()
        g = with_tools(says(call("ping"), call("ping"), "ok"), offered.SlowToOpen, seconds=0.1)
        (action,) = run(g).actions
        assert [c.output for c in action.calls] == ["pong", "pong"]  # opening has a limit of its own
        assert offered.SlowToOpen.made == offered.SlowToOpen.ended == [0]

        async def cancelled() -> None:
            task = asyncio.ensure_future(play(g, Attempt(Task("t1", "begin"), "train/0")))
            await asyncio.sleep(0.15)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        asyncio.run(cancelled())
        time.sleep(0.6)
        assert offered.SlowToOpen.made == offered.SlowToOpen.ended == [0, 1]

    def test_engines_know_that_an_episode_which_ends_makes_room_for_another(self) -> None:
        """Else what is computed together would depend on how long its tools take to end."""

        class Counts(FakeEngine):
            depth = 0

            @contextmanager
            def external_wait(self) -> Iterator[None]:
                self.depth += 1
                yield
                self.depth -= 1

        engine, depths = Counts(says(call("ping"), "ok").say), list[int]()

        class Watched(offered.SlowToOpen):
            def close(self) -> None:
                depths.append(engine.depth)

        run(with_tools(engine, Watched))
        assert depths == [1]

    def test_functions_are_not_called_again(self) -> None:
        g = with_tools(says(call("add", a=1), "ok"), offered.add, script=Script([goes_on(), ends()]))
        first = run(g)
        other = replace(first.actions[0], calls=(replace(first.actions[0].calls[0], output="whatever it was"),))
        again = run(g, stream="fork", replay=Replay(first.name, first.stream, first.sample, {other.id: other}))
        assert again.actions[0].calls[0].output == "whatever it was"

    def test_the_environments_own_session_may_bring_tools(self) -> None:
        source = SessionSource(offered.LampSession)
        assert [tool.name for tool in source.tools] == ["switch"]
        for on in (True, False):
            g = with_tools(says(call("switch", on=on), "done"), source, offered.add)
            episode = run(replace(g, environment=offered.Lamp()))
            assert episode.actions[0].calls[0].output == f"the lamp is {'on' if on else 'off'}"
            assert (episode.status, episode.total_reward) == ("terminated", float(on))
            served = {action.id: action for action in episode.actions}
            fork = Replay(episode.name, episode.stream, episode.sample, served)
            again = run(replace(g, environment=offered.Lamp()), stream="fork", replay=fork)
            assert (again.status, again.total_reward) == ("terminated", float(on))

    def test_no_threads_stay(self) -> None:
        def threads() -> int:
            return sum(thread.name == "marft-session" for thread in threading.enumerate())

        before = threads()
        g = with_tools(says(call("count_up") + call("add", a=1), "ok"), offered.Counter, offered.add)
        for sample in range(20):
            run(g, sample=sample)
        assert threads() - before == 3  # of the environment, the object, and the function
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
        source = Python.model_validate({"limits": {"seconds": 0.5}}).connect()
        (action,) = run(with_tools(says(call("python", code="while True: pass"), "ok"), source, seconds=20)).actions
        assert "[stopped: it ran over" in action.calls[0].output


PARTIAL = functools.partial(offered.add, 1)
SKILL = Path(__file__).parent / "skill_example"


class TestSkills:
    def test_its_instructions_become_the_agents(self) -> None:
        skill = read_skill(str(SKILL))
        assert (skill.name, skill.scripts, skill.texts) == (
            "unit-conversion", ["scripts/convert.py", "scripts/factors.py"], ["table.txt"],
        )  # fmt: skip
        assert skill.profile.startswith("# Skill: unit-conversion\nConvert lengths")
        assert "Always name the unit." in skill.profile

    @isolated
    def test_its_files_are_read_and_its_scripts_run_in_the_sandbox(self) -> None:
        turns = (
            call("unit_conversion_read", file="table.txt"),
            call("unit_conversion_run", script="scripts/convert.py", arguments=["3", "mile"]),
            call("unit_conversion_run", script="../../etc/passwd"),
            "ok",
        )
        (action,) = run(with_tools(says(*turns), SkillSource(read_skill(str(SKILL))), seconds=20)).actions
        outputs = [c.output for c in action.calls]
        assert "mile 1609.344" in outputs[0]
        assert outputs[1] == "4828.03 m"
        assert "script must be one of scripts/convert.py" in outputs[2]

    @pytest.mark.parametrize(
        ("text", "why"),
        [
            (None, "cannot read the skill"),
            ("no header", "must begin with a header"),
            ("---\nname: x\n---\n", "must begin"),
        ],
    )
    def test_a_folder_that_is_none_is_refused(self, tmp_path: Path, text: str | None, why: str) -> None:
        if text is not None:
            (tmp_path / "SKILL.md").write_text(text)
        with pytest.raises(ValueError, match=why):
            read_skill(str(tmp_path))
