"""play(): what an episode records, and that whatever fails loses only its own episode."""

from __future__ import annotations

import asyncio
import math
import resource
import time
from typing import Any

import pytest

from marft.agents import loop_threads
from marft.agents.game import Attempt, Game
from marft.agents.organizations import Chain
from marft.agents.play import play, play_all, run_bounded
from marft.common.types import ActionKey, Episode, JointAction, Observation, Step, Task
from marft.config.interfaces.organization import Agents, Organization
from tests.fakes import FakeEngine, Script, ends, game, goes_on

TASK = Task("t0", "begin")


def attempt(**changes: Any) -> Attempt:
    return Attempt(**{"task": TASK, "stream": "train/0", **changes})


def run(g: Game, **changes: Any) -> Episode:
    return asyncio.run(play(g, attempt(**changes)))


class TestEpisodes:
    @pytest.mark.parametrize("text", ["half \ud83d", 7])
    def test_what_cannot_be_stored_is_no_observation(self, text: Any) -> None:
        episode = run(game(Script([ends()], reset=lambda: Observation(text))))
        assert episode.status == "failed"
        assert "which is no whole text" in episode.error

    def test_a_chain_records_who_saw_whom(self) -> None:
        episode = run(game(Script([ends(1.0, success=True)]), "planner", "coder", "tester"))
        assert [a.id for a in episode.actions] == ["0/planner/0", "0/coder/0", "0/tester/0"]
        assert [a.sees for a in episode.actions] == [(), ("0/planner/0",), ("0/planner/0", "0/coder/0")]
        assert (episode.status, episode.total_reward, episode.success) == ("terminated", 1.0, True)

    def test_a_chain_may_show_only_the_previous_action(self) -> None:
        episode = run(game(Script([ends()]), "a", "b", "c", organization=Chain(visible="previous")))
        assert episode.actions[2].sees == ("0/b/0",)

    def test_what_an_agent_is_given_is_in_its_prompt(self) -> None:
        engine = FakeEngine()
        run(game(Script([ends()]), "planner", "coder", engine=engine))
        (_, first), (_, second) = engine.asked
        assert "You are planner." in first
        assert "planner says 0" not in first
        assert "Message from planner:\\nplanner says 0" in second

    def test_several_steps_are_played_and_rewarded_in_turn(self) -> None:
        script = Script([goes_on(0.5, "second"), goes_on(0.25, "third"), ends(2.0, agent_rewards={"b": -1.0})])
        episode = run(game(script, "a", "b"))
        assert [t.reward for t in episode.transitions] == [0.5, 0.25, 2.0]
        assert [t.observation.text for t in episode.transitions] == ["begin", "second", "third"]
        assert [a.id for a in episode.actions][-1] == "2/b/0"
        assert episode.transitions[2].agent_rewards == {"b": -1.0}

    def test_the_answer_is_the_last_action_of_the_agent_who_answers(self) -> None:
        seen: list[str] = []

        def grade(joint: JointAction) -> Step:
            assert joint.answer is not None
            seen.append(joint.answer.text)
            assert [a.agent for a in joint.actions] == ["a", "b"]
            return ends()(joint)

        run(game(Script([grade]), "a", "b"))
        assert seen == ["b says 0"]

    def test_an_organization_may_choose_the_answer_call_an_agent_twice_and_run_agents_at_once(self) -> None:
        class Both(Organization):
            async def act(self, observation: Observation, agents: Agents) -> JointAction:
                drafts = await asyncio.gather(agents.a(observation), agents.b(observation), agents.a(observation))
                await agents.c(observation, sees=drafts)
                return JointAction(answer=drafts[0])

        seen: list[str] = []
        script = Script([lambda j: (seen.append(j.answer.id if j.answer else ""), ends()(j))[1]])
        episode = run(game(script, "a", "b", "c", organization=Both()))
        assert [a.id for a in episode.actions] == ["0/a/0", "0/b/0", "0/a/1", "0/c/0"]
        assert episode.actions[3].sees == ("0/a/0", "0/b/0", "0/a/1")
        assert seen == ["0/a/0"]

    def test_reaching_the_step_limit_truncates(self) -> None:
        episode = run(game(Script([goes_on()] * 9), max_steps=3), record_critic_states=True)
        assert episode.status == "truncated"
        assert len(episode.transitions) == 3
        assert list(episode.bootstrap) == ["a"]

    def test_the_bootstrap_is_the_final_observation_as_every_agent_would_see_it_alone(self) -> None:
        script = Script([goes_on(0.0, "the end", truncated=True)])
        episode = run(game(script, "a", "b"), record_critic_states=True)
        assert list(episode.bootstrap) == ["a", "b"]
        for agent, ids in episode.bootstrap.items():
            text = bytes(ids.astype("uint8")).decode()
            assert f"You are {agent}." in text
            assert "the end" in text
            assert "Message" not in text

    def test_without_a_critic_nothing_is_kept_of_the_end(self) -> None:
        assert run(game(Script([goes_on(0.0, "the end", truncated=True)]), "a")).bootstrap == {}

    def test_the_critic_also_reads_earlier_actions_that_an_agent_did_not_see(self) -> None:
        episode = run(
            game(Script([ends()]), "a", "b", "c", organization=Chain(visible="previous")), record_critic_states=True
        )
        assert [a.state is None for a in episode.actions] == [True, True, False]
        state = bytes(episode.actions[2].state.astype("uint8")).decode()  # type: ignore[union-attr]
        assert "Message from a" in state
        assert "Message from b" in state

    def test_messages_can_be_replaced_to_probe_what_they_are_worth(self) -> None:
        engine = FakeEngine()
        run(game(Script([ends()]), "a", "b", engine=engine), messages={"0/a/0": "something else"})
        assert "something else" in engine.asked[1][1]
        assert "a says 0" not in engine.asked[1][1]

    def test_keys_name_stream_task_sample_step_agent_and_call(self) -> None:
        engine = FakeEngine()
        run(game(Script([goes_on(), ends()]), "a", engine=engine), sample=3)
        assert [key for key, _ in engine.asked] == [
            ActionKey("train/0", "t0", 3, 0, "a", 0), ActionKey("train/0", "t0", 3, 1, "a", 0),
        ]  # fmt: skip

    def test_episodes_come_back_in_the_order_of_their_attempts(self) -> None:
        g = game(Script([ends()]))
        attempts = [attempt(sample=n) for n in range(20)]
        episodes = asyncio.run(play_all(g, attempts, max_live=3))
        assert [e.sample for e in episodes] == list(range(20))

    def test_a_gate_that_is_shared_counts_the_episodes_of_all_who_share_it(self) -> None:
        live, most = 0, 0

        async def begin(one: Attempt) -> Attempt:
            nonlocal live, most
            live += 1
            most = max(most, live)
            await asyncio.sleep(0.001)
            live -= 1
            return one

        async def finish(one: Attempt) -> Episode:
            return Episode(one.task, one.stream, one.sample, (), "terminated")

        async def both() -> list[list[Episode]]:
            gate = asyncio.Semaphore(3)
            some = [[attempt(sample=n) for n in range(6)], [attempt(sample=n) for n in range(6, 12)]]
            return await asyncio.gather(*(run_bounded(gate, each, begin, finish, lambda _: None) for each in some))

        assert [len(episodes) for episodes in asyncio.run(both())] == [6, 6]
        assert most == 3


