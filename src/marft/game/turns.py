"""The team's side of one episode: seats ask here, and every action is recorded."""

from __future__ import annotations

import asyncio
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from marft.game.agents import Agent, Agents, Request
from marft.game.game import Attempt, EpisodeFailedError, Game
from marft.game.hearing import Heard, hear, listen, render, tokens_of
from marft.game.rendering import Cut
from marft.game.speaking import choose, opening_of, options_of, write
from marft.game.tools import ToolBelt
from marft.seeds import derive_seed
from marft.texts import raised, storable
from marft.types import (
    Action,
    ActionKey,
    Episode,
    Fork,
    JointAction,
    Observation,
    Prompt,
    Status,
    Step,
    TokenIds,
    Transition,
)

NOT_THE_SAME = (
    "something else than recorded; the environment or the organization does not do the same again under the same seed"
)


class Turns:
    """The team's side of one episode: seats ask here, and every action is recorded."""

    def __init__(self, game: Game, attempt: Attempt) -> None:
        self.game, self.attempt = game, attempt
        self.actions: dict[int, Action] = {}  # by the order asked for
        self.transitions: list[Transition] = []
        self.success: bool | None = None
        self.final_prompts: dict[str, TokenIds] = {}  # by agent: the end of a truncated episode
        self.first_fresh = ""  # id of the first action that was sampled and not served
        self._given: dict[int, tuple[Observation, Sequence[Heard], int]] = {}  # by index: what it was made from, room
        self._acting: int | None = None  # the step in which agents may be asked
        self._engine_failure: Exception | None = None
        self._asked = 0
        self._calls: Counter[str] = Counter()
        self._began = time.perf_counter()
        origin = attempt.replay or attempt
        seed = derive_seed(game.seed, "tools", origin.stream, attempt.task.id, origin.sample)
        self.belt = ToolBelt(game.tools, game.host, game.engine, attempt.task, seed)

    async def act(self, observation: Observation) -> JointAction:
        """Let the organization act once; fill in the actions and the default answer."""
        check_observation(observation)
        self._check_replayed(observation)
        if self.game.watcher:
            self.game.watcher.observed(observation)
        self._calls.clear()
        first = self._asked
        self._acting = step = len(self.transitions)
        try:
            seats = Agents(self.game.team.agents, partial(self._ask, step))
            joint: Any = await self.game.team.organization.act(observation, seats)
        except EpisodeFailedError:
            raise
        except Exception as error:
            if self._engine_failure:
                raise self._engine_failure from error  # ours, however the organization has wrapped it
            raise EpisodeFailedError("failed", f"the organization raised {describe(error)}") from error
        finally:
            self._acting = None
        if self._engine_failure:
            raise self._engine_failure  # an organization cannot go on without an action that it asked for
        if not isinstance(joint, JointAction):
            name = type(joint).__name__
            raise EpisodeFailedError("failed", f"the organization returned {name}, not marft.types.JointAction")
        done = [self.actions[index] for index in range(first, self._asked) if index in self.actions]
        if self.attempt.critic_states:
            done = [self._with_state(action, done) for action in done]
            self.actions.update({action.index: action for action in done})
        return JointAction(joint.answer or self._default_answer(done), tuple(done))

    async def _ask(self, step: int, agent: Agent, request: Request) -> Action:
        self._check_acting(step, agent)
        call, index = self._calls[agent.role], self._asked  # fixed before anything is awaited
        self._calls[agent.role] += 1
        self._asked += 1
        key = ActionKey(
            self.attempt.stream, self.attempt.task.id, self.attempt.sample, len(self.transitions), agent.role, call
        )
        heard = listen(self.game.team.channel, self.attempt.messages, request.sees)
        opening = opening_of(self.game.renderer, agent.policy, request.begins)
        options = options_of(self.game.renderer, agent.policy, request)
        longest = max((len(option.tokens) for option in options), default=agent.sampling.max_new_tokens)
        room = len(opening.tokens) + longest
        self._given[index] = request.observation, heard, room
        prompt = render(self.game.renderer, agent, request.observation, heard, room)
        served = self._serve(f"{key.step}/{agent.role}/{call}", prompt)
        if served is not None:
            await self._call_again(agent, served)
            self.actions[index] = replace(served, index=index)
            return self.actions[index]
        self.first_fresh = self.first_fresh or f"{key.step}/{agent.role}/{call}"
        if self.game.watcher:
            self.game.watcher.asked(agent.role, [one.message for one in heard])
        started = time.perf_counter() - self._began
        try:
            made = await (
                choose(self.game.engine, agent, request, prompt, options, key)
                if options
                else write(self.game.engine, self.game.renderer, self.belt, agent, prompt, opening, key)
            )
        except Exception as error:
            if step == self._acting:
                self._engine_failure = error
            raise
        self._check_acting(step, agent)
        whole = made.choice.log_probs if made.choice else made.log_probs
        if not np.isfinite(made.log_probs).all() or np.isnan(whole).any():
            raise EpisodeFailedError("failed", f"{agent.role} sampled a token whose log-prob is not a finite number")
        tokens = tokens_of(self.game.renderer, agent.policy, heard)
        if request.begins:
            tokens.setdefault(request.begins.id, 0)
        action = replace(
            made,
            index=index,
            sees=tuple(tokens),
            message_tokens=tuple(tokens.values()),
            cut=prompt.cut,
            started=started,
            ended=time.perf_counter() - self._began,
        )
        self.actions[index] = action
        if self.game.watcher:
            self.game.watcher.acted(action)
        return action

    def _check_acting(self, step: int, agent: Agent) -> None:
        if step != self._acting:
            branch = asyncio.current_task()
            if branch is not None:  # nobody waits for it any more, and asyncio would complain to the terminal
                branch.add_done_callback(lambda task: task.cancelled() or task.exception())
            raise EpisodeFailedError("failed", f"{agent.role} acts after act() has ended; await all that it starts")

    def _check_replayed(self, observation: Observation) -> None:
        replay, step = self.attempt.replay, len(self.transitions)
        if replay and step < len(replay.observations) and observation.text != replay.observations[step]:
            raise EpisodeFailedError("failed", f"replaying step {step}: the environment shows {NOT_THE_SAME}")

    def _serve(self, name: str, prompt: Prompt) -> Action | None:
        """The recorded action of that id, if one is to be served."""
        replay = self.attempt.replay
        if replay is None:
            return None
        recorded = replay.actions.get(name)
        expected = replay.prompt if name == replay.at else recorded.prompt if recorded else None
        if expected is not None and not np.array_equal(expected, prompt.ids):
            if self.first_fresh:
                return None  # what was sampled anew has changed what this agent sees
            raise EpisodeFailedError("failed", f"replaying {name}: the agent sees {NOT_THE_SAME}")
        return recorded

    async def _call_again(self, agent: Agent, served: Action) -> None:
        """Bring tools with a state to where they were after a recorded action."""
        made = await self.belt.repeat(agent.tool_use, served.calls) if served.calls else []
        for call, again in zip(served.calls, made, strict=True):
            output = self.game.renderer.clip(agent.policy, again.output, agent.tool_use.output_tokens)
            if output != call.output:
                raise EpisodeFailedError("failed", f"replaying {served.id}: {call.name} answers {NOT_THE_SAME}")

    def _with_state(self, action: Action, done: Sequence[Action]) -> Action:
        """Add what the critic reads: the prompt with the step's earlier actions that the agent did not see."""
        unseen = [other for other in done if other.index < action.index and other.id not in action.sees]
        if not unseen:
            return action
        observation, heard, room = self._given[action.index]
        everything = sorted(
            [*heard, *(hear(self.attempt.messages, other) for other in unseen)], key=lambda one: one.action.index
        )
        return replace(action, state=self._read(self.game.team.agent(action.agent), observation, everything, room))

    def _read(self, agent: Agent, observation: Observation, heard: Sequence[Heard], room: int) -> TokenIds:
        """What a critic reads in the place of an agent."""
        try:
            return render(self.game.renderer, agent, observation, heard, room).ids
        except EpisodeFailedError:  # it may be longer than the agent's prompt; the critic then reads what fits
            return render(self.game.renderer, replace(agent, cut=Cut()), observation, heard, room).ids

    def _default_answer(self, done: Sequence[Action]) -> Action | None:
        answering = {agent.role for agent in self.game.team.agents if agent.profile.answers}
        return next((action for action in reversed(done) if action.agent in answering), None)

    def record(self, observation: Observation, step: Step) -> None:
        rewards = {role: float(reward) for role, reward in step.agent_rewards.items()}
        self.transitions.append(Transition(observation, float(step.reward), rewards))
        self.success = step.success if step.success is not None else self.success

    def bootstrap(self, observation: Observation) -> None:
        """Keep the final observation as each agent that has decided would see it, alone: those of the last step in
        which anybody did first, in the order asked."""
        if self.attempt.critic_states and self.actions:
            check_observation(observation)
            for action in sorted(self.actions.values(), key=lambda action: (-action.step, action.index)):
                agent = self.game.team.agent(action.agent)
                if agent.role not in self.final_prompts:
                    room = agent.sampling.max_new_tokens
                    self.final_prompts[agent.role] = self._read(agent, observation, (), room)

    def episode(self, status: Status, error: str) -> Episode:
        return Episode(
            task=self.attempt.task,
            stream=self.attempt.stream,
            sample=self.attempt.sample,
            actions=tuple(self.actions[index] for index in sorted(self.actions)),
            status=status,
            transitions=tuple(self.transitions),
            success=self.success,
            error=error,
            bootstrap=self.final_prompts,
            seconds=time.perf_counter() - self._began,
            fork=Fork(replay.origin, replay.at or self.first_fresh) if (replay := self.attempt.replay) else None,
        )


def check_observation(observation: Any) -> None:
    """An environment that shows something else than an observation fails its episode."""
    if not isinstance(observation, Observation):
        raise EpisodeFailedError(
            "failed", f"the environment observed a {type(observation).__name__}, not an Observation"
        )
    if not isinstance(observation.text, str) or storable(observation.text) != observation.text:
        raise EpisodeFailedError(
            "failed", f"the environment observed {ascii(observation.text)[:200]}, which is no whole text"
        )


def describe(error: BaseException) -> str:
    """``ValueError: boom (environment.py:12)``: what was raised, and where."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename.rpartition('/')[2]}:{frames[-1].lineno})" if frames else ""
    return raised(error) + where
