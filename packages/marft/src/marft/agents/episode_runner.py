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

from marft.agents.agents import Agent, Agents, ExternalContext, MessageOverride, Request
from marft.agents.chat import Chat, ChatRefusedError, Reply
from marft.agents.chat_history import ChatHistory
from marft.agents.communication import ReceivedMessage, build_message, receive_messages, render_prompt
from marft.agents.conversation_memory import ConversationMemory, PromptRequest
from marft.agents.environment_calls import RefusedError, validate_observation
from marft.agents.episodic_organization import close_organization, open_organization
from marft.agents.game import Attempt, Game
from marft.agents.generation import (
    answer_chat,
    build_response_prefix,
    check_log_probs,
    choose_option,
    encode_options,
    generate,
)
from marft.agents.helpers import HelperCall
from marft.agents.loop_threads import is_canceled
from marft.agents.outcome import Outcome
from marft.agents.prompt_messages import TruncationPolicy
from marft.agents.quote_tracker import QuoteTracker
from marft.agents.streaming import ActionStart
from marft.agents.tool_executor import ToolExecutor
from marft.common.error_origin import describe_error
from marft.common.errors import EpisodeFailedError
from marft.common.seeds import derive_seed
from marft.common.step_info import StepInfo
from marft.common.texts import MAX_ERROR_LENGTH, display_name, replace_surrogates, truncate
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
)

GRACE_SECONDS = 0.5  # grace period in seconds for a cancelled organization to end
REPLAY_MISMATCH = (
    "something else than recorded; the environment or the organization does not do the same again under the same seed"
)


