"""Requests as episodes, for the whole team or for a single agent.

The code runs on the engine's event loop.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, ClassVar

import numpy as np

from marft.agents.agents import Agent, Agents
from marft.agents.chat import Chat, ChatRefusedError, Reply
from marft.agents.chat_counting import tokens_of
from marft.agents.chat_record import check_constraint
from marft.agents.engine import problem_of
from marft.agents.environment import Split
from marft.agents.game import Attempt, Game
from marft.agents.live import Live
from marft.agents.play import play
from marft.agents.rendering import ChatMessage, Message
from marft.agents.stop_strings import ended_by
from marft.agents.team import Team
from marft.common.texts import one_line
from marft.common.types import Action, Episode, JointAction, Observation, Sampling, Step, Task
from marft.config.agents import COLDEST
from marft_serve.gateway.protocol.exchange import Asked
from marft_serve.gateway.protocol.reading import unsupported
from marft_serve.gateway.refusals import RequestError

STREAM = "serve"
TEAM = "team"
HONOURED = ("temperature", "top_p", "top_k", "seed")
Progress = Callable[[Mapping[str, str]], None]


@dataclass(frozen=True, slots=True, eq=False)
class Answered:
    """Result of a request.

    Args:
        replies: one reply per choice.
        episode: the episode.
        read: number of prompt tokens, over all actions.
        said: number of sampled tokens, over all actions.
    """

    replies: tuple[Reply, ...]
    episode: Episode
    read: int
    said: int


class Asking:
    """Request handler for a team.

    Args:
        game: the team with its engine.
        name: name of the team, which is also its model name; ``team`` is an alias.
        record: callback with every episode, ungraded.

    Raises:
        ValueError: the roles use both names of the team.
    """

    def __init__(self, game: Game, name: str, record: Callable[[Episode], None] = lambda _: None) -> None:
        self.game, self._record = game, record
        roles = [agent.role for agent in game.team.agents]
        self.teams = tuple(dict.fromkeys(one for one in (name, TEAM) if one not in roles))
        if not self.teams:
            raise ValueError(f"agents.{TEAM}: the whole team is served by that name; choose another role, or run name")
        self.roles = tuple(roles)
        self._run, self._count = f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(4)}", itertools.count(1)

    @property
    def models(self) -> tuple[str, ...]:
        """Model names: the whole team first, then the roles."""
        return (*self.teams, *self.roles)

    def next_name(self) -> str:
        """Return a unique id for a request."""
        return f"{self._run}-{next(self._count):06d}"

    def check(self, model: str, asked: Asked) -> None:
        """Check a request before it enters the queue.

        Raises:
            RequestError: the model does not exist, or the team does not support the request.
        """
        if model not in self.models:
            known = ", ".join(self.models)
            raise RequestError(
                404, "model_not_found", f"no model is called {model[:100]!r}; there are: {known}", "model"
            )
        if model in self.roles:
            return
        chat = asked.chat
        if chat.tools:
            raise unsupported("tools", "the team has its own, or none; ask a role")
        if asked.count > 1:
            raise unsupported("n", "a team answers once; ask it so many times")
        if chat.pieces:
            raise unsupported("logprobs", "they are of one agent; ask a role")
        if chat.begun:
            raise unsupported("messages", "a team answers anew; ask a role to continue a turn")
        if chat.constraint:
            raise unsupported("response_format", "a team is not held to a form; ask a role")

    def check_form(self, model: str, asked: Asked) -> None:
        """Check a request's constraint against the engine.

        The check may take long, and may run on any thread.

        Raises:
            RequestError: the constraint is not supported.
        """
        try:
            check_constraint(self.game.renderer, self.game.team.agent(model).policy, asked.chat)
        except ChatRefusedError as error:
            raise RequestError.of(error) from error

    async def count(self, model: str, asked: Asked) -> int:
        """Return the number of prompt tokens for a role.

        Raises:
            RequestError: the model is not a role, or the chat cannot be rendered.
        """
        self.check(model, asked)
        if model not in self.roles:
            raise unsupported("model", "the agents of a team read each something else; ask a role")
        agent = self.game.team.agent(model)
        chat = replace(asked.chat, messages=_instructed(asked.chat.messages, agent))
        try:
            return tokens_of(self.game.renderer, agent.policy, chat)
        except ChatRefusedError as error:
            raise RequestError.of(error) from error

    async def ask(
        self, model: str, asked: Asked, name: str, progress: Progress = lambda _: None, lives: Sequence[Live] = (),
    ) -> Answered:  # fmt: skip
        """Answer a request. Cancelling this coroutine ends the episode.

        Args:
            model: the team's name or a role.
            asked: the request.
            name: id of the request.
            progress: callback with requested agents and their messages.
            lives: streams for the answer, one per choice.

        Raises:
            RequestError: the request failed.
        """
        team = replace(self.game.team, agents=wished(self.game.team.agents, asked.chat.wishes))
        if model in self.roles:
            return await self._of_role(model, asked, name, team, lives)
        team = limited(team, asked.chat)
        return await self._of_team(asked, name, team, _Told(progress, answering_role(team), lives))

    async def _of_team(self, asked: Asked, name: str, team: Team, watcher: _Told) -> Answered:
        question = Question(task_of(asked.chat.messages))
        game = replace(self.game, team=team, environment=question, watcher=watcher)
        episode = await self._played(game, Task(name, question.text), asked.chat.wishes.get("seed"), question)
        if question.answer is None:
            raise RequestError(500, "no_answer", "the team ended without an answer")
        answer = question.answer
        # the whole text of the action, including tool calls and results
        said = self.game.renderer.spelled(answer.policy, answer.tokens)
        after = said[said.rfind(answer.text) + len(answer.text) :] if answer.text else said
        stopped = ended_by(asked.chat.stop, after, "")
        return _answered((Reply(*_as_one(answer, episode), stopped=stopped),), episode)

    async def _of_role(self, role: str, asked: Asked, name: str, team: Team, lives: Sequence[Live]) -> Answered:
        chat = replace(asked.chat, messages=_instructed(asked.chat.messages, team.agent(role)))
        one = OneSeat(role, [replace(chat, live=live) for live in lives] or [chat] * asked.count)
        question = Question(task_of(asked.chat.messages))
        game = replace(self.game, team=replace(team, organization=one), environment=question)
        episode = await self._played(game, Task(name, question.text), chat.wishes.get("seed"))
        if one.refused is not None:
            raise RequestError.of(one.refused)
        return _answered(tuple(one.replies), episode)

    async def _played(self, game: Game, task: Task, seed: float | None, whole: Question | None = None) -> Episode:
        """Play an episode for a request.

        Random streams depend on the request's seed, or on its id without a seed. The record always has the id.

        Args:
            game: the team with its engine.
            task: the task, with the request's id.
            seed: seed in the request; None without one.
            whole: session with the answer, for a request to the whole team.
        """
        named = task if seed is None else replace(task, id=f"seed {seed}")
        try:
            episode = await play(game, Attempt(named, STREAM))
        except Exception as error:
            logging.getLogger("marft").exception("%s could not be played", task.id)
            raise self._failed("the request could not be answered; the server's log says why") from error
        actions = [replace(action, key=action.key._replace(task=task.id)) for action in episode.actions]
        episode = replace(episode, task=task, actions=tuple(actions))
        answer = whole.answer.id if whole and whole.answer else ""
        self._record(replace(episode, transitions=(), answer=answer))  # ungraded: the reward is unknown
        if not episode.scored:
            logging.getLogger("marft").warning("%s: %s: %s", task.id, episode.status, one_line(episode.error))
            said = "the team could not answer; the server's log says why"
            raise RequestError(504, "timeout", said) if episode.status == "timed_out" else self._failed(said)
        return episode

    @property
    def problem(self) -> str:
        """The engine's failure reason; "" without a failure."""
        return problem_of(self.game.engine)

    def _failed(self, said: str) -> RequestError:
        if self.problem:
            return RequestError(503, "engine_failed", f"the engine cannot go on: {self.problem}")
        return RequestError(500, "team_failed", said)


