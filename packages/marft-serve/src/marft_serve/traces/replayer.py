"""Replay of traces with a recipe's environment, team, tools and reward terms.

The usual code creates prompts, channels, tools, sessions and rewards. So a replayed trace is an ordinary episode,
with one exception: its tokens were not sampled, so their log-probabilities are unknown. A replay needs the chat formats
of the models, but loads no model.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import NamedTuple

import numpy as np

from marft.agents.agents import Agent, TeamAgents
from marft.agents.chat import Chat, ChatRefusedError
from marft.agents.game import Attempt, Game
from marft.agents.loop_threads import LoopThreadPool
from marft.agents.play import play
from marft.agents.prompt_messages import TruncationPolicy, parse_arguments
from marft.agents.sandbox.runner import terminate_all
from marft.common.errors import EpisodeFailedError
from marft.common.types import (
    ActionKey,
    Choice,
    Completion,
    Episode,
    JointAction,
    Observation,
    Option,
    Prompt,
    SamplingParams,
    Task,
    Tool,
    ToolCall,
    VersionRange,
)
from marft.config.interfaces.environment import Split
from marft.config.interfaces.organization import Agents, Organization
from marft.config.interfaces.tools import StatelessSource
from marft.config.run import RunSettings
from marft.envs.game_runtime import GameRuntime, open_terms
from marft.envs.tasks import read_tasks
from marft.inference.caller_thread import CallerThreadExecutor
from marft.inference.renderer import ChatRenderer
from marft.inference.runtime import build_renderer
from marft.models.tokenizer_format import TokenizerFormat, load_tokenizer_formats
from marft.trainer.learner import TRACES
from marft_serve.serving.team_handler import RequestEnvironment
from marft_serve.traces.roles import RoleMapping, check_roles
from marft_serve.traces.settings import SftSettings
from marft_serve.traces.turn_tokens import Thinking, check_known_tools, encode_turn
from marft_serve.traces.types import SkipCounter, TracedEpisode, TracedTurn, UnreadableError

MAX_CONCURRENT = 64  # episodes replayed concurrently
SPLITS: tuple[Split, ...] = ("train", "validation", "test")
UNKNOWN_TASK = "the environment has no task of this id or question, and what it is not asked it cannot grade"


class ReplayedTurn(NamedTuple):
    """Replayed turn.

    Args:
        key: key of its action.
        turn: the turn.
        tokens: number of tokens.
        prompt: prompt of the turn.
    """

    key: ActionKey
    turn: TracedTurn
    tokens: int
    prompt: Prompt


@dataclass(slots=True, eq=False)
class ReplayEngine:
    """Sampler for one episode, with a trace's turns instead of generation.

    Args:
        turns: turns in order, each with its role.
        renderer: renderer of the chat templates.
        thinking: ``keep`` or ``skip_turn`` recorded reasoning.
        replayed: turns replayed so far.
        problem: reason why the episode cannot be replayed; "" without one.
    """

    turns: Sequence[tuple[str, TracedTurn]]
    renderer: ChatRenderer
    thinking: Thinking
    replayed: list[ReplayedTurn] = field(default_factory=list)
    problem: str = ""
    _pending: dict[str, deque[TracedTurn]] = field(default_factory=lambda: defaultdict(deque))

    def __post_init__(self) -> None:
        for role, turn in self.turns:
            self._pending[role].append(turn)

    async def sample(self, policy: str, prompt: Prompt, sampling: SamplingParams, key: ActionKey) -> Completion:
        """Return the agent's next turn in the trace.

        Raises:
            EpisodeFailedError: the trace has no further turn of the agent, or the model's chat template cannot
                represent it.
        """
        del sampling
        turn = self._take_next_turn(key)
        try:
            ids = encode_turn(self.renderer, policy, prompt.chat, prompt.tools, turn, self.thinking)
        except UnreadableError as error:
            raise EpisodeFailedError("failed", f"{turn.location}: {error}") from error
        self.replayed.append(ReplayedTurn(key, turn, len(ids), prompt))
        return Completion(
            tokens=ids,
            log_probs=np.zeros(len(ids), np.float32),
            text=self.renderer.decode_tokens(policy, ids),
            finish="stop" if turn.complete else "length",
            calls=turn.calls if self.renderer.formats[policy].remote else None,
            usage=turn.usage,
        )

    async def choose(
        self, policy: str, prompt: Prompt, options: Sequence[Option], sampling: SamplingParams, key: ActionKey
    ) -> tuple[Choice, VersionRange]:
        """Return the option named by the agent's next turn in the trace.

        Raises:
            EpisodeFailedError: the trace has no further turn of the agent, or the turn names no option.
        """
        del sampling
        turn = self._take_next_turn(key)
        answer_ids = self.renderer.tokenize_option(policy, turn.text.strip())
        chosen = next((n for n, option in enumerate(options) if np.array_equal(option.tokens, answer_ids)), None)
        if chosen is None:
            raise EpisodeFailedError(
                "failed", f"{turn.location}: {key.agent} has to choose from a list, and said none of it"
            )
        self.replayed.append(ReplayedTurn(key, turn, 1, prompt))
        return Choice(tuple(options), chosen, np.zeros(len(options), np.float32), turn.usage), VersionRange()

    def external_wait(self) -> AbstractContextManager[None]:
        """No-op: replies are immediate."""
        return nullcontext()

    def skip_turn(self, role: str) -> None:
        """Skip an agent's next turn."""
        self._pending[role].popleft()

    def unused_turns(self) -> Iterator[tuple[str, TracedTurn]]:
        """Yield the unused turns, each with its role."""
        for role, turns in self._pending.items():
            yield from ((role, turn) for turn in turns)

    def _take_next_turn(self, key: ActionKey) -> TracedTurn:
        if not self._pending[key.agent]:
            count = sum(role == key.agent for role, _ in self.turns)
            raise EpisodeFailedError(
                "failed", f"the team asks {key.agent} more often than the trace has turns of it ({count})"
            )
        return self._pending[key.agent].popleft()


