"""Requests as episodes, for the whole team or for a single agent.

The code runs on the engine's event loop.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import ClassVar

import numpy as np

from marft.agents.agents import Agent, TeamAgents
from marft.agents.chat import Chat, ChatRefusedError, Reply
from marft.agents.chat_history import check_constraint, count_chat_tokens
from marft.agents.conversation import find_stop_string
from marft.agents.game import Attempt, Game
from marft.agents.play import play
from marft.agents.prompt_messages import ChatMessage
from marft.agents.streaming import TokenStream
from marft.agents.team import Team
from marft.common.errors import UserError
from marft.common.log import get_logger
from marft.common.texts import single_line
from marft.common.types import Action, Episode, JointAction, Observation, SamplingParams, Step, Task
from marft.config.agents import MIN_TEMPERATURE
from marft.config.interfaces.channel import Message
from marft.config.interfaces.engine import engine_problem
from marft.config.interfaces.environment import Environment, Split
from marft.config.interfaces.organization import Agents, Organization
from marft_serve.gateway.errors import RequestError, convert_chat_errors
from marft_serve.gateway.protocol.base import ParsedRequest
from marft_serve.gateway.protocol.parsing import unsupported_error

logger = get_logger(__name__)
STREAM = "serve"
TEAM_ALIAS = "team"
APPLIED_OPTIONS = ("temperature", "top_p", "top_k", "seed")
ProgressCallback = Callable[[Mapping[str, str]], None]


@dataclass(frozen=True, slots=True, eq=False)
class RequestResult:
    """Result of a request.

    Args:
        replies: one reply per choice.
        episode: the episode.
        prompt_tokens: number of prompt tokens, over all actions.
        sampled_tokens: number of sampled tokens, over all actions.
    """

    replies: tuple[Reply, ...]
    episode: Episode
    prompt_tokens: int
    sampled_tokens: int


class TeamHandler:
    """Request handler for a team.

    Args:
        game: the team with its engine.
        name: name of the team, which is also its model name; ``team`` is an alias.
        record: callback with every episode, ungraded.

    Raises:
        UserError: the roles use both names of the team.
    """

    def __init__(self, game: Game, name: str, record: Callable[[Episode], None] = lambda _: None) -> None:
        self.game, self._record = game, record
        roles = [agent.role for agent in game.team.agents]
        self.team_names = tuple(dict.fromkeys(candidate for candidate in (name, TEAM_ALIAS) if candidate not in roles))
        if not self.team_names:
            raise UserError(
                f"agents.{TEAM_ALIAS}: the whole team is served by that name; choose another role, or run name"
            )
        self.roles = tuple(roles)
        self._run, self._count = f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(4)}", itertools.count(1)

    @property
    def models(self) -> tuple[str, ...]:
        """Model names: the whole team first, then the roles."""
        return (*self.team_names, *self.roles)

    def next_request_id(self) -> str:
        """Return a unique id for a request."""
        return f"{self._run}-{next(self._count):06d}"

    def check_request(self, model: str, request: ParsedRequest) -> None:
        """Check a request before it enters the queue.

        Raises:
            RequestError: the model does not exist, or the team does not support the request.
        """
        if model not in self.models:
            names = ", ".join(self.models)
            raise RequestError(
                404, "model_not_found", f"no model is called {model[:100]!r}; there are: {names}", "model"
            )
        if model in self.roles:
            return
        chat = request.chat
        if chat.tools:
            raise unsupported_error("tools", "the team has its own, or none; ask a role")
        if request.count > 1:
            raise unsupported_error("n", "a team answers once; ask it so many times")
        if chat.return_token_texts:
            raise unsupported_error("logprobs", "they are of one agent; ask a role")
        if chat.prefix:
            raise unsupported_error("messages", "a team answers anew; ask a role to continue a turn")
        if chat.constraint:
            raise unsupported_error("response_format", "a team is not held to a form; ask a role")

    def check_format(self, model: str, request: ParsedRequest) -> None:
        """Check a request's constraint against the engine.

        The check may take long, and may run on any thread.

        Raises:
            RequestError: the constraint is not supported.
        """
        with convert_chat_errors():
            check_constraint(self.game.renderer, self.game.team.agent(model).policy, request.chat)

    async def count_tokens(self, model: str, request: ParsedRequest) -> int:
        """Return the number of prompt tokens for a role.

        Raises:
            RequestError: the model is not a role, or the chat cannot be rendered.
        """
        self.check_request(model, request)
        if model not in self.roles:
            raise unsupported_error("model", "the agents of a team read each something else; ask a role")
        agent = self.game.team.agent(model)
        chat = replace(request.chat, messages=_add_instructions(request.chat.messages, agent))
        with convert_chat_errors():
            return count_chat_tokens(self.game.renderer, agent.policy, chat)

    async def answer(
        self,
        model: str,
        request: ParsedRequest,
        name: str,
        progress: ProgressCallback = lambda _: None,
        live_actions: Sequence[TokenStream] = (),
    ) -> RequestResult:
        """Answer a request. Cancelling this coroutine ends the episode.

        Args:
            model: the team's name or a role.
            request: the request.
            name: id of the request.
            progress: callback with requested agents and their messages.
            live_actions: streams for the answer, one per choice.

        Raises:
            RequestError: the request failed.
        """
        team = replace(
            self.game.team, agents=apply_sampling_options(self.game.team.agents, request.chat.recorded_options)
        )
        if model in self.roles:
            return await self._answer_as_role(model, request, name, team, live_actions)
        team = apply_limits(team, request.chat)
        return await self._answer_as_team(
            request, name, team, _ProgressWatcher(progress, find_answer_role(team), live_actions)
        )

    async def _answer_as_team(
        self, request: ParsedRequest, name: str, team: Team, watcher: _ProgressWatcher
    ) -> RequestResult:
        text = build_task_text(request.chat.messages)
        question = RequestEnvironment(text)
        game = replace(self.game, team=team, environment=question, callback=watcher)
        episode = await self._play_episode(game, Task(name, text), request.chat.recorded_options.get("seed"), question)
        if question.answer is None:
            raise RequestError(500, "no_answer", "the team ended without an answer")
        answer = question.answer
        # the whole text of the action, including tool calls and results
        full_text = self.game.renderer.decode_tokens(answer.policy, answer.tokens)
        suffix = full_text[full_text.rfind(answer.text) + len(answer.text) :] if answer.text else full_text
        stopped = find_stop_string(request.chat.stop, suffix, "")
        return _build_result((Reply(*_merge_actions(answer, episode), stop_string=stopped),), episode)

    async def _answer_as_role(
        self, role: str, request: ParsedRequest, name: str, team: Team, live_actions: Sequence[TokenStream]
    ) -> RequestResult:
        chat = replace(request.chat, messages=_add_instructions(request.chat.messages, team.agent(role)))
        organization = SingleAgentOrganization(
            role, [replace(chat, token_stream=live) for live in live_actions] or [chat] * request.count
        )
        text = build_task_text(request.chat.messages)
        question = RequestEnvironment(text)
        game = replace(self.game, team=replace(team, organization=organization), environment=question)
        episode = await self._play_episode(game, Task(name, text), chat.recorded_options.get("seed"))
        if organization.error is not None:
            raise RequestError.from_chat_error(organization.error)
        return _build_result(tuple(organization.replies), episode)

    async def _play_episode(
        self, game: Game, task: Task, seed: float | None, question: RequestEnvironment | None = None
    ) -> Episode:
        """Play an episode for a request.

        Random streams depend on the request's seed, or on its id without a seed. The record always has the id.

        Args:
            game: the team with its engine.
            task: the task, with the request's id.
            seed: seed in the request; None without one.
            question: session with the answer, for a request to the whole team.
        """
        seeded_task = task if seed is None else replace(task, id=f"seed {seed}")
        try:
            episode = await play(game, Attempt(seeded_task, STREAM))
        except Exception as error:  # the server goes on with other requests
            logger.exception("%s could not be played", task.id)
            raise self._failure_error("the request could not be answered; the server's log says why") from error
        actions = [replace(action, key=action.key._replace(task=task.id)) for action in episode.actions]
        episode = replace(episode, task=task, actions=tuple(actions))
        answer = question.answer.id if question and question.answer else ""
        self._record(replace(episode, transitions=(), answer=answer))  # ungraded: the reward is unknown
        if not episode.is_scored:
            logger.warning("%s: %s: %s", task.id, episode.status, single_line(episode.error))
            message = "the team could not answer; the server's log says why"
            raise (
                RequestError(504, "timeout", message) if episode.status == "timed_out" else self._failure_error(message)
            )
        return episode

    @property
    def problem(self) -> str:
        """The engine's failure reason; "" without a failure."""
        return engine_problem(self.game.engine)

    def _failure_error(self, message: str) -> RequestError:
        if self.problem:
            return RequestError(503, "engine_failed", f"the engine cannot go on: {self.problem}")
        return RequestError(500, "team_failed", message)