class EpisodeRunner:
    """Episode runner for the team: agent handles send requests here, and every action is recorded."""

    def __init__(self, game: Game, attempt: Attempt) -> None:
        self.game, self.attempt = game, attempt
        self.actions: dict[int, Action] = {}  # by order of the requests
        self.transitions: list[Transition] = []
        self.success: bool | None = None
        self.final_prompts: dict[str, TokenIds] = {}  # by agent: prompt after a truncated episode, for bootstrapping
        self.first_sampled = ""  # id of the first sampled action, as opposed to served ones
        # by index: (observation, prompt request, reserved tokens)
        self._inputs: dict[int, tuple[Observation, PromptRequest, int]] = {}
        self._returned: dict[int, Action] = {}  # by identity: actions returned to the organization
        self._active_step: int | None = None  # step in which agents may act; None between steps
        self._active_count = self._request_count = 0  # actions in progress; actions requested so far
        # first failure of an action: no organization can continue without the action
        self._failure: Exception | None = None
        self._calls: Counter[str] = Counter()
        self._start_time, self._started_at = time.perf_counter(), time.time()
        origin = attempt.replay or attempt
        seed = derive_seed(game.seed, "tools", origin.stream, attempt.task.id, origin.sample)
        self.tool_executor = ToolExecutor(game.tools, game.threads, game.engine, attempt.task, seed, attempt.injections)
        self.organization = game.team.organization
        self._conversation_memories = {
            agent.role: ConversationMemory(
                agent, game.renderer, game.team.channel, partial(attempt.receive_text, agent.role)
            )
            for agent in game.team.agents
            if agent.memory == "own"
        }
        self._chat_history: dict[str, ChatHistory] = {}  # by role: chats with an organization's program
        self._quote_tracker = QuoteTracker()  # quote attribution for the same programs
        self._outcome = Outcome()

    def open(self) -> None:
        """Open an organization for the episode if the team's organization keeps state.

        Raises:
            EpisodeFailedError: the organization could not be opened.
        """
        origin = self.attempt.replay or self.attempt
        seed = derive_seed(self.game.seed, "organization", origin.stream, self.attempt.task.id, origin.sample)
        self.organization = open_organization(self.game.team.organization, self.attempt.task, seed)

    def close(self) -> None:
        """Close the episode's organization. A failure is counted and does not change the episode's outcome."""
        if not close_organization(self.game.team.organization, self.organization):
            self.game.threads.failed_closes += 1

    async def act(self, observation: Observation) -> JointAction:
        """Let the organization act once; return the joint action with all actions and the default answer filled in.

        Raises:
            EpisodeFailedError: the organization or one of its actions failed.
        """
        self._check_replay(observation)
        if self.game.callback:
            self.game.callback.on_observation(observation)
        self._calls.clear()
        first = self._request_count
        self._active_step = step = len(self.transitions)
        try:
            joint = await self._run_organization(step, observation)
        except EpisodeFailedError:
            raise
        except BaseException as error:
            if is_canceled():
                raise
            if self._failure:
                raise self._failure from error  # our own error, even if the organization wrapped it
            caller = f"the organization {display_name(self.organization)}"
            raise EpisodeFailedError("failed", f"{caller} raised {describe_error(error)}") from error
        finally:
            self._active_step = None
        if self._failure:
            raise self._failure  # an organization cannot continue without an action that it requested
        actions = [self.actions[index] for index in range(first, self._request_count) if index in self.actions]
        if self.attempt.critic_states:
            actions = [self._add_critic_state(action, actions) for action in actions]
            self.actions.update({action.index: action for action in actions})
        key = self.attempt.key(step)
        text_answer = self._outcome.select_answer(actions, key)
        return JointAction(joint.answer or text_answer or self._default_answer(actions), tuple(actions))

    async def _run_organization(self, step: int, observation: Observation) -> JointAction:
        """Return the organization's joint action for an observation.

        An organization that waits for no agent is cancelled after the timeout for environment calls.
        """
        task = asyncio.ensure_future(self._call_organization(step, observation))
        limit = None if getattr(self.organization, "own_timeout", False) else self.game.timeout
        try:
            while not task.done():
                idle, request_count = self._active_count == 0, self._request_count
                await asyncio.wait([task], timeout=limit)
                if not task.done() and idle and self._request_count == request_count:
                    caller = f"the organization {display_name(self.organization)}"
                    raise EpisodeFailedError("timed_out", f"{caller} waited over {self.game.timeout:g} s for no agent")
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait([task], timeout=GRACE_SECONDS)
        return task.result()

    async def _call_organization(self, step: int, observation: Observation) -> JointAction:
        external_context = ExternalContext(self.game.engine.external_wait, self.game.threads, self.game.renderer)
        handles = Agents(
            self.game.team.agents, partial(self._request_action, step), partial(self._reply, step), external_context
        )
        try:
            joint: object = await self.organization.act(observation, handles)
            if not isinstance(joint, JointAction):
                name = type(joint).__name__
                raise EpisodeFailedError(
                    "failed", f"the organization returned {name}, not marft.common.types.JointAction"
                )
            self._outcome = joint if isinstance(joint, Outcome) else Outcome()
            answered = joint.answer
        except (SystemExit, KeyboardInterrupt) as error:  # asyncio would end the event loop shared by all episodes
            caller = f"the organization {display_name(self.organization)}"
            raise EpisodeFailedError("failed", f"{caller} raised {describe_error(error)}") from error
        if answered is not None:
            self._check_origin("the team", "answers with", answered)
        return JointAction(answered)

    async def _reply(self, step: int, agent: Agent, request: Request) -> Reply:
        assert request.chat, "a seat asks with a chat"
        action = await self._request_action(step, agent, request)
        return self._chat_history[agent.role].reply(action, request.chat.pieces)

    async def _request_action(self, step: int, agent: Agent, request: Request) -> Action:
        """Return an action. Errors fail the episode, except for a rejected chat, which is not an action."""
        self._check_active(step, agent)
        try:
            return await self._make_action(step, agent, request)
        except Exception as error:
            if step == self._active_step and not isinstance(error, ChatRefusedError):
                ours = EpisodeFailedError("failed", f"asking {agent.role} raised {describe_error(error)}")
                self._failure = self._failure or (error if isinstance(error, EpisodeFailedError) else ours)
            raise

    async def _make_action(self, step: int, agent: Agent, request: Request) -> Action:
        self._check_request(agent, request)
        chat_request = (
            self._chat_request(agent, request.chat, request.observation.for_role(agent.role)) if request.chat else None
        )
        call, index = self._calls[agent.role], self._request_count  # fixed before the first await, unless rejected
        self._calls[agent.role] += 1
        self._request_count += 1
        key = self.attempt.key(len(self.transitions), agent.role, call)
        prefix = build_response_prefix(self.game.renderer, agent.policy, request.begins)
        options = encode_options(self.game.renderer, agent.policy, request)
        longest = max((len(option.tokens) for option in options), default=agent.sampling.max_new_tokens)
        room = len(prefix.tokens) + longest
        name = f"{key.step}/{agent.role}/{call}"
        prompt_request = chat_request or self._prompt_request(agent, request, room, name)
        prompt = prompt_request.prompt
        self._inputs[index] = request.observation, prompt_request, room
        served = self._replayed_action(name, prompt)
        if served is not None:
            with self._count_active(step):
                await self._replay_calls(agent, served)
                # concurrent requests of one agent do not see each other, as in the recorded episode
                if agent.memory == "own":
                    await asyncio.sleep(0)
            return self._record_action(replace(served, index=index), prompt_request, request)
        self.first_sampled = self.first_sampled or name
        live = request.chat.token_stream if request.chat else None
        if self.game.callback:
            live = (
                self.game.callback.on_request(agent.role, [received.message for received in prompt_request.received])
                or live
            )
        tokens = prompt_request.sees(self.game.renderer, agent.policy, request.begins)
        if live:
            live.set_start(
                ActionStart(name, agent.policy, len(prompt.ids), tuple(tokens), prompt_request.restart_reason)
            )
        started = time.perf_counter() - self._start_time
        with self._count_active(step):
            if options:
                sampled = await choose_option(self.game.engine, agent, request, prompt, options, key)
            elif request.chat:
                sampled = await answer_chat(
                    self.game.engine, self._chat_history[agent.role], agent, request.chat, prompt, key
                )
            else:
                engine, renderer = self.game.engine, self.game.renderer
                helper_call = HelperCall.from_game(
                    self.game, agent.role, request.observation, self.attempt.max_helper_calls
                )
                sampled = await generate(
                    engine, renderer, self.tool_executor, agent, prompt, prefix, key, live, helper_call
                )
        self._check_active(step, agent)
        check_log_probs(sampled)
        thought = 0 if options else self._reasoning_length(agent, request, sampled.text)
        action = replace(
            sampled,
            index=index,
            thought=thought if agent.thinking == "drop" else 0,
            only_thought=0 < thought == len(sampled.text),
            sees=tuple(tokens),
            message_tokens=tuple(tokens.values()),
            truncated_tokens=prompt.truncated_tokens,
            started=started,
            ended=time.perf_counter() - self._start_time,
            continues=prompt_request.continues,
            restarted=prompt_request.restart_reason,
        )
        return self._record_action(action, prompt_request, request)

    def _reasoning_length(self, agent: Agent, request: Request, text: str) -> int:
        prefix_arguments = {"prefix": request.chat.prefix} if request.chat and request.chat.prefix else {}
        return self.game.renderer.reasoning_length(agent.policy, text, **prefix_arguments)

    def _chat_request(self, agent: Agent, chat: Chat, observation: str) -> PromptRequest:
        """Return the prompt request for a client's chat.

        Raises:
            ChatRefusedError: the chat cannot be answered.
        """
        record = self._chat_history.setdefault(agent.role, ChatHistory(agent, self.game.renderer, self._quote_tracker))
        return record.build_request(chat, [self.actions[index] for index in sorted(self.actions)], observation)

    def _prompt_request(self, agent: Agent, request: Request, room: int, name: str) -> PromptRequest:
        """Return the prompt request for an agent: its inputs and its memory."""
        memory, replay = self._conversation_memories.get(agent.role), self.attempt.replay
        if memory is None:
            received = receive_messages(
                self.game.team.channel, partial(self.attempt.receive_text, agent.role), request.sees
            )
            return PromptRequest(
                render_prompt(self.game.renderer, agent, request.observation, received, room), received
            )
        return memory.build_request(request, room, replay.recorded_action(name) if replay else None)

    def _record_action(self, action: Action, prompt_request: PromptRequest, request: Request) -> Action:
        """Record an action and mark it for the organization."""
        if request.chat:
            self._chat_history[action.agent].store(prompt_request, request.chat, action)
        elif action.agent in self._conversation_memories:
            self._conversation_memories[action.agent].store(prompt_request, action, request)
        self.actions[action.index] = action
        self._returned[id(action)] = action
        if self.game.callback:
            self.game.callback.on_action(action)
        return action

    @contextmanager
    def _count_active(self, step: int) -> Iterator[None]:
        self._active_count += 1
        try:
            yield
        except Exception as error:  # engine errors concern the whole run, not only this episode
            if step == self._active_step and not isinstance(error, ChatRefusedError):
                self._failure = error
            raise
        finally:
            self._active_count -= 1

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
            self._check_origin(agent.role, "sees", seen.action if isinstance(seen, MessageOverride) else seen)
        if request.begins is not None:
            self._check_origin(agent.role, "begins with", request.begins)

    def _check_origin(self, reader: str, does: str, action: object) -> None:
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
            description, hint = (
                f"a changed copy of {action.id}",
                "pass on an Excerpt of the action that the seat returned",
            )
        else:
            key = action.key
            description = f"{action.id} of the episode {key.stream} {key.task} #{key.sample}"
            hint = "an organization keeps no actions from one episode to the next"
        self._failure = EpisodeFailedError(
            "failed", f"{reader} {does} {description}, which is no action of this episode; {hint}"
        )
        raise self._failure

    def _check_active(self, step: int, agent: Agent) -> None:
        if step != self._active_step:
            branch = asyncio.current_task()
            if branch is not None:  # no caller awaits it any more, and asyncio would print an error
                branch.add_done_callback(lambda task: task.cancelled() or task.exception())
            raise EpisodeFailedError("failed", f"{agent.role} acts after act() has ended; await all that it starts")

    def _check_replay(self, observation: Observation) -> None:
        replay, step = self.attempt.replay, len(self.transitions)
        if replay and step < len(replay.observations) and observation.full_text != replay.observations[step]:
            raise EpisodeFailedError("failed", f"replaying step {step}: the environment shows {REPLAY_MISMATCH}")

    def _replayed_action(self, name: str, prompt: Prompt) -> Action | None:
        """Return the recorded action under this id if the replay serves it, or None.

        Raises:
            EpisodeFailedError: the prompt differs from the recorded prompt before the first sampled action.
        """
        replay = self.attempt.replay
        if replay is None:
            return None
        recorded = replay.recorded_action(name)
        if recorded is not None and not np.array_equal(recorded.prompt, prompt.ids):
            if self.first_sampled:
                return None  # a newly sampled action has changed this agent's input
            raise EpisodeFailedError("failed", f"replaying {name}: the agent sees {REPLAY_MISMATCH}")
        return replay.actions.get(name)

    async def _replay_calls(self, agent: Agent, served: Action) -> None:
        """Restore stateful tools to their state after a recorded action.

        Raises:
            EpisodeFailedError: a tool's output differs from the record.
        """
        replayed = await self.tool_executor.replay(agent.tool_use, served.calls) if served.calls else []
        for call, again in zip(served.calls, replayed, strict=True):
            output = self.game.renderer.clip(agent.policy, again.output, agent.tool_use.output_tokens)
            if output != call.output:
                raise EpisodeFailedError("failed", f"replaying {served.id}: {call.name} answers {REPLAY_MISMATCH}")

    def _add_critic_state(self, action: Action, actions: Sequence[Action]) -> Action:
        """Add the critic's input: the prompt plus the step's earlier actions that the agent did not see."""
        hidden_actions = [
            other_action
            for other_action in actions
            if other_action.index < action.index and other_action.id not in action.sees
        ]
        if not hidden_actions:
            return action
        observation, prompt_request, room = self._inputs[action.index]
        everything = sorted(
            [
                *prompt_request.received,
                *(
                    build_message(partial(self.attempt.receive_text, action.agent), other_action)
                    for other_action in hidden_actions
                ),
            ],
            key=lambda message: message.action.index,
        )
        agent = self.game.team.agent(action.agent)
        if prompt_request.from_client:
            new_messages = [message for message in everything if message.action.id not in action.sees]
            return replace(action, state=self._chat_history[action.agent].critic_tokens(prompt_request, new_messages))
        return replace(
            action, state=self._critic_tokens(agent, observation, everything, room, prompt_request.continues)
        )

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
            memory_tokens = self._conversation_memories[agent.role].critic_tokens(
                continues, observation, received, room
            )
            if memory_tokens is not None:
                return memory_tokens
        try:
            return render_prompt(self.game.renderer, agent, observation, received, room).ids
        # the critic's input may exceed the agent's prompt; the critic then reads a truncated one
        except EpisodeFailedError:
            return render_prompt(
                self.game.renderer, replace(agent, cut=TruncationPolicy()), observation, received, room
            ).ids

    def _default_answer(self, actions: Sequence[Action]) -> Action | None:
        answer_roles = {agent.role for agent in self.game.team.agents if agent.profile.answers}
        return next((action for action in reversed(actions) if action.agent in answer_roles), None)

    def record_step(self, observation: Observation, step: Step, step_info: StepInfo) -> None:
        """Record a step's transition."""
        step = self._outcome.apply_grade(step)
        self.transitions.append(Transition(observation, step.reward, step.agent_rewards, declared=step_info))
        self.success = step.success if step.success is not None else self.success

    def add_bootstrap(self, observation: Observation) -> None:
        """Store the final observation as each active agent would see it, for bootstrapping.

        The prompt contains no new messages. Room is reserved as for the agent's next action.
        """
        if self.attempt.critic_states and self.actions:
            for action in sorted(self.actions.values(), key=lambda action: (-action.step, action.index)):
                agent = self.game.team.agent(action.agent)
                if agent.role not in self.final_prompts:
                    room, memory = agent.sampling.max_new_tokens, self._conversation_memories.get(agent.role)
                    continues = memory.memory_ids() if memory else ()
                    self.final_prompts[agent.role] = self._critic_tokens(agent, observation, (), room, continues)

    def build_episode(self, status: Status, error: str) -> Episode:
        """Build the finished episode."""
        return Episode(
            task=self.attempt.task,
            stream=self.attempt.stream,
            sample=self.attempt.sample,
            actions=tuple(self.actions[index] for index in sorted(self.actions)),
            status=status,
            transitions=tuple(self.transitions),
            success=self.success,
            error=truncate(replace_surrogates(error), 2 * MAX_ERROR_LENGTH),
            bootstrap=self.final_prompts,
            seconds=time.perf_counter() - self._start_time,
            start_time=self._started_at,
            fork=Fork(replay.origin, replay.fork_id or self.first_sampled) if (replay := self.attempt.replay) else None,
        )
