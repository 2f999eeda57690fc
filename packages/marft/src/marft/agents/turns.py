"""The team's side in one episode: agent handles send requests here, and the runner records every action."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import numpy as np

from marft.agents.agents import Agent, Agents, Excerpt, Outside, Request
from marft.agents.chat import Chat, ChatRefusedError, Reply
from marft.agents.chat_record import ChatRecord
from marft.agents.communication import Heard, hear, listen, render
from marft.agents.consulting import Counsel
from marft.agents.game import Attempt, Game
from marft.agents.generation import answer, check_log_probs, choose, generate, options_of, response_prefix_of
from marft.agents.live import Begun
from marft.agents.loop_threads import cancelled
from marft.agents.memory import Asked, Memory
from marft.agents.organizing import close_after, open_for
from marft.agents.outcome import Outcome
from marft.agents.quoting import Quoting
from marft.agents.reading import RefusedError, whole
from marft.agents.rendering import Cut
from marft.agents.tool_belt import ToolBelt
from marft.common.declared import Declared
from marft.common.errors import EpisodeFailedError
from marft.common.faults import described
from marft.common.seeds import derive_seed
from marft.common.texts import LONGEST, cut, name_of, storable
from marft.common.types import (
    Action,
    Episode,
    Fork,
    JointAction,
    Observation,
    Prompt,
    Status,
    Step,
    TokenIds,
    Transition,
)  # fmt: skip

GRACE_SECONDS = 0.5  # grace period in seconds for a cancelled organization to end
NOT_THE_SAME = (
    "something else than recorded; the environment or the organization does not do the same again under the same seed"
)


class Turns:
    """Episode runner for the team: agent handles send requests here, and every action is recorded."""

    def __init__(self, game: Game, attempt: Attempt) -> None:
        self.game, self.attempt = game, attempt
        self.actions: dict[int, Action] = {}  # by order of the requests
        self.transitions: list[Transition] = []
        self.success: bool | None = None
        self.final_prompts: dict[str, TokenIds] = {}  # by agent: prompt after a truncated episode, for bootstrapping
        self.first_fresh = ""  # id of the first sampled action, as opposed to served ones
        # by index: (observation, prompt request, reserved tokens)
        self._given: dict[int, tuple[Observation, Asked, int]] = {}
        self._handed: dict[int, Action] = {}  # by identity: actions returned to the organization
        self._acting: int | None = None  # step in which agents may act; None between steps
        self._under_way = self._asked = 0  # actions in progress; actions requested so far
        # first failure of an action: no organization can continue without the action
        self._failure: Exception | None = None
        self._calls: Counter[str] = Counter()
        self._began, self._began_at = time.perf_counter(), time.time()
        origin = attempt.replay or attempt
        seed = derive_seed(game.seed, "tools", origin.stream, attempt.task.id, origin.sample)
        self.belt = ToolBelt(game.tools, game.threads, game.engine, attempt.task, seed, attempt.plants)
        self.organization = game.team.organization
        self._memories = {
            agent.role: Memory(agent, game.renderer, game.team.channel, partial(attempt.heard, agent.role))
            for agent in game.team.agents
            if agent.memory == "own"
        }
        self._chats: dict[str, ChatRecord] = {}  # by role: chats with an organization's program
        self._quoting = Quoting()  # quote attribution for the same programs
        self._outcome = Outcome()

    def open(self) -> None:
        """Open an organization for the episode if the team's organization keeps state.

        Raises:
            EpisodeFailedError: the organization could not be opened.
        """
        origin = self.attempt.replay or self.attempt
        seed = derive_seed(self.game.seed, "organization", origin.stream, self.attempt.task.id, origin.sample)
        self.organization = open_for(self.game.team.organization, self.attempt.task, seed)

    def close(self) -> None:
        """Close the episode's organization. A failure is counted and does not change the episode's outcome."""
        if not close_after(self.game.team.organization, self.organization):
            self.game.threads.not_closed += 1

    async def act(self, observation: Observation) -> JointAction:
        """Let the organization act once; return the joint action with all actions and the default answer filled in.

        Raises:
            EpisodeFailedError: the organization or one of its actions failed.
        """
        self._check_replayed(observation)
        if self.game.watcher:
            self.game.watcher.observed(observation)
        self._calls.clear()
        first = self._asked
        self._acting = step = len(self.transitions)
        try:
            joint = await self._organized(step, observation)
        except EpisodeFailedError:
            raise
        except BaseException as error:
            if cancelled():
                raise
            if self._failure:
                raise self._failure from error  # our own error, even if the organization wrapped it
            who = f"the organization {name_of(self.organization)}"
            raise EpisodeFailedError("failed", f"{who} raised {described(error)}") from error
        finally:
            self._acting = None
        if self._failure:
            raise self._failure  # an organization cannot continue without an action that it requested
        done = [self.actions[index] for index in range(first, self._asked) if index in self.actions]
        if self.attempt.critic_states:
            done = [self._with_state(action, done) for action in done]
            self.actions.update({action.index: action for action in done})
        key = self.attempt.key(step)
        worded = self._outcome.answer_among(done, key)
        return JointAction(joint.answer or worded or self._default_answer(done), tuple(done))

    async def _organized(self, step: int, observation: Observation) -> JointAction:
        """Return the organization's joint action for an observation.

        An organization that waits for no agent is cancelled after the timeout for environment calls.
        """
        acting = asyncio.ensure_future(self._acted(step, observation))
        limit = None if getattr(self.organization, "own_timeout", False) else self.game.timeout
        try:
            while not acting.done():
                idle, asked = self._under_way == 0, self._asked
                await asyncio.wait([acting], timeout=limit)
                if not acting.done() and idle and self._asked == asked:
                    who = f"the organization {name_of(self.organization)}"
                    raise EpisodeFailedError("timed_out", f"{who} waited over {self.game.timeout:g} s for no agent")
        finally:
            if not acting.done():
                acting.cancel()
                await asyncio.wait([acting], timeout=GRACE_SECONDS)
        return acting.result()

    async def _acted(self, step: int, observation: Observation) -> JointAction:
        outside = Outside(self.game.engine.external_wait, self.game.threads, self.game.renderer)
        seats = Agents(self.game.team.agents, partial(self._ask, step), partial(self._reply, step), outside)
        try:
            joint: object = await self.organization.act(observation, seats)
            if not isinstance(joint, JointAction):
                name = type(joint).__name__
                raise EpisodeFailedError(
                    "failed", f"the organization returned {name}, not marft.common.types.JointAction"
                )
            self._outcome = joint if isinstance(joint, Outcome) else Outcome()
            answered = joint.answer
        except (SystemExit, KeyboardInterrupt) as error:  # asyncio would end the event loop shared by all episodes
            who = f"the organization {name_of(self.organization)}"
            raise EpisodeFailedError("failed", f"{who} raised {described(error)}") from error
        if answered is not None:
            self._check_own("the team", "answers with", answered)
        return JointAction(answered)

    async def _reply(self, step: int, agent: Agent, request: Request) -> Reply:
        assert request.chat, "a seat asks with a chat"
        action = await self._ask(step, agent, request)
        return self._chats[agent.role].reply(action, request.chat.pieces)

    async def _ask(self, step: int, agent: Agent, request: Request) -> Action:
        """Return an action. Errors fail the episode, except for a rejected chat, which is not an action."""
        self._check_acting(step, agent)
        try:
            return await self._made(step, agent, request)
        except Exception as error:
            if step == self._acting and not isinstance(error, ChatRefusedError):
                ours = EpisodeFailedError("failed", f"asking {agent.role} raised {described(error)}")
                self._failure = self._failure or (error if isinstance(error, EpisodeFailedError) else ours)
            raise

    async def _made(self, step: int, agent: Agent, request: Request) -> Action:
        self._check_request(agent, request)
        chatted = self._chatted(agent, request.chat, request.observation.seen_by(agent.role)) if request.chat else None
        call, index = self._calls[agent.role], self._asked  # fixed before the first await, unless rejected
        self._calls[agent.role] += 1
        self._asked += 1
        key = self.attempt.key(len(self.transitions), agent.role, call)
        prefix = response_prefix_of(self.game.renderer, agent.policy, request.begins)
        options = options_of(self.game.renderer, agent.policy, request)
        longest = max((len(option.tokens) for option in options), default=agent.sampling.max_new_tokens)
        room = len(prefix.tokens) + longest
        name = f"{key.step}/{agent.role}/{call}"
        asked = chatted or self._asked_with(agent, request, room, name)
        prompt = asked.prompt
        self._given[index] = request.observation, asked, room
        served = self._serve(name, prompt)
        if served is not None:
            with self._waited_for(step):
                await self._call_again(agent, served)
                # concurrent requests of one agent do not see each other, as in the recorded episode
                if agent.memory == "own":
                    await asyncio.sleep(0)
            return self._taken(replace(served, index=index), asked, request)
        self.first_fresh = self.first_fresh or name
        live = request.chat.live if request.chat else None
        if self.game.watcher:
            live = self.game.watcher.asked(agent.role, [one.message for one in asked.heard]) or live
        tokens = asked.sees(self.game.renderer, agent.policy, request.begins)
        if live:
            live.begin(Begun(name, agent.policy, len(prompt.ids), tuple(tokens), asked.restarted))
        started = time.perf_counter() - self._began
        with self._waited_for(step):
            if options:
                made = await choose(self.game.engine, agent, request, prompt, options, key)
            elif request.chat:
                made = await answer(self.game.engine, self._chats[agent.role], agent, request.chat, prompt, key)
            else:
                engine, renderer = self.game.engine, self.game.renderer
                counsel = Counsel.of(self.game, agent.role, request.observation, self.attempt.questions)
                made = await generate(engine, renderer, self.belt, agent, prompt, prefix, key, live, counsel)
        self._check_acting(step, agent)
        check_log_probs(made)
        thought = 0 if options else self._thought(agent, request, made.text)
        action = replace(
            made,
            index=index,
            thought=thought if agent.thinking == "drop" else 0,
            only_thought=0 < thought == len(made.text),
            sees=tuple(tokens),
            message_tokens=tuple(tokens.values()),
            truncated_tokens=prompt.truncated_tokens,
            started=started,
            ended=time.perf_counter() - self._began,
            continues=asked.continues,
            restarted=asked.restarted,
        )
        return self._taken(action, asked, request)

    def _thought(self, agent: Agent, request: Request, text: str) -> int:
        begun = {"begun": request.chat.begun} if request.chat and request.chat.begun else {}
        return self.game.renderer.thought(agent.policy, text, **begun)

    def _chatted(self, agent: Agent, chat: Chat, shown: str) -> Asked:
        """Return the prompt request for a client's chat.

        Raises:
            ChatRefusedError: the chat cannot be answered.
        """
        record = self._chats.setdefault(agent.role, ChatRecord(agent, self.game.renderer, self._quoting))
        return record.asked(chat, [self.actions[index] for index in sorted(self.actions)], shown)

    def _asked_with(self, agent: Agent, request: Request, room: int, name: str) -> Asked:
        """Return the prompt request for an agent: its inputs and its memory."""
        memory, replay = self._memories.get(agent.role), self.attempt.replay
        if memory is None:
            heard = listen(self.game.team.channel, partial(self.attempt.heard, agent.role), request.sees)
            return Asked(render(self.game.renderer, agent, request.observation, heard, room), heard)
        return memory.asked(request, room, replay.recorded(name) if replay else None)

    def _taken(self, action: Action, asked: Asked, request: Request) -> Action:
        """Record an action and mark it for the organization."""
        if request.chat:
            self._chats[action.agent].keep(asked, request.chat, action)
        elif action.agent in self._memories:
            self._memories[action.agent].keep(asked, action, request)
        self.actions[action.index] = action
        self._handed[id(action)] = action
        if self.game.watcher:
            self.game.watcher.acted(action)
        return action

    @contextmanager
    def _waited_for(self, step: int) -> Iterator[None]:
        self._under_way += 1
        try:
            yield
        except Exception as error:  # engine errors concern the whole run, not only this episode
            if step == self._acting and not isinstance(error, ChatRefusedError):
                self._failure = error
            raise
        finally:
            self._under_way -= 1

    def _check_request(self, agent: Agent, request: Request) -> None:
        """Check a request's observation and the origin of its actions.

        The observation must be renderable. Actions must belong to this episode: D refers to actions by id, and the
        same id means another action in another episode.

        Raises:
            EpisodeFailedError: the request is invalid.
        """
        try:
            whole(request.observation)
        except RefusedError as error:
            raise EpisodeFailedError("failed", f"the organization, asking {agent.role}, {error}") from error
        for seen in request.sees:
            self._check_own(agent.role, "sees", seen.action if isinstance(seen, Excerpt) else seen)
        if request.begins is not None:
            self._check_own(agent.role, "begins with", request.begins)

    def _check_own(self, who: str, does: str, action: object) -> None:
        """Check an action's origin: returned to the organization in this episode, at any step.

        Raises:
            EpisodeFailedError: the action comes from elsewhere.
        """
        if id(action) in self._handed:
            return
        if not isinstance(action, Action):
            what = f"a {type(action).__name__}"
            remedy = "actions that seats have returned, or Excerpts of them, are seen"
        elif any(action.key == other.key for other in self._handed.values()):
            what, remedy = f"a changed copy of {action.id}", "pass on an Excerpt of the action that the seat returned"
        else:
            key = action.key
            what = f"{action.id} of the episode {key.stream} {key.task} #{key.sample}"
            remedy = "an organization keeps no actions from one episode to the next"
        self._failure = EpisodeFailedError(
            "failed", f"{who} {does} {what}, which is no action of this episode; {remedy}"
        )
        raise self._failure

    def _check_acting(self, step: int, agent: Agent) -> None:
        if step != self._acting:
            branch = asyncio.current_task()
            if branch is not None:  # no caller awaits it any more, and asyncio would print an error
                branch.add_done_callback(lambda task: task.cancelled() or task.exception())
            raise EpisodeFailedError("failed", f"{agent.role} acts after act() has ended; await all that it starts")

    def _check_replayed(self, observation: Observation) -> None:
        replay, step = self.attempt.replay, len(self.transitions)
        if replay and step < len(replay.observations) and observation.whole != replay.observations[step]:
            raise EpisodeFailedError("failed", f"replaying step {step}: the environment shows {NOT_THE_SAME}")

    def _serve(self, name: str, prompt: Prompt) -> Action | None:
        """Return the recorded action under this id if the replay serves it, or None.

        Raises:
            EpisodeFailedError: the prompt differs from the recorded prompt before the first sampled action.
        """
        replay = self.attempt.replay
        if replay is None:
            return None
        recorded = replay.recorded(name)
        if recorded is not None and not np.array_equal(recorded.prompt, prompt.ids):
            if self.first_fresh:
                return None  # a newly sampled action has changed this agent's input
            raise EpisodeFailedError("failed", f"replaying {name}: the agent sees {NOT_THE_SAME}")
        return replay.actions.get(name)

    async def _call_again(self, agent: Agent, served: Action) -> None:
        """Restore stateful tools to their state after a recorded action.

        Raises:
            EpisodeFailedError: a tool's output differs from the record.
        """
        made = await self.belt.repeat(agent.tool_use, served.calls) if served.calls else []
        for call, again in zip(served.calls, made, strict=True):
            output = self.game.renderer.clip(agent.policy, again.output, agent.tool_use.output_tokens)
            if output != call.output:
                raise EpisodeFailedError("failed", f"replaying {served.id}: {call.name} answers {NOT_THE_SAME}")

    def _with_state(self, action: Action, done: Sequence[Action]) -> Action:
        """Add the critic's input: the prompt plus the step's earlier actions that the agent did not see."""
        unseen = [other for other in done if other.index < action.index and other.id not in action.sees]
        if not unseen:
            return action
        observation, asked, room = self._given[action.index]
        everything = sorted(
            [*asked.heard, *(hear(partial(self.attempt.heard, action.agent), other) for other in unseen)],
            key=lambda one: one.action.index,
        )
        agent = self.game.team.agent(action.agent)
        if asked.chatted:
            others = [one for one in everything if one.action.id not in action.sees]
            return replace(action, state=self._chats[action.agent].read(asked, others))
        return replace(action, state=self._read(agent, observation, everything, room, asked.continues))

    def _read(
        self, agent: Agent, observation: Observation, heard: Sequence[Heard], room: int, continues: tuple[str, ...]
    ) -> TokenIds:
        """Return the critic's token ids for an agent, with its remembered actions if it continues any."""
        if continues:
            remembered = self._memories[agent.role].read(continues, observation, heard, room)
            if remembered is not None:
                return remembered
        try:
            return render(self.game.renderer, agent, observation, heard, room).ids
        # the critic's input may exceed the agent's prompt; the critic then reads a truncated one
        except EpisodeFailedError:
            return render(self.game.renderer, replace(agent, cut=Cut()), observation, heard, room).ids

    def _default_answer(self, done: Sequence[Action]) -> Action | None:
        answering = {agent.role for agent in self.game.team.agents if agent.profile.answers}
        return next((action for action in reversed(done) if action.agent in answering), None)

    def record(self, observation: Observation, step: Step, declared: Declared) -> None:
        """Record a step's transition."""
        step = self._outcome.graded(step)
        self.transitions.append(Transition(observation, step.reward, step.agent_rewards, declared=declared))
        self.success = step.success if step.success is not None else self.success

    def bootstrap(self, observation: Observation) -> None:
        """Store the final observation as each active agent would see it, for bootstrapping.

        The prompt contains no new messages. Room is reserved as for the agent's next action.
        """
        if self.attempt.critic_states and self.actions:
            for action in sorted(self.actions.values(), key=lambda action: (-action.step, action.index)):
                agent = self.game.team.agent(action.agent)
                if agent.role not in self.final_prompts:
                    room, memory = agent.sampling.max_new_tokens, self._memories.get(agent.role)
                    continues = memory.recalled() if memory else ()
                    self.final_prompts[agent.role] = self._read(agent, observation, (), room, continues)

    def episode(self, status: Status, error: str) -> Episode:
        """Build the finished episode."""
        return Episode(
            task=self.attempt.task,
            stream=self.attempt.stream,
            sample=self.attempt.sample,
            actions=tuple(self.actions[index] for index in sorted(self.actions)),
            status=status,
            transitions=tuple(self.transitions),
            success=self.success,
            error=cut(storable(error), 2 * LONGEST),
            bootstrap=self.final_prompts,
            seconds=time.perf_counter() - self._began,
            began=self._began_at,
            fork=Fork(replay.origin, replay.at or self.first_fresh) if (replay := self.attempt.replay) else None,
        )
