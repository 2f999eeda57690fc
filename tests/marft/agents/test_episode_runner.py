"""What an episode's run does with a program's outcome, with declarations and with a session at its end."""

from __future__ import annotations

import asyncio

from marft.agents.agents import ExternalContext, Grade, Outcome, TeamAgents
from marft.agents.game import Attempt
from marft.agents.play import play
from marft.common.types import JointAction, Observation, Step, StepInfo
from marft.config.interfaces.organization import Agents
from tests.fakes import Script, ScriptSession, ends, game, goes_on
from tests.marft.agents.test_turns import TASK, Doing, doing, run


class TestOutcomes:
    def test_a_programs_answer_and_grade_hold_for_their_step_alone(self) -> None:
        async def act(observation: Observation, agents: Agents) -> JointAction:
            action = await agents.a(observation)
            if action.step == 0:
                return Outcome(text="42", grade=Grade(0.25, agent_rewards={"a": 2.0}))
            return JointAction(answer=action)

        answers: list[str] = []

        def step(joint: JointAction) -> Step:
            assert joint.answer is not None
            answers.append(joint.answer.text)
            return (ends() if len(answers) == 2 else goes_on())(joint)

        episode = run(game(Script([step, step]), "a", organization=Doing(act)))
        assert answers == ["42", "a says 1"]
        assert [(t.reward, t.agent_rewards) for t in episode.transitions] == [(0.25, {"a": 2.0}), (1.0, {})]

    def test_an_organization_may_hold_the_run_and_has_its_threads_and_renderer(self) -> None:
        found: list[ExternalContext] = []

        async def act(observation: Observation, agents: Agents) -> JointAction:
            assert isinstance(agents, TeamAgents)
            found.append(agents.external_context())
            return JointAction(answer=await agents.a(observation))

        g = doing(act)
        run(g)
        assert (found[0].external_wait, found[0].threads, found[0].renderer) == (
            g.engine.external_wait, g.threads, g.renderer
        )  # fmt: skip


def test_a_transition_keeps_what_its_step_declared() -> None:
    episode = run(game(Script([goes_on(info={"progress": 0.5}), ends(info={"progress": 1.0})]), "a"))
    assert [transition.declared for transition in episode.transitions] == [StepInfo(0.5), StepInfo(1.0)]


def test_a_session_that_was_too_slow_is_closed_before_the_episode_ends() -> None:
    """Its thread answers again as soon as the call is canceled."""

    class Slow(ScriptSession):
        async def step(self, actions: JointAction) -> Step:
            await asyncio.sleep(60)
            return await super().step(actions)

    class Waiting(Script):
        def start(self, task: object, seed: int) -> ScriptSession:
            return Slow(self, TASK)

    script = Waiting([ends()])

    async def played() -> tuple[str, list[str]]:
        episode = await play(game(script, "a", timeout=0.05), Attempt(TASK, "train/0"))
        return episode.status, list(script.closed)

    assert asyncio.run(played()) == ("timed_out", [TASK.id])