class Question:
    """Environment and session for a single request: shows a text and stores the team's answer."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.answer: Action | None = None

    def tasks(self, split: Split) -> Sequence[Task]:  # noqa: ARG002
        """Return no tasks."""
        return ()

    def start(self, task: Task, seed: int) -> Question:  # noqa: ARG002
        """Return this object as the session."""
        return self

    async def reset(self) -> Observation:
        """Return the text."""
        return Observation(self.text)

    async def step(self, actions: JointAction) -> Step:
        """Store the answer and end the episode."""
        self.answer = actions.answer
        return Step(Observation(""), 0.0, terminated=True)

    async def close(self) -> None:
        """Do nothing."""
        return


class OneSeat:
    """Organization that forwards a client's messages to a single agent."""

    own_timeout: ClassVar[bool] = True

    def __init__(self, role: str, chats: Sequence[Chat]) -> None:
        self.role, self.chats = role, chats
        self.replies: list[Reply] = []
        self.refused: ChatRefusedError | None = None

    async def act(self, observation: Observation, agents: Agents) -> JointAction:
        """Request one reply per choice."""
        wanted = [agents[self.role].reply(observation, chat) for chat in self.chats]
        try:
            self.replies = list(await asyncio.gather(*wanted))
        except ChatRefusedError as error:
            self.refused = error
        return JointAction()