class RequestEnvironment(Environment):
    """Environment and session for a single request: shows a text and stores the team's answer."""

    _text: str
    _answer: Action | None = None

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    @property
    def answer(self) -> Action | None:
        """The team's answer; None before the end and without an answer."""
        return self._answer

    def tasks(self, split: Split) -> Sequence[Task]:  # noqa: ARG002
        """Return no tasks."""
        return ()

    def start(self, task: Task, seed: int) -> RequestEnvironment:  # noqa: ARG002
        """Return this object as the session."""
        return self

    async def reset(self) -> Observation:
        """Return the text."""
        return Observation(self._text)

    async def step(self, actions: JointAction) -> Step:
        """Store the answer and end the episode."""
        self._answer = actions.answer
        return Step(Observation(""), 0.0, terminated=True)

    async def close(self) -> None:
        """Do nothing."""
        return


class SingleAgentOrganization(Organization):
    """Organization that forwards a client's messages to a single agent."""

    own_timeout: ClassVar[bool] = True

    _role: str
    _chats: Sequence[Chat]
    _replies: Sequence[Reply] = ()
    _error: ChatRefusedError | None = None

    def __init__(self, role: str, chats: Sequence[Chat]) -> None:
        super().__init__()
        self._role, self._chats = role, chats

    @property
    def replies(self) -> Sequence[Reply]:
        """One reply per chat; () after an error."""
        return self._replies

    @property
    def error(self) -> ChatRefusedError | None:
        """Reason why a chat was refused; None without one."""
        return self._error

    async def act(self, observation: Observation, agents: Agents) -> JointAction:
        """Request one reply per choice."""
        assert isinstance(agents, TeamAgents)
        pending = [agents[self._role].reply(observation, chat) for chat in self._chats]
        try:
            self._replies = list(await asyncio.gather(*pending))
        except ChatRefusedError as error:
            self._error = error
        return JointAction()


