"""Recipe checks for impossible sizes and contradicting numbers, with the arithmetic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from marft.config.run import RunSettings

MAX_EPISODES = 1_000_000  # maximum episodes in one training step
MAX_TOKENS = 10**10  # maximum tokens sampled in one environment step by all episodes of a training step
BYTES_PER_TOKEN = 9  # bytes of a recorded token: id, log-prob and mark


def size_problems(run: RunSettings) -> Iterable[str]:
    """Yield problems with a run's sizes."""
    yield from _step_problems(run)
    yield from _minibatch_problems(run)
    for agent in run.agents:
        policy = run.policies.get(agent.policy)
        context = run.models[policy.model].context_length if policy and policy.model in run.models else 0
        if context and agent.sampling.max_new_tokens >= context:
            yield (
                f"agents.{agent.role}.sampling.max_new_tokens: {agent.sampling.max_new_tokens:,} leaves no room for a "
                f"prompt in a context of {context:,} tokens (models.{policy.model if policy else ''}.context)"
            )
        buffer = run.algorithm.reward.overlong_buffer
        if policy and policy.train != "frozen" and buffer > agent.sampling.max_new_tokens:
            yield (
                f"algorithm.reward.overlong_buffer: {buffer:,} tokens are more than the "
                f"{agent.sampling.max_new_tokens:,} that agent {agent.role!r} may write, so every action would be late"
            )


def _step_problems(run: RunSettings) -> Iterable[str]:
    tasks, samples = run.rollout.tasks_per_step, run.rollout.samples_per_task
    tokens_per_step = sum(agent.sampling.max_new_tokens for agent in run.agents)
    product = f"{tasks:,} tasks_per_step × {samples:,} samples_per_task"
    if extra_tasks := sum(section.extra_tasks(run.training.steps - 1, tasks) for section in run.sections):
        product = f"({tasks:,} tasks_per_step + {extra_tasks:,} imagined) × {samples:,} samples_per_task"
    episodes = (tasks + extra_tasks) * samples
    tokens = episodes * tokens_per_step
    if episodes > MAX_EPISODES:
        yield f"rollout: {product} = {episodes:,} episodes a step; at most {MAX_EPISODES:,} are possible"
    elif tokens > MAX_TOKENS:
        yield (
            f"rollout: {product} × {tokens_per_step:,} tokens (max_new_tokens of all agents) = {tokens:,} tokens a "
            f"step, which take {tokens * BYTES_PER_TOKEN / 1e9:,.0f} GB to record; at most {MAX_TOKENS:,} are possible"
        )


def _minibatch_problems(run: RunSettings) -> Iterable[str]:
    """Yield a problem if minibatches outnumber actions, given a known number per episode."""
    if run.algorithm.credit.fork_plan or not run.team.single_action_each:
        return
    agents_per_policy = Counter(agent.policy for agent in run.agents if agent.policy in run.trained_policies)
    steps = run.environment.episode_limit or run.rollout.max_steps
    tasks, samples, max_agents = (
        run.rollout.tasks_per_step,
        run.rollout.samples_per_task,
        max(agents_per_policy.values(), default=0),
    )
    actions = tasks * samples * steps * max_agents
    if agents_per_policy and run.algorithm.minibatches > actions:
        yield (
            f"algorithm.minibatches: {run.algorithm.minibatches:,}, but at most {tasks:,} tasks × {samples:,} "
            f"samples × {steps:,} steps × {max_agents:,} agents = {actions:,} actions of a policy can be shared out; "
            "lower it"
        )
