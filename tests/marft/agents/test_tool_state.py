"""Tools that keep a state: it lives as long as its episode, and an episode that is played again comes to the same."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from marft.agents.game import Attempt, Replay
from marft.agents.play import play
from marft.agents.tools.functions import SessionSource
from marft.common.types import JointAction, Observation, Task
from marft.config.interfaces.organization import Agents, Organization
from tests import tools as offered
from tests.fakes import FakeEngine, Script, ends, goes_on
from tests.tool_games import call, run, says, with_tools


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
        class Both(Organization):
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
            num_layers = 0

            @contextmanager
            def external_wait(self) -> Iterator[None]:
                self.num_layers += 1
                yield
                self.num_layers -= 1

        engine, depths = Counts(says(call("ping"), "ok").say), list[int]()

        class Watched(offered.SlowToOpen):
            def close(self) -> None:
                depths.append(engine.num_layers)

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