class _ProgressWatcher:
    """Watcher that reports an episode's progress.

    Args:
        progress: callback for progress.
        answer_role: role that gives the answer, if known in advance; its text is streamed as the answer.
        live_actions: streams for the answer.
    """

    def __init__(self, progress: ProgressCallback, answer_role: str, live_actions: Sequence[TokenStream]) -> None:
        self.progress, self.answer_role, self.live_actions = progress, answer_role, live_actions

    def on_observation(self, observation: Observation) -> None:
        """Do nothing; the client sent the observation itself."""

    def on_request(self, role: str, messages: Sequence[Message]) -> TokenStream | None:  # noqa: ARG002
        """Report the request; return the stream for the answering role."""
        self.progress({"agent": role, "state": "asked"})
        return self.live_actions[0] if self.live_actions and role == self.answer_role else None

    def on_action(self, action: Action) -> None:
        """Report the action, with its text unless it is the answer."""
        text = {} if action.agent == self.answer_role else {"text": action.message}
        self.progress({"agent": action.agent, "state": "acted", "action": action.id, **text})


def find_answer_role(team: Team) -> str:
    """Return the role that gives the team's answer; "" if only the finished episode shows it."""
    return team.organization.answer_only_role([agent.role for agent in team.agents if agent.profile.answers])