class ReplayOrganization(Organization):
    """Organization for trace replay, with recorded messages in place of an external program's requests.

    Args:
        uses_recipe_tools: True for the recipe's tools, False for the tools of the recorded requests.
    """

    _engine: ReplayEngine
    _skip_counter: SkipCounter
    _uses_recipe_tools: bool

    def __init__(self, engine: ReplayEngine, skip_counter: SkipCounter, uses_recipe_tools: bool = False) -> None:
        super().__init__()
        self._engine, self._skip_counter, self._uses_recipe_tools = engine, skip_counter, uses_recipe_tools

    async def act(self, observation: Observation, agents: Agents) -> JointAction:
        """Replay every turn in order, within a single environment step."""
        assert isinstance(agents, TeamAgents)
        ids: dict[str, str] = {}
        for role, turn in self._engine.turns:
            sees = tuple(ids[name] for name in turn.parents if name in ids) or None
            chat = Chat(turn.messages, turn.tools, parse_calls=bool(turn.calls), sees=sees)
            try:
                self._check_turn(agents[role].agent, turn)
                reply = await agents[role].reply(observation, chat)
            except (ChatRefusedError, UnreadableError) as error:
                self._engine.skip_turn(role)
                self._skip_counter.skip("turn", str(error), turn.location)
                continue
            ids[turn.id] = reply.action.id
        return JointAction()

    def _check_turn(self, agent: Agent, turn: TracedTurn) -> None:
        """Check a turn against the agent's template and tools.

        Raises:
            UnreadableError: the model's chat template cannot represent the turn, or the agent lacks a called tool.
        """
        if self._uses_recipe_tools:
            check_known_tools(turn, agent.profile.tools)
        encode_turn(self._engine.renderer, agent.policy, turn.messages, turn.tools, turn, self._engine.thinking)


class RecordedTools(StatelessSource):
    """Tool source with recorded results."""

    def __init__(self, definitions: Sequence[Tool], engine: ReplayEngine) -> None:
        self.definitions, self.engine = definitions, engine
        self._results: dict[str, deque[ToolCall]] = defaultdict(deque)
        for _, turn in engine.turns:
            for call in (candidate for index, candidate in enumerate(turn.calls) if index not in turn.missing_results):
                self._results[call_key(call.name, parse_arguments(call.arguments))].append(call)

    @property
    def tools(self) -> Sequence[Tool]:
        """Tool definitions from the recipe."""
        return self.definitions

    async def call(self, tool: str, arguments: Mapping[str, object]) -> str:
        """Return a call's recorded result; without a record, mark the episode failed."""
        results = self._results[call_key(tool, arguments)]
        if not results:
            self.engine.problem = f"the trace does not say what {tool!r} answered"
            return ""
        return results.popleft().output


