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

from marft.agents.environment_calls import RefusedError, validate_number, validate_rewards
from marft.agents.loop_threads import CallTimeoutError, LoopThreadPool, UserCodeError, run_user_code
from marft.agents.task_copies import copy_episode_task
from marft.common.errors import EpisodeFailedError
from marft.common.types import Episode, Transition
from marft.config.interfaces.reward import RewardTerm, TermReward
from marft.rewards.terms import unique_names

N = TypeVar("N", bound=np.generic)
MAX_THREADS = 64  # maximum number of episodes with running terms


class RewardManager:
    """Composer for episode rewards from the recipe's terms.

    Without terms, or if an episode was not scored, its rewards stay unchanged.

    An episode fails if a term raises, hangs, returns a non-finite number, or rewards an agent outside the team. A
    failed term is never a reward of 0.

    Args:
        roles: roles of the team's agents.
        threads: pool of threads for the terms.
        timeout: seconds for a term without its own timeout.
    """

    def __init__(
        self, terms: Sequence[RewardTerm], roles: Sequence[str], threads: LoopThreadPool, timeout: float
    ) -> None:
        self.terms, self.roles, self.threads, self.timeout = terms, roles, threads, timeout
        self._names = {id(term): name for term, name in zip(terms, unique_names(terms), strict=True)}
        self._semaphore = asyncio.Semaphore(MAX_THREADS)

    async def __call__(self, episode: Episode) -> Episode:
        if not self.terms or not episode.is_scored:
            return episode
        try:
            scores = await self._score_on_thread(episode, [term for term in self.terms if not term.own_timeout])
            for term in self.terms:
                if term.own_timeout:
                    scores[id(term)] = await self._score_on_loop(episode, term)
            return combine_rewards(episode, [(term, scores[id(term)]) for term in self.terms])
        except EpisodeFailedError as failure:
            return replace(episode, status=failure.status, error=failure.reason)

    async def _score_on_loop(self, episode: Episode, term: RewardTerm) -> Sequence[TermReward]:
        try:
            return await run_user_code(_score, (term, self.roles, episode), EpisodeFailedError)
        except UserCodeError as error:
            raise EpisodeFailedError("failed", f"reward term {self._names[id(term)]!r} raised {error}") from error

    async def _score_on_thread(self, episode: Episode, terms: Sequence[RewardTerm]) -> dict[int, Sequence[TermReward]]:
        """Return the rewards of each term, by the term's ``id``."""
        scores: dict[int, Sequence[TermReward]] = {}
        if not terms:
            return scores
        async with self._semaphore:
            thread, running = self.threads.acquire(), ""
            try:
                for term in terms:
                    running = self._names[id(term)]
                    scores[id(term)] = await thread.call_user_code(
                        _score, term, self.roles, episode, timeout=self.timeout, passthrough=EpisodeFailedError
                    )
                running = ""
            except CallTimeoutError as error:
                reason = f"reward term {running!r} took over {self.timeout:g} s"
                raise EpisodeFailedError("timed_out", reason) from error
            except UserCodeError as error:
                raise EpisodeFailedError("failed", f"reward term {running!r} raised {error}") from error
            finally:
                await self.threads.release(thread, failed=bool(running))
        return scores


def combine_rewards(episode: Episode, scores: Sequence[tuple[RewardTerm, Sequence[TermReward]]]) -> Episode:
    """Return the episode with the combined rewards of its terms.

    Raises:
        EpisodeFailedError: a reward is not finite.
    """
    transitions, names = list(episode.transitions), unique_names([term for term, _ in scores])
    for index, transition in enumerate(transitions):
        step_rewards = [(name, term, rewards[index]) for name, (term, rewards) in zip(names, scores, strict=True)]
        transitions[index] = _combine_terms(transition, step_rewards)
        numbers = [transitions[index].reward, *transitions[index].agent_rewards.values()]
        if not all(map(math.isfinite, numbers)):
            terms = transitions[index].terms
            raise EpisodeFailedError("failed", f"the reward terms add up to {terms}, which is not finite")
    return replace(episode, transitions=tuple(transitions))


async def _score(term: RewardTerm, roles: Sequence[str], episode: Episode) -> Sequence[TermReward]:
    """Return a term's reward for each step, validated.

    Raises:
        EpisodeFailedError: the term returned invalid rewards.
    """
    scored = term.score(_copy_episode(episode))
    result: object = await scored if inspect.isawaitable(scored) else scored
    try:
        if not isinstance(result, Sequence) or len(result) != len(episode.transitions):
            count = len(result) if isinstance(result, Sequence) else f"{type(result).__name__}, not"
            raise RefusedError(f"gave {count} entries for {len(episode.transitions)} steps")
        return [_parse_reward(item, roles) for item in result]
    except RefusedError as error:
        raise EpisodeFailedError("failed", f"reward term {term.name!r} {error} ({term.source_location()})") from error


def _copy_episode(episode: Episode) -> Episode:
    """Return a protected episode copy for a single term.

    Changes by the term affect neither other terms nor the training data. Writing to an array of an action raises.
    """
    transitions = tuple(
        replace(
            t,
            agent_rewards=dict(t.agent_rewards),
            terms=dict(t.terms),
            observation=replace(t.observation, views=dict(t.observation.views), options=dict(t.observation.options)),
        )
        for t in episode.transitions
    )
    actions = tuple(
        replace(
            action,
            prompt=_read_only(action.prompt),
            tokens=_read_only(action.tokens),
            marks=_read_only(action.marks),
            log_probs=_read_only(action.log_probs),
        )
        for action in episode.actions
    )
    return replace(copy_episode_task(episode), transitions=transitions, actions=actions)


def _read_only(array: npt.NDArray[N]) -> npt.NDArray[N]:
    """Return a read-only view of an array."""
    view = array.view()
    view.flags.writeable = False
    return view


def _parse_reward(value: object, roles: Sequence[str]) -> TermReward:
    if not isinstance(value, TermReward):
        raise RefusedError(f"gave a {type(value).__name__}, not marft.config.interfaces.reward.TermReward")
    return TermReward(validate_number(value.team, "gave the team a reward of"), validate_rewards(value.agents, roles))


def _combine_terms(transition: Transition, term_rewards: Sequence[tuple[str, RewardTerm, TermReward]]) -> Transition:
    team, agent_rewards, contributions = 0.0, dict[str, float](), dict[str, float]()
    for name, term, reward in term_rewards:
        share = term.apply_weight(reward.team)
        team += share
        contributions[name] = share
        for agent, agent_reward in reward.agents.items():
            share = term.apply_weight(agent_reward)
            agent_rewards[agent] = agent_rewards.get(agent, 0.0) + share
            contributions[f"{name}/{agent}"] = share
    return replace(transition, reward=team, agent_rewards=agent_rewards, terms=contributions)