def build_task_text(messages: Sequence[ChatMessage]) -> str:
    """Return the task for a team from a chat.

    A single user message is used as it is. In a longer conversation, each message follows its role. System messages
    come first.

    >>> build_task_text([{"role": "user", "content": "2 + 3 ="}])
    '2 + 3 ='
    >>> build_task_text([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2 + 3 ="}])
    'Be brief.\\n\\n2 + 3 ='
    """
    system_texts = [str(message["content"]) for message in messages if message["role"] == "system"]
    turns = [message for message in messages if message["role"] != "system"]
    if len(turns) == 1:
        return "\n\n".join([*system_texts, str(turns[0]["content"])])
    return "\n\n".join([*system_texts, *(f"{str(turn['role']).capitalize()}:\n{turn['content']}" for turn in turns)])


def apply_sampling_options(agents: Sequence[Agent], options: Mapping[str, float | int]) -> tuple[Agent, ...]:
    """Return agents with a client's sampling parameters.

    Serving does not train, so the recipe's sampling settings are only defaults.
    """
    applied = {name: value for name, value in options.items() if name in APPLIED_OPTIONS}
    return tuple(replace(agent, sampling=_override_sampling(agent.sampling, applied)) for agent in agents)


def apply_limits(team: Team, chat: Chat) -> Team:
    """Return the team with the client's length limit and stop strings for every agent that may give the answer."""
    answer_role = find_answer_role(team)

    def limit_agent(agent: Agent) -> Agent:
        """Return an agent with the limits."""
        if not agent.profile.answers or answer_role not in ("", agent.role):
            return agent
        sampling = agent.sampling
        max_tokens = min(sampling.max_new_tokens, chat.max_tokens or sampling.max_new_tokens)
        return replace(agent, sampling=replace(sampling, max_new_tokens=max_tokens, stop=(*sampling.stop, *chat.stop)))

    return replace(team, agents=tuple(map(limit_agent, team.agents)))


def _override_sampling(defaults: SamplingParams, options: Mapping[str, float | int]) -> SamplingParams:
    temperature = float(options.get("temperature", defaults.temperature))
    return replace(
        defaults,
        temperature=0.0 if temperature < MIN_TEMPERATURE else temperature,
        top_p=float(options.get("top_p", defaults.top_p)),
        top_k=max(0, int(options.get("top_k", defaults.top_k))),
    )


def _add_instructions(messages: tuple[ChatMessage, ...], agent: Agent) -> tuple[ChatMessage, ...]:
    """Return a chat with the agent's instructions first, unless the client sends a system message."""
    if not agent.profile.instructions or any(message["role"] == "system" for message in messages):
        return messages
    return ({"role": "system", "content": agent.profile.instructions}, *messages)


def _merge_actions(answer: Action, episode: Episode) -> tuple[Action, dict[str, object], tuple[()], str]:
    """Return the team's answer in one action with every agent's tokens, for the usage counts."""
    empty = [np.empty(0, np.int32)]
    merged = replace(
        answer,
        prompt=np.concatenate([*empty, *(action.prompt for action in episode.actions)]),
        tokens=np.concatenate([*empty, *(action.tokens for action in episode.actions)]),
    )
    return merged, {"role": "assistant", "content": answer.message}, (), answer.text[: answer.thought]


def _build_result(replies: tuple[Reply, ...], episode: Episode) -> RequestResult:
    prompt_tokens = sum(len(action.prompt) for action in episode.actions)
    return RequestResult(replies, episode, prompt_tokens, sum(len(action.tokens) for action in episode.actions))
