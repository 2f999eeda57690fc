"""Replay of traces with a recipe's environment, team, tools and reward terms.

It needs the chat formats of the models, but loads no model.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import islice

from marft.agents.environment import Split
from marft.agents.game import Attempt, Game
from marft.agents.loop_threads import LoopThreadPool
from marft.agents.play import play
from marft.agents.rendering import Cut
from marft.agents.sandbox.runner import end_all
from marft.common.types import Episode, Task
from marft.config.run import RunSettings
from marft.envs.game_parts import GameParts, open_terms
from marft.envs.tasks import tasks_of
from marft.inference.caller_thread import CallerThreadExecutor
from marft.inference.samplers import renderer_of
from marft.models.formats import Format, load_formats
from marft.trainer.supervised import TRACES
from marft_serve.traces.record import Tally, TracedEpisode, TracedTurn
from marft_serve.traces.retelling import Narrator, RecordedTools, Retelling, Retold, Untold
from marft_serve.traces.roles import Roles, check_roles
from marft_serve.traces.settings import SftSettings

AT_ONCE = 64  # episodes replayed concurrently
SPLITS: tuple[Split, ...] = ("train", "validation", "test")
NO_TASK = "the environment has no task of this id or question, and what it is not asked it cannot grade"


@dataclass(frozen=True, slots=True)
class Told:
    """Replayed trace.

    Args:
        trace: the trace.
        episode: the resulting episode of the recipe.
        said: turns in the episode.
    """

    trace: TracedEpisode
    episode: Episode
    said: Sequence[Retelling]


class Stage:
    """Replayer of traces. Call :meth:`close` at the end.

    Args:
        run: the recipe.
        tally: counter of skipped items.
        formats: chat format of each policy; None to load the formats.

    Raises:
        ValueError: a part of the recipe is not available, or ``sft.roles`` names an unknown role.
    """

    def __init__(self, run: RunSettings, tally: Tally, formats: Mapping[str, Format] | None = None) -> None:
        self.run, self.tally = run, tally
        roles = [agent.role for agent in run.agents]
        self._sft = SftSettings.of(run)
        check_roles(self._sft.roles, roles)
        self.roles = Roles(roles, self._sft.roles)
        self.renderer = renderer_of(run, load_formats(run) if formats is None else formats)
        prompts = self._sft.prompts
        self.by_messages = prompts == "trace" or (prompts == "auto" and run.team.own_words)
        self._tasks = Tasks(run)
        self._attempts: Counter[str] = Counter()
        with ExitStack() as started:
            terms = open_terms(run, started.callback)
            nobody = Retold([], self.renderer, self._sft.thinking)
            self._parts = GameParts(run, terms, nobody, self.renderer, LoopThreadPool())
            started.callback(self._parts.close)
            # on the main thread, a signal would end the current episode instead of the command
            self._waiting = CallerThreadExecutor(end_all)
            started.callback(self._waiting.shutdown)
            started.callback(end_all)
            self._started = started.pop_all()

    def told_whatever(self) -> dict[str, str]:
        """Return the fixed part of each agent's prompt: its prompt without an observation, rendered for its model."""
        told = dict[str, str]()
        for agent in self._parts.game.team.agents:
            prompt = self.renderer.render(agent.policy, agent.profile, "", (), reserve=0, cut=Cut("nothing"))
            told[agent.role] = str(self.renderer.formats[agent.policy].tokenizer.decode(prompt.ids.tolist()))
        return told

    def tell(self, traces: Iterable[TracedEpisode], grade: bool) -> Iterator[Told]:
        """Replay traces concurrently; yield the results in order.

        Failed episodes are counted and included, with the reason. Traces without any turn of the recipe's agents
        are skipped.

        Args:
            traces: the traces.
            grade: True to compute rewards with the environment and the reward terms. Traces with unknown tasks are
                then skipped.
        """
        whole = iter(traces)
        while some := list(islice(whole, AT_ONCE)):
            jobs = [job for trace in some if (job := self._job(trace, grade)) is not None]
            yield from self._waiting.wait_for(self._together(jobs, grade))

    async def _together(self, jobs: Sequence[_Job], grade: bool) -> list[Told]:
        return list(await asyncio.gather(*(self._played(job, grade) for job in jobs)))

    def _job(self, trace: TracedEpisode, grade: bool) -> _Job | None:
        turns = list[tuple[str, TracedTurn]]()
        for turn in sorted(trace.turns, key=lambda turn: turn.started):
            role = self.roles.of(turn.names)
            if role:
                turns.append((role, turn))
            else:
                self.tally.skip("turn", self.roles.unknown(turn.names), turn.place)
        if not turns:
            self.tally.skip("episode", "no agent of the recipe says anything in it", trace.place)
            return None
        task, known = self._tasks.of(trace)
        if grade and not known:
            self.tally.skip("episode", NO_TASK, trace.place)
            return None
        self._attempts[task.id] += 1
        number = self._attempts[task.id] - 1 if trace.attempt is None else trace.attempt
        attempt = Attempt(task, TRACES, number)
        return _Job(trace, attempt, Retold(turns, self.renderer, self._sft.thinking), known)

    async def _played(self, job: _Job, grade: bool) -> Told:
        episode = await play(self._game(job), job.attempt)
        if job.retold.problem and episode.scored:
            episode = replace(episode, status="failed", error=job.retold.problem)
        if grade:
            episode = await self._parts.compose(episode)
        if not episode.scored:
            self.tally.skip("episode", f"{episode.status}: {episode.error}", job.trace.place)
        else:
            for role, turn in job.retold.unsaid():
                self.tally.skip("turn", f"the recipe's team does not ask {role} for it", turn.place)
        return Told(job.trace, episode, job.retold.said)

    def _game(self, job: _Job) -> Game:
        """Return the recipe's game with the trace in place of the engine.

        Stateful tools are executed, since the session's result may depend on their state.
        """
        game, retold = self._parts.game, job.retold
        tools = {
            name: source if source.stateful else RecordedTools(source.tools, retold)
            for name, source in game.tools.items()
        }
        narrator = Narrator(retold, self.tally, equipped=not self.run.team.own_words)
        team = replace(game.team, organization=narrator) if self.by_messages else game.team
        environment = game.environment if job.known else Untold()
        seed = game.seed if job.trace.seed is None else job.trace.seed
        return replace(game, engine=retold, tools=tools, team=team, environment=environment, seed=seed)

    def close(self) -> None:
        """Close tools, reward terms and threads."""
        self._started.close()

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class _Job:
    """Trace to replay.

    Args:
        trace: the trace.
        attempt: task and attempt number.
        retold: sampler of the trace.
        known: True if the environment knows the task.
    """

    trace: TracedEpisode
    attempt: Attempt
    retold: Retold
    known: bool