class _Told:
    """Watcher that reports an episode's progress.

    Args:
        progress: callback for progress.
        answering: role that gives the answer, if known in advance; its text is streamed as the answer.
        lives: streams for the answer.
    """

    def __init__(self, progress: Progress, answering: str, lives: Sequence[Live]) -> None:
        self.progress, self.answering, self.lives = progress, answering, lives

    def observed(self, observation: Observation) -> None:
        """Do nothing; the client sent the observation itself."""

    def asked(self, role: str, read: Sequence[Message]) -> Live | None:  # noqa: ARG002
        """Report the request; return the stream for the answering role."""
        self.progress({"agent": role, "state": "asked"})
        return self.lives[0] if self.lives and role == self.answering else None

    def acted(self, action: Action) -> None:
        """Report the action, with its text unless it is the answer."""
        text = {} if action.agent == self.answering else {"text": action.message}
        self.progress({"agent": action.agent, "state": "acted", "action": action.id, **text})


def answering_role(team: Team) -> str:
    """Return the role that gives the team's answer; "" if only the finished episode shows it."""
    known = getattr(team.organization, "answering_role", None)
    return str(known([agent.role for agent in team.agents if agent.profile.answers])) if known else ""


def task_of(messages: Sequence[ChatMessage]) -> str:
    """Return the task for a team from a chat.

    A single user message is used as it is. In a longer conversation, each message follows its role. System messages
    come first.

    >>> task_of([{"role": "user", "content": "2 + 3 ="}])
    '2 + 3 ='
    >>> task_of([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2 + 3 ="}])
    'Be brief.\\n\\n2 + 3 ='
    """
    told = [str(message["content"]) for message in messages if message["role"] == "system"]
    turns = [message for message in messages if message["role"] != "system"]
    if len(turns) == 1:
        return "\n\n".join([*told, str(turns[0]["content"])])
    return "\n\n".join([*told, *(f"{str(turn['role']).capitalize()}:\n{turn['content']}" for turn in turns)])


def wished(agents: Sequence[Agent], wishes: Mapping[str, float | int]) -> tuple[Agent, ...]:
    """Return agents with a client's sampling parameters.

    Serving does not train, so the recipe's sampling settings are only defaults.
    """
    asked = {name: value for name, value in wishes.items() if name in HONOURED}
    return tuple(replace(agent, sampling=_sampled(agent.sampling, asked)) for agent in agents)


def limited(team: Team, chat: Chat) -> Team:
    """Return the team with the client's length limit and stop strings for every agent that may give the answer."""
    answering = answering_role(team)

    def of(agent: Agent) -> Agent:
        """Return an agent with the limits."""
        if not agent.profile.answers or answering not in ("", agent.role):
            return agent
        own = agent.sampling
        most = min(own.max_new_tokens, chat.max_tokens or own.max_new_tokens)
        return replace(agent, sampling=replace(own, max_new_tokens=most, stop=(*own.stop, *chat.stop)))

    return replace(team, agents=tuple(map(of, team.agents)))


def _sampled(own: Sampling, asked: Mapping[str, float | int]) -> Sampling:
    temperature = float(asked.get("temperature", own.temperature))
    return replace(
        own,
        temperature=0.0 if temperature < COLDEST else temperature,
        top_p=float(asked.get("top_p", own.top_p)),
        top_k=max(0, int(asked.get("top_k", own.top_k))),
    )


def _instructed(messages: tuple[ChatMessage, ...], agent: Agent) -> tuple[ChatMessage, ...]:
    """Return a chat with the agent's instructions first, unless the client sends a system message."""
    if not agent.profile.instructions or any(message["role"] == "system" for message in messages):
        return messages
    return ({"role": "system", "content": agent.profile.instructions}, *messages)


def _as_one(answer: Action, episode: Episode) -> tuple[Action, dict[str, Any], tuple[()], str]:
    """Return the team's answer in one action with every agent's tokens, for the usage counts."""
    nothing = [np.empty(0, np.int32)]
    whole = replace(
        answer,
        prompt=np.concatenate([*nothing, *(action.prompt for action in episode.actions)]),
        tokens=np.concatenate([*nothing, *(action.tokens for action in episode.actions)]),
    )
    return whole, {"role": "assistant", "content": answer.message}, (), answer.text[: answer.thought]


def _answered(replies: tuple[Reply, ...], episode: Episode) -> Answered:
    read = sum(len(action.prompt) for action in episode.actions)
    return Answered(replies, episode, read, sum(len(action.tokens) for action in episode.actions))
