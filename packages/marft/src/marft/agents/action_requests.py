"""Requests for actions in one episode: each action is prepared, sampled or served from a replay, and recorded."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from marft.agents.agents import Agent, Request
from marft.agents.chat import ChatRefusedError, Reply
from marft.agents.chat_history import ChatHistory
from marft.agents.conversation_memory import (
    ConversationMemory,
    MessageTransform,
    PromptRequest,
    ReceivedMessage,
    build_message,
    receive_messages,
    render_prompt,
)
from marft.agents.environment_calls import RefusedError, validate_observation
from marft.agents.game import Attempt, Game
from marft.agents.generation import (
    ActionSampler,
    ResponsePrefix,
    build_response_prefix,
    check_log_probs,
    encode_options,
)
from marft.agents.helpers import HelperCall
from marft.agents.prompt_messages import TruncationPolicy
from marft.agents.quote_tracker import QuoteTracker
from marft.agents.streaming import ActionStart
from marft.agents.tool_executor import ToolExecutor
from marft.common.error_origin import describe_error
from marft.common.errors import EpisodeFailedError
from marft.common.types import Action, ActionKey, Observation, Option, TokenIds
from marft.config.interfaces.organization import MessageOverride

REPLAY_MISMATCH = (
    "something else than recorded; the environment or the organization does not do the same again under the same seed"
)


@dataclass(frozen=True, slots=True, eq=False)
class RequestedAction:
    """Action that an organization requested, with its prompt.

    Args:
        index: order of the request in the episode.
        prefix: a teammate's text that the action continues.
        options: encoded options of a choice; empty if the agent writes.
        room: context tokens reserved for the action.
    """

    agent: Agent
    request: Request
    index: int
    key: ActionKey
    prefix: ResponsePrefix
    options: Sequence[Option]
    room: int
    prompt_request: PromptRequest

    @property
    def id(self) -> str:
        """The id that the action will have."""
        return f"{self.key.step}/{self.key.agent}/{self.key.call}"


class ActionRequests:
    """Requests for actions in one episode. Agent handles send requests here, and every action is recorded."""

    def __init__(self, game: Game, attempt: Attempt, tool_executor: ToolExecutor) -> None:
        self.game, self.attempt, self.tool_executor = game, attempt, tool_executor
        self.actions: dict[int, Action] = {}  # by order of the requests
        self.count = self.active_count = 0  # actions requested so far; actions in progress
        self.first_sampled = ""  # id of the first sampled action, as opposed to served ones
        # first failure of an action: no organization can continue without the action
        self.failure: Exception | None = None
        self._step: int | None = None  # step in which agents may act; None between steps
        self._first = 0  # index of the step's first action
        self._calls: Counter[str] = Counter()  # actions requested in the step, by role
        self._requested: dict[int, RequestedAction] = {}  # by index
        self._returned: dict[int, Action] = {}  # by identity: actions returned to the organization
        self._memories = {
            agent.role: ConversationMemory(agent, game.renderer, game.team.channel, self._transform(agent.role))
            for agent in game.team.agents
            if agent.memory == "own"
        }
        self._chats: dict[str, ChatHistory] = {}  # by role: chats with an organization's program
        self._quote_tracker = QuoteTracker()  # quote attribution for the same programs
        self._start_time = time.perf_counter()

    def elapsed_seconds(self) -> float:
        """Return the seconds since the episode began."""
        return time.perf_counter() - self._start_time

    @contextmanager
    def open_step(self, step: int) -> Iterator[None]:
        """Accept requests for actions of a step."""
        self._calls.clear()
        self._step, self._first = step, self.count
        try:
            yield
        finally:
            self._step = None

    def step_actions(self) -> list[Action]:
        """Return the last step's actions in the order of their requests, with the critic's input if required."""
        actions = [self.actions[index] for index in range(self._first, self.count) if index in self.actions]
        if self.attempt.record_critic_states:
            actions = [self._add_critic_state(action, actions) for action in actions]
            self.actions.update({action.index: action for action in actions})
        return actions

    async def reply(self, step: int, agent: Agent, request: Request) -> Reply:
        """Return an action on a client's chat, in the form that the client receives."""
        assert request.chat, "a seat asks with a chat"
        action = await self.request(step, agent, request)
        return self._chats[agent.role].reply(action, request.chat.return_token_texts)

    async def request(self, step: int, agent: Agent, request: Request) -> Action:
        """Return an action. Errors fail the episode, except for a rejected chat, which is not an action."""
        self._check_active(step, agent)
        try:
            requested = self._prepare(step, agent, request)
            served = self._replayed_action(requested)
            action = await (self._sample(requested) if served is None else self._serve(requested, served))
            return self._record(requested, action)
        except Exception as error:
            if step == self._step and not isinstance(error, ChatRefusedError):
                ours = EpisodeFailedError("failed", f"asking {agent.role} raised {describe_error(error)}")
                self.failure = self.failure or (error if isinstance(error, EpisodeFailedError) else ours)
            raise

    def _prepare(self, step: int, agent: Agent, request: Request) -> RequestedAction:
        """Check and number a request, and render its prompt.

        Raises:
            ChatRefusedError: the client's chat cannot be answered; the request gets no number.
            EpisodeFailedError: the request is invalid, or its prompt does not fit.
        """
        self._check_request(agent, request)
        renderer, prompt_request = self.game.renderer, None
        if request.chat:
            history = self._chats.setdefault(agent.role, ChatHistory(agent, renderer, self._quote_tracker))
            earlier = [self.actions[index] for index in sorted(self.actions)]
            prompt_request = history.build_request(request.chat, earlier, request.observation.for_role(agent.role))
        key, index = self.attempt.key(step, agent.role, self._calls[agent.role]), self.count
        self._calls[agent.role] += 1
        self.count += 1
        prefix = build_response_prefix(renderer, agent.policy, request.begins)
        options = encode_options(renderer, agent.policy, request)
        longest = max((len(option.tokens) for option in options), default=agent.sampling.max_new_tokens)
        room = len(prefix.tokens) + longest
        prompt_request = prompt_request or self._build_prompt(agent, request, room, key)
        requested = RequestedAction(agent, request, index, key, prefix, options, room, prompt_request)
        self._requested[index] = requested
        return requested

    def _build_prompt(self, agent: Agent, request: Request, room: int, key: ActionKey) -> PromptRequest:
        """Return the prompt for an agent: its inputs and its memory."""
        memory, replay = self._memories.get(agent.role), self.attempt.replay
        if memory:
            recorded = replay.recorded_action(f"{key.step}/{key.agent}/{key.call}") if replay else None
            return memory.build_request(request, room, recorded)
        received = receive_messages(self.game.team.channel, self._transform(agent.role), request.sees)
        return PromptRequest(render_prompt(self.game.renderer, agent, request.observation, received, room), received)

    async def _sample(self, requested: RequestedAction) -> Action:
        game, agent, request = self.game, requested.agent, requested.request
        prompt_request, step = requested.prompt_request, requested.key.step
        self.first_sampled = self.first_sampled or requested.id
        stream = request.chat.token_stream if request.chat else None
        if game.callback:
            messages = [received.message for received in prompt_request.received]
            stream = game.callback.on_request(agent.role, messages) or stream
        prompt, restarted = prompt_request.prompt, prompt_request.restart_reason
        tokens = prompt_request.count_read_tokens(game.renderer, agent.policy, request.begins)
        if stream:
            stream.start = ActionStart(requested.id, agent.policy, len(prompt.ids), tuple(tokens), restarted)
        started = self.elapsed_seconds()
        sampler = ActionSampler(game.engine, game.renderer, agent, prompt, requested.key)
        with self._count_active(step):
            if requested.options:
                sampled = await sampler.choose(request.options, requested.options)
            elif request.chat:
                sampled = await sampler.answer_chat(self._chats[agent.role], request.chat)
            else:
                max_calls = self.attempt.max_helper_calls
                helper_call = HelperCall.from_game(game, agent.role, request.observation, max_calls)
                sampled = await sampler.generate(
                    self.tool_executor, requested.prefix, token_stream=stream, helper_call=helper_call
                )
        self._check_active(step, agent)
        check_log_probs(sampled)
        thought = 0
        if not requested.options:
            begun = request.chat.prefix if request.chat else ""
            thought = game.renderer.reasoning_length(agent.policy, sampled.text, begun)
        return replace(
            sampled,
            index=requested.index,
            thought=thought if agent.thinking == "drop" else 0,
            only_thought=0 < thought == len(sampled.text),
            sees=tuple(tokens),
            message_tokens=tuple(tokens.values()),
            truncated_tokens=prompt.truncated_tokens,
            started=started,
            ended=self.elapsed_seconds(),
            continues=prompt_request.continues,
            restarted=restarted,
        )

    def _record(self, requested: RequestedAction, action: Action) -> Action:
        """Record an action and mark it for the organization."""
        request = requested.request
        if request.chat:
            self._chats[action.agent].store(requested.prompt_request, request.chat, action)
        elif action.agent in self._memories:
            self._memories[action.agent].store(requested.prompt_request, action, request)
        self.actions[action.index] = action
        self._returned[id(action)] = action
        if self.game.callback:
            self.game.callback.on_action(action)
        return action

    @contextmanager
    def _count_active(self, step: int) -> Iterator[None]:
        self.active_count += 1
        try:
            yield
        except Exception as error:  # engine errors concern the whole run, not only this episode
            if step == self._step and not isinstance(error, ChatRefusedError):
                self.failure = error
            raise
        finally:
            self.active_count -= 1

    def _transform(self, role: str) -> MessageTransform:
        """Return the function from actions to the texts that an agent receives."""
        return partial(self.attempt.receive_text, role)

    # checks

    def _check_active(self, step: int, agent: Agent) -> None:
        if step != self._step:
            branch = asyncio.current_task()
            if branch is not None:  # no caller awaits it any more, and asyncio would print an error
                branch.add_done_callback(lambda task: task.cancelled() or task.exception())
            raise EpisodeFailedError("failed", f"{agent.role} acts after act() has ended; await all that it starts")

    def _check_request(self, agent: Agent, request: Request) -> None:
        """Check a request's observation and the origin of its actions.

        The observation must be renderable. Actions must belong to this episode: D refers to actions by id, and the
        same id means another action in another episode.

        Raises:
            EpisodeFailedError: the request is invalid.
        """
        try:
            validate_observation(request.observation)
        except RefusedError as error:
            raise EpisodeFailedError("failed", f"the organization, asking {agent.role}, {error}") from error
        for seen in request.sees:
            self.check_origin(agent.role, "sees", seen.action if isinstance(seen, MessageOverride) else seen)
        if request.begins is not None:
            self.check_origin(agent.role, "begins with", request.begins)

    def check_origin(self, reader: str, does: str, action: object) -> None:
        """Check an action's origin: returned to the organization in this episode, at any step.

        Raises:
            EpisodeFailedError: the action comes from elsewhere.
        """
        if id(action) in self._returned:
            return
        if not isinstance(action, Action):
            description = f"a {type(action).__name__}"
            hint = "actions that seats have returned, or Excerpts of them, are seen"
        elif any(action.key == returned.key for returned in self._returned.values()):
            description = f"a changed copy of {action.id}"
            hint = "pass on an Excerpt of the action that the seat returned"
        else:
            key = action.key
            description = f"{action.id} of the episode {key.stream} {key.task} #{key.sample}"
            hint = "an organization keeps no actions from one episode to the next"
        self.failure = EpisodeFailedError(
            "failed", f"{reader} {does} {description}, which is no action of this episode; {hint}"
        )
        raise self.failure

    # replays

    def _replayed_action(self, requested: RequestedAction) -> Action | None:
        """Return the recorded action under this id if the replay serves it, or None.

        Raises:
            EpisodeFailedError: the prompt differs from the recorded prompt before the first sampled action.
        """
        replay = self.attempt.replay
        if replay is None:
            return None
        recorded = replay.recorded_action(requested.id)
        if recorded is not None and not np.array_equal(recorded.prompt, requested.prompt_request.prompt.ids):
            if self.first_sampled:
                return None  # a newly sampled action has changed this agent's input
            raise EpisodeFailedError("failed", f"replaying {requested.id}: the agent sees {REPLAY_MISMATCH}")
        return replay.actions.get(requested.id)

    async def _serve(self, requested: RequestedAction, served: Action) -> Action:
        """Return a recorded action, and restore stateful tools to their state after it.

        Raises:
            EpisodeFailedError: a tool's output differs from the record.
        """
        agent = requested.agent
        with self._count_active(requested.key.step):
            replayed = await self.tool_executor.replay(agent.tool_use, served.calls) if served.calls else []
            for call, again in zip(served.calls, replayed, strict=True):
                output = self.game.renderer.clip(agent.policy, again.output, agent.tool_use.output_tokens)
                if output != call.output:
                    raise EpisodeFailedError("failed", f"replaying {served.id}: {call.name} answers {REPLAY_MISMATCH}")
            # concurrent requests of one agent do not see each other, as in the recorded episode
            if agent.memory == "own":
                await asyncio.sleep(0)
        return replace(served, index=requested.index)

    # the critic's inputs

    def _add_critic_state(self, action: Action, actions: Sequence[Action]) -> Action:
        """Add the critic's input: the prompt plus the step's earlier actions that the agent did not see."""
        hidden = [other for other in actions if other.index < action.index and other.id not in action.sees]
        if not hidden:
            return action
        requested = self._requested[action.index]
        prompt_request, transform = requested.prompt_request, self._transform(action.agent)
        received = [*prompt_request.received, *(build_message(transform, other) for other in hidden)]
        received.sort(key=lambda message: message.action.index)
        if prompt_request.from_client:
            new_messages = [message for message in received if message.action.id not in action.sees]
            return replace(action, state=self._chats[action.agent].critic_tokens(prompt_request, new_messages))
        observation, continues = requested.request.observation, prompt_request.continues
        state = self._critic_tokens(requested.agent, observation, received, requested.room, continues)
        return replace(action, state=state)

    def _critic_tokens(
        self,
        agent: Agent,
        observation: Observation,
        received: Sequence[ReceivedMessage],
        room: int,
        continues: tuple[str, ...],
    ) -> TokenIds:
        """Return the critic's token ids for an agent, with its remembered actions if it continues any."""
        if continues:
            memory_tokens = self._memories[agent.role].critic_tokens(continues, observation, received, room)
            if memory_tokens is not None:
                return memory_tokens
        try:
            return render_prompt(self.game.renderer, agent, observation, received, room).ids
        # the critic's input may exceed the agent's prompt; the critic then reads a truncated one
        except EpisodeFailedError:
            truncating = replace(agent, cut=TruncationPolicy())
            return render_prompt(self.game.renderer, truncating, observation, received, room).ids

    def final_prompts(self, observation: Observation) -> dict[str, TokenIds]:
        """Return the final observation as each active agent would see it, by role, for bootstrapping.

        The prompts contain no new messages. Room is reserved as for the agent's next action.
        """
        prompts: dict[str, TokenIds] = {}
        for action in sorted(self.actions.values(), key=lambda action: (-action.step, action.index)):
            if action.agent not in prompts:
                agent, memory = self.game.team.agent(action.agent), self._memories.get(action.agent)
                continues = memory.remembered_action_ids() if memory else ()
                room = agent.sampling.max_new_tokens
                prompts[agent.role] = self._critic_tokens(agent, observation, (), room, continues)
        return prompts