class TestFailures:
    """None of these is ever a reward of 0."""

    def expect(self, g: Game, status: str, *words: str) -> Episode:
        episode = run(g)
        assert episode.status == status
        assert not episode.is_scored
        for word in words:
            assert word in episode.error
        return episode

    def test_an_environment_that_raises(self) -> None:
        def boom(_: JointAction) -> Step:
            raise KeyError("no such door")

        script = Script([boom])
        episode = self.expect(game(script), "failed", "step() raised KeyError", "no such door", "test_play.py")
        assert len(episode.actions) == 1
        assert script.closed == ["t0"]

    def test_a_thread_on_which_a_session_failed_serves_no_other(self) -> None:
        def boom(_: JointAction) -> Step:
            raise KeyError("no such door")

        for script, idle in ((Script([boom]), 0), (Script([ends()]), 1)):
            g = game(script)
            run(g)
            assert len(g.threads._idle) == idle

    def test_an_environment_whose_reset_raises(self) -> None:
        def boom() -> Observation:
            raise OSError("no server")

        self.expect(game(Script([], reset=boom)), "failed", "reset() raised OSError: no server")

    @pytest.mark.parametrize("reward", [math.nan, math.inf, None, "1"])
    def test_a_reward_that_is_no_finite_number(self, reward: Any) -> None:
        self.expect(game(Script([ends(reward)])), "failed", "gave the team a reward of", "must be finite")

    def test_an_own_reward_that_is_not_finite_or_for_nobody(self) -> None:
        self.expect(game(Script([ends(agent_rewards={"a": math.nan})])), "failed", "gave a a reward of nan")
        self.expect(game(Script([ends(agent_rewards={"x": 1.0})])), "failed", "rewards an agent 'x'")

    def test_an_environment_that_returns_nonsense(self) -> None:
        self.expect(game(Script([lambda _: None])), "failed", "returned NoneType")  # type: ignore[list-item, return-value]
        self.expect(game(Script([], reset=lambda: "text")), "failed", "observed a str")  # type: ignore[arg-type, return-value]

    def test_an_environment_that_blocks_loses_only_its_own_episode(self) -> None:
        def block(_: JointAction) -> Step:
            time.sleep(3)
            return ends()(_)

        g = game(Script([block]), timeout=0.2)
        fine = game(Script([ends()]))

        async def both() -> tuple[Episode, Episode]:
            stuck = asyncio.create_task(play(g, attempt()))
            began = time.perf_counter()
            good = await play(fine, attempt())
            assert time.perf_counter() - began < 1.0
            return await stuck, good

        stuck, good = asyncio.run(both())
        assert stuck.status == "timed_out"
        assert "over 0.2 s" in stuck.error
        assert good.is_scored
        assert g.threads.blocked_threads == 1

    def test_an_environment_that_waits_forever_leaves_a_usable_thread(self) -> None:
        class Waiting(Script):
            def start(self, task: Task, seed: int) -> Any:
                session = super().start(task, seed)

                async def forever(_: JointAction) -> Step:
                    await asyncio.Event().wait()
                    raise AssertionError

                session.step = forever  # type: ignore[method-assign]
                return session

        g = game(Waiting([]), timeout=0.2)
        assert run(g).status == "timed_out"
        assert g.threads.blocked_threads == 0

    def test_more_sessions_than_the_system_allows_are_an_error_that_says_so(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse() -> None:
            raise OSError(24, "Too many open files")

        monkeypatch.setattr(loop_threads, "LoopThread", refuse)
        with pytest.raises(ValueError, match=r"Too many open files.*lower rollout.max_concurrent_episodes"):
            run(game(Script([ends()])))

    def test_a_low_limit_on_open_files_is_raised_as_far_as_the_system_lets_it(self) -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
        try:
            loop_threads.LoopThreadPool()
            assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 512
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    def test_a_close_that_raises_does_not_undo_the_episode(self) -> None:
        def boom() -> None:
            raise RuntimeError("late")

        assert run(game(Script([ends()], close=boom))).is_scored

    def test_an_organization_that_raises(self) -> None:
        class Wrong(Organization):
            async def act(self, observation: Observation, agents: Agents) -> JointAction:
                return JointAction(answer=await agents.plannr(observation))

        self.expect(
            game(Script([ends()]), "planner", organization=Wrong()),
            "failed",
            "no agent 'plannr'",
            "did you mean 'planner'?",
        )

    def test_a_broken_engine_is_not_the_episodes_fault(self) -> None:
        class Broken(FakeEngine):
            async def sample(self, *_: Any) -> Any:
                raise RuntimeError("out of memory")

        with pytest.raises(RuntimeError, match="out of memory"):
            run(game(Script([ends()]), engine=Broken()))


class TestTheEndOfATruncatedEpisode:
    def test_those_who_decided_last_come_first_even_if_nobody_acts_in_the_last_step(self) -> None:
        class Fading(Organization):
            async def act(self, observation: Observation, agents: Agents) -> JointAction:
                if observation.text == "begin":
                    await agents.a(observation)
                if observation.text != "third":
                    await agents.c(observation)
                    await agents.b(observation)
                return JointAction()

        script = Script([goes_on(0.0, "second"), goes_on(0.0, "third"), goes_on()])
        episode = run(game(script, "a", "b", "c", organization=Fading(), max_steps=3), record_critic_states=True)
        assert episode.status == "truncated"
        assert list(episode.bootstrap) == ["c", "b", "a"]

    def test_a_final_observation_that_is_none_fails_the_episode_alone(self) -> None:
        script = Script([lambda _: Step(None, 1.0, truncated=True)])  # type: ignore[arg-type]
        episode = run(game(script, "a"), record_critic_states=True)
        assert episode.status == "failed"
        assert "observed a NoneType" in episode.error