class Tasks:
    """A recipe environment's tasks, by id and by question."""

    def __init__(self, run: RunSettings) -> None:
        self.by_id: dict[str, Task] = {}
        self.by_prompt: dict[str, Task] = {}
        problems = list[ValueError]()
        for split in SPLITS:
            try:
                tasks = tasks_of(run.environment, split)
            except ValueError as error:  # traces may need only tasks of a single split
                problems.append(error)
                continue
            for task in tasks:
                self.by_id.setdefault(task.id, task)
                self.by_prompt.setdefault(_plain(task.prompt), task)
        if len(problems) == len(SPLITS):
            raise problems[0]

    def of(self, trace: TracedEpisode) -> tuple[Task, bool]:
        """Return a trace's task, and True if the environment can grade it.

        The task comes from a whole task in the trace, its task id, or the question in a user message of the first
        turn. Without a match, the task contains only that question.
        """
        if isinstance(trace.task, Task):
            return trace.task, True
        if trace.task in self.by_id:
            return self.by_id[trace.task], True
        asked = [str(message["content"]) for message in trace.turns[0].messages if message["role"] == "user"]
        for text in asked:
            paragraphs = text.split("\n\n")
            for count in range(len(paragraphs), 0, -1):
                found = self.by_prompt.get(_plain("\n\n".join(paragraphs[:count])))
                if found is not None:
                    return found, True
        return Task(f"trace {trace.id}", asked[0] if asked else ""), False


def _plain(prompt: str) -> str:
    return " ".join(prompt.split())