def call_key(tool: str, arguments: Mapping[str, object]) -> str:
    """Return a key that is the same for equal calls."""
    return f"{tool} {json.dumps(arguments, sort_keys=True, default=str)}"


@dataclass(frozen=True, slots=True)
class ReplayedTrace:
    """Replayed trace.

    Args:
        trace: the trace.
        episode: the resulting episode of the recipe.
        turns: turns in the episode.
    """

    trace: TracedEpisode
    episode: Episode
    turns: Sequence[ReplayedTurn]


class TraceReplayer:
    """Replayer of traces. Call :meth:`close` at the end.

    Args:
        run: the recipe.
        skip_counter: counter of skipped items.
        formats: chat format of each policy; None to load the formats.

    Raises:
        ValueError: a part of the recipe is not available, or ``sft.roles`` names an unknown role.
    """

    def __init__(
        self, run: RunSettings, skip_counter: SkipCounter, formats: Mapping[str, TokenizerFormat] | None = None
    ) -> None:
        self.run, self.skip_counter = run, skip_counter
        roles = [agent.role for agent in run.agents]
        self._sft = SftSettings.from_run(run)
        check_roles(self._sft.roles, roles)
        self.roles = RoleMapping(roles, self._sft.roles)
        self.renderer = build_renderer(run, load_tokenizer_formats(run) if formats is None else formats)
        prompts = self._sft.prompts
        self.uses_trace_prompts = prompts == "trace" or (prompts == "auto" and run.team.writes_prompts)
        self._tasks = TaskIndex(run)
        self._attempts: Counter[str] = Counter()
        with ExitStack() as stack:
            terms = open_terms(run, stack.callback)
            empty_engine = ReplayEngine([], self.renderer, self._sft.thinking)
            self._parts = GameRuntime(run, terms, empty_engine, self.renderer, LoopThreadPool())
            stack.callback(self._parts.close)
            # on the main thread, a signal would end the current episode instead of the command
            self._executor = CallerThreadExecutor(terminate_all)
            stack.callback(self._executor.shutdown)
            stack.callback(terminate_all)
            self._stack = stack.pop_all()

    def render_fixed_prompts(self) -> dict[str, str]:
        """Return the fixed part of each agent's prompt: its prompt without an observation, rendered for its model."""
        prompts = dict[str, str]()
        for agent in self._parts.game.team.agents:
            prompt = self.renderer.render(agent.policy, agent.profile, "", (), reserve=0, cut=TruncationPolicy("none"))
            prompts[agent.role] = str(self.renderer.formats[agent.policy].tokenizer.decode(prompt.ids.tolist()))
        return prompts

    def replay(self, traces: Iterable[TracedEpisode], grade: bool) -> Iterator[ReplayedTrace]:
        """Replay traces concurrently; yield the results in order.

        Failed episodes are counted and included, with the reason. Traces without any turn of the recipe's agents
        are skipped.

        Args:
            traces: the traces.
            grade: True to compute rewards with the environment and the reward terms. Traces with unknown tasks are
                then skipped.
        """
        remaining = iter(traces)
        while batch := list(islice(remaining, MAX_CONCURRENT)):
            jobs = [job for trace in batch if (job := self._build_job(trace, grade)) is not None]
            yield from self._executor.wait_for(self._replay_batch(jobs, grade))

    async def _replay_batch(self, jobs: Sequence[_ReplayJob], grade: bool) -> list[ReplayedTrace]:
        return list(await asyncio.gather(*(self._replay_job(job, grade) for job in jobs)))

    def _build_job(self, trace: TracedEpisode, grade: bool) -> _ReplayJob | None:
        turns = list[tuple[str, TracedTurn]]()
        for turn in sorted(trace.turns, key=lambda turn: turn.start_time):
            role = self.roles.find_role(turn.names)
            if role:
                turns.append((role, turn))
            else:
                self.skip_counter.skip("turn", self.roles.format_unknown(turn.names), turn.location)
        if not turns:
            self.skip_counter.skip("episode", "no agent of the recipe says anything in it", trace.location)
            return None
        task, is_known = self._tasks.find_task(trace)
        if grade and not is_known:
            self.skip_counter.skip("episode", UNKNOWN_TASK, trace.location)
            return None
        self._attempts[task.id] += 1
        number = self._attempts[task.id] - 1 if trace.attempt is None else trace.attempt
        attempt = Attempt(task, TRACES, number)
        return _ReplayJob(trace, attempt, ReplayEngine(turns, self.renderer, self._sft.thinking), is_known)

    async def _replay_job(self, job: _ReplayJob, grade: bool) -> ReplayedTrace:
        episode = await play(self._build_game(job), job.attempt)
        if job.engine.problem and episode.is_scored:
            episode = replace(episode, status="failed", error=job.engine.problem)
        if grade:
            episode = await self._parts.reward_manager(episode)
        if not episode.is_scored:
            self.skip_counter.skip("episode", f"{episode.status}: {episode.error}", job.trace.location)
        else:
            for role, turn in job.engine.unused_turns():
                self.skip_counter.skip("turn", f"the recipe's team does not ask {role} for it", turn.location)
        return ReplayedTrace(job.trace, episode, job.engine.replayed)

    def _build_game(self, job: _ReplayJob) -> Game:
        """Return the recipe's game with the trace in place of the engine.

        Stateful tools are executed, since the session's result may depend on their state.
        """
        game, engine = self._parts.game, job.engine
        tools = {
            name: source if source.stateful else RecordedTools(source.tools, engine)
            for name, source in game.tools.items()
        }
        organization = ReplayOrganization(engine, self.skip_counter, uses_recipe_tools=not self.run.team.writes_prompts)
        team = replace(game.team, organization=organization) if self.uses_trace_prompts else game.team
        environment = game.environment if job.task_known else RequestEnvironment(job.attempt.task.prompt)
        seed = game.seed if job.trace.seed is None else job.trace.seed
        return replace(game, engine=engine, tools=tools, team=team, environment=environment, seed=seed)

    def skip_unused_roles(self) -> None:
        """Count the given names without any turn as skipped, after the last trace."""
        if unused := self.roles.unused_names():
            reason = f"no turn is by {', '.join(map(repr, unused))}, which --role names"
            self.skip_counter.skip("role", reason, "--role")

    def close(self) -> None:
        """Close tools, reward terms and threads."""
        self._stack.close()

    def __enter__(self) -> TraceReplayer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class _ReplayJob:
    """Trace to replay.

    Args:
        trace: the trace.
        attempt: task and attempt number.
        engine: sampler of the trace.
        task_known: True if the environment knows the task.
    """

    trace: TracedEpisode
    attempt: Attempt
    engine: ReplayEngine
    task_known: bool


