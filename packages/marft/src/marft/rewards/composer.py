"""Reward composition: environment rewards replaced by the recipe's terms, with separate metrics for each term."""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from marft.agents.loop_threads import LoopThreadPool, OverdueError, RaisedError, in_words
from marft.agents.reading import RefusedError, number, own_rewards
from marft.agents.tasks import with_own_task
from marft.common.errors import EpisodeFailedError
from marft.common.types import Episode, Observation, Transition
from marft.rewards.terms import Term, TermReward, names_of

N = TypeVar("N", bound=np.generic)
MOST_THREADS = 64  # maximum number of episodes with running terms


class RewardComposer:
    """Composer for episode rewards from the recipe's terms.

    Without terms, or if an episode was not scored, its rewards stay unchanged.

    An episode fails if a term raises, hangs, returns a non-finite number, or rewards an agent outside the team. A
    failed term is never a reward of 0.

    Args:
        roles: roles of the team's agents.
        threads: pool of threads for the terms.
        timeout: seconds for a term without its own timeout.
    """

    def __init__(self, terms: Sequence[Term], roles: Sequence[str], threads: LoopThreadPool, timeout: float) -> None:
        self.terms, self.roles, self.threads, self.timeout = terms, roles, threads, timeout
        self._names = {id(term): name for term, name in zip(terms, names_of(terms), strict=True)}
        self._gate = asyncio.Semaphore(MOST_THREADS)

    async def __call__(self, episode: Episode) -> Episode:
        if not self.terms or not episode.scored:
            return episode
        try:
            scores = await self._on_a_thread(episode, [term for term in self.terms if not term.own_timeout])
            for term in self.terms:
                if term.own_timeout:
                    scores[id(term)] = await self._here(episode, term)
            return compose(episode, [(term, scores[id(term)]) for term in self.terms])
        except EpisodeFailedError as failure:
            return replace(episode, status=failure.status, error=failure.reason)

    async def _here(self, episode: Episode, term: Term) -> Sequence[TermReward]:
        try:
            return await in_words(_score, (term, self.roles, episode), EpisodeFailedError)
        except RaisedError as error:
            raise EpisodeFailedError("failed", f"reward term {self._names[id(term)]!r} raised {error}") from error

    async def _on_a_thread(self, episode: Episode, terms: Sequence[Term]) -> dict[int, Sequence[TermReward]]:
        """Return the rewards of each term, by the term's ``id``."""
        scores: dict[int, Sequence[TermReward]] = {}
        if not terms:
            return scores
        async with self._gate:
            thread, under_way = self.threads.acquire(), ""
            try:
                for term in terms:
                    under_way = self._names[id(term)]
                    scores[id(term)] = await thread.call_theirs(
                        _score, term, self.roles, episode, timeout=self.timeout, passing=EpisodeFailedError
                    )
                under_way = ""
            except OverdueError as error:
                reason = f"reward term {under_way!r} took over {self.timeout:g} s"
                raise EpisodeFailedError("timed_out", reason) from error
            except RaisedError as error:
                raise EpisodeFailedError("failed", f"reward term {under_way!r} raised {error}") from error
            finally:
                await self.threads.release(thread, suspect=bool(under_way))
        return scores


def compose(episode: Episode, scores: Sequence[tuple[Term, Sequence[TermReward]]]) -> Episode:
    """Return the episode with the combined rewards of its terms.

    Raises:
        EpisodeFailedError: a reward is not finite.
    """
    transitions, names = list(episode.transitions), names_of([term for term, _ in scores])
    for index, transition in enumerate(transitions):
        here = [(name, term, earned[index]) for name, (term, earned) in zip(names, scores, strict=True)]
        transitions[index] = _composed(transition, here)
        numbers = [transitions[index].reward, *transitions[index].agent_rewards.values()]
        if not all(map(math.isfinite, numbers)):
            terms = transitions[index].terms
            raise EpisodeFailedError("failed", f"the reward terms add up to {terms}, which is not finite")
    return replace(episode, transitions=tuple(transitions))


async def _score(term: Term, roles: Sequence[str], episode: Episode) -> Sequence[TermReward]:
    """Return a term's reward for each step, validated.

    Raises:
        EpisodeFailedError: the term returned invalid rewards.
    """
    scored = term.score(_own(episode))
    given: object = await scored if inspect.isawaitable(scored) else scored
    try:
        if not isinstance(given, Sequence) or len(given) != len(episode.transitions):
            many = len(given) if isinstance(given, Sequence) else f"{type(given).__name__}, not"
            raise RefusedError(f"gave {many} entries for {len(episode.transitions)} steps")
        return [_read(one, roles) for one in given]
    except RefusedError as error:
        raise EpisodeFailedError("failed", f"reward term {term.name!r} {error} ({term.written()})") from error


def _own(episode: Episode) -> Episode:
    """Return a protected episode copy for a single term.

    Changes by the term affect neither other terms nor the training data. Writing to an array of an action raises.
    """
    transitions = tuple(
        replace(
            t, agent_rewards=dict(t.agent_rewards), terms=dict(t.terms), observation=_own_observation(t.observation)
        )
        for t in episode.transitions
    )
    actions = tuple(
        replace(
            action, prompt=_locked(action.prompt), tokens=_locked(action.tokens), marks=_locked(action.marks),
            log_probs=_locked(action.log_probs),
        )
        for action in episode.actions
    )  # fmt: skip
    return replace(with_own_task(episode), transitions=transitions, actions=actions)


def _own_observation(observation: Observation) -> Observation:
    return replace(observation, views=dict(observation.views), options=dict(observation.options))


def _locked(array: npt.NDArray[N]) -> npt.NDArray[N]:
    """Return a read-only view of an array."""
    view = array.view()
    view.flags.writeable = False
    return view


def _read(given: object, roles: Sequence[str]) -> TermReward:
    if not isinstance(given, TermReward):
        raise RefusedError(f"gave a {type(given).__name__}, not marft.rewards.terms.TermReward")
    return TermReward(number(given.team, "gave the team a reward of"), own_rewards(given.agents, roles))


def _composed(transition: Transition, earned: Sequence[tuple[str, Term, TermReward]]) -> Transition:
    team, own, parts = 0.0, dict[str, float](), dict[str, float]()
    for name, term, here in earned:
        share = term.weighed(here.team)
        team += share
        parts[name] = share
        for agent, reward in here.agents.items():
            share = term.weighed(reward)
            own[agent] = own.get(agent, 0.0) + share
            parts[f"{name}/{agent}"] = share
    return replace(transition, reward=team, agent_rewards=own, terms=parts)