class TaskIndex:
    """A recipe environment's tasks, by id and by question."""

    def __init__(self, run: RunSettings) -> None:
        self.by_id: dict[str, Task] = {}
        self.by_prompt: dict[str, Task] = {}
        problems = list[ValueError]()
        for split in SPLITS:
            try:
                tasks = read_tasks(run.environment, split)
            except ValueError as error:  # traces may need only tasks of a single split
                problems.append(error)
                continue
            for task in tasks:
                self.by_id.setdefault(task.id, task)
                self.by_prompt.setdefault(_normalize_prompt(task.prompt), task)
        if len(problems) == len(SPLITS):
            raise problems[0]

    def find_task(self, trace: TracedEpisode) -> tuple[Task, bool]:
        """Return a trace's task, and True if the environment can grade it.

        The task comes from a whole task in the trace, its task id, or the question in a user message of the first
        turn. Without a match, the task contains only that question.
        """
        if isinstance(trace.task, Task):
            return trace.task, True
        if trace.task in self.by_id:
            return self.by_id[trace.task], True
        questions = [str(message["content"]) for message in trace.turns[0].messages if message["role"] == "user"]
        for text in questions:
            paragraphs = text.split("\n\n")
            for count in range(len(paragraphs), 0, -1):
                task = self.by_prompt.get(_normalize_prompt("\n\n".join(paragraphs[:count])))
                if task is not None:
                    return task, True
        return Task(f"trace {trace.id}", questions[0] if questions else ""), False


def _normalize_prompt(prompt: str) -> str:
    return " ".join(prompt.split())
