"""Workload of a training step: actions per policy, and their lengths, from the recipe or from recorded episodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from marft.common.errors import UserError
from marft.common.types import Episode
from marft.config.models import local_model, pool_members
from marft.config.run import RunSettings
from marft.runs.episode_files import read_episodes
from marft.runs.run_folder import RunFolder

DEFAULT_PROMPT = 512  # default prompt length in tokens, if neither the context length nor the options give it
MAX_CONTEXT = 2**20  # maximum context in tokens, if unknown; no known model reads more
MAX_FILES = 3  # maximum number of files, the newest


@dataclass(frozen=True, slots=True)
class Lengths:
    """Mean lengths of an action in tokens, and the maximum."""

    prompt: float
    action: float
    longest: float  # tokens of the longest action
    source: str = "given"

    @property
    def row_tokens(self) -> float:
        """Mean tokens of prompt and action together."""
        return self.prompt + self.action

    @property
    def longest_row(self) -> float:
        """Tokens of prompt and longest action together."""
        return self.prompt + self.longest


@dataclass(frozen=True, slots=True)
class PolicyWorkload:
    """A policy's workload in a step."""

    name: str
    model: str  # local model of the policy
    train: str  # "lora", "full" or "frozen"
    rank: int  # rank of the adapter; 0 without an adapter
    targets: tuple[str, ...]
    actions: float  # per step
    lengths: Lengths
    is_local: bool  # False for a policy behind an endpoint
    versions: int = 1  # concurrently loaded versions; a pool has several, with one adapter each
    trains_b_only: bool = False  # True if only B of the adapter is trained

    @property
    def tokens(self) -> float:
        """Prompt and action tokens per step."""
        return self.actions * self.lengths.row_tokens

    @property
    def sampled_tokens(self) -> float:
        """Sampled tokens per step."""
        return self.actions * self.lengths.action


@dataclass(frozen=True, slots=True)
class SampledWeights:
    """Weights for sampling: a base with its adapters, or a fully trained policy."""

    model: str  # model of the policies
    policies: tuple[PolicyWorkload, ...]
    fully_trained: bool = False

    @property
    def name(self) -> str:
        """Name of the weights: the model's name, or the policy's name for a fully trained policy."""
        return self.policies[0].name if self.fully_trained else self.model


@dataclass(frozen=True, slots=True)
class StepWorkload:
    """Workload of a training step.

    Args:
        episodes: real episodes, which need an environment; sampling and training also include imagined episodes.
        environment_steps: environment steps per episode.
        concurrent_actions: maximum concurrent requests, without a limit on rows.
        policies: workload of each policy.
    """

    episodes: int
    environment_steps: float  # per episode
    concurrent_actions: float
    policies: tuple[PolicyWorkload, ...]

    @property
    def trained(self) -> tuple[PolicyWorkload, ...]:
        """Workloads of the trained policies."""
        return tuple(policy for policy in self.policies if policy.train != "frozen")

    def policies_on(self, model: str) -> tuple[PolicyWorkload, ...]:
        """Return the policies on a model."""
        return tuple(policy for policy in self.policies if policy.model == model)

    def sampled_weights(self) -> tuple[SampledWeights, ...]:
        """Return the local sets of weights to sample from; a separate engine runs a process per set."""
        weights = []
        for model in dict.fromkeys(policy.model for policy in self.policies):
            local = [policy for policy in self.policies_on(model) if policy.is_local]
            on_base = tuple(policy for policy in local if policy.train != "full")
            weights += [SampledWeights(model, on_base)] if on_base else []
            weights += [
                SampledWeights(model, (policy,), fully_trained=True) for policy in local if policy.train == "full"
            ]
        return tuple(weights)


@dataclass(frozen=True, slots=True)
class KnownLengths:
    """Known lengths of a step; None for the recipe's limits.

    Args:
        prompt: mean tokens of a prompt.
        action: mean tokens of an action.
        longest: tokens of the longest action.
        environment_steps: mean environment steps per episode.
        actions: mean actions of an agent per episode, by role.
        source: source of the values, for messages.
    """

    prompt: float | None = None
    action: float | None = None
    longest: float | None = None
    environment_steps: float | None = None
    actions: Mapping[str, float] | None = None
    source: str = "given"

    def with_overrides(self, overrides: KnownLengths) -> KnownLengths:
        """Return the lengths with overrides; the number of actions scales with the overridden steps per episode."""
        steps, actions = overrides.environment_steps, self.actions
        if steps and self.environment_steps and actions:
            actions = {role: count * steps / self.environment_steps for role, count in actions.items()}
        longest = overrides.longest or (max(self.longest, overrides.action or 0.0) if self.longest else None)
        return replace(
            self,
            prompt=overrides.prompt or self.prompt,
            action=overrides.action or self.action,
            longest=longest,
            environment_steps=steps or self.environment_steps,
            actions=actions,
        )


def compute_workload(run: RunSettings, lengths: KnownLengths = KnownLengths()) -> StepWorkload:
    """Return the workload of a recipe's training step.

    Unknown lengths take the recipe's limits: every action has its maximum length, and every episode its maximum steps.
    Helper calls are counted with a full budget, spread evenly over the helpers. Imagined episodes are counted as in the
    last step.
    """
    steps = lengths.environment_steps or float(run.environment.max_episode_steps or run.rollout.max_steps)
    samples, tasks = run.rollout.samples_per_task, run.rollout.tasks_per_step
    real, imagined = tasks * samples, sum(s.extra_tasks(run.training.steps - 1, tasks) for s in run.sections) * samples
    episodes = real + imagined
    # in an episode
    action_counts = {agent.role: (lengths.actions or {}).get(agent.role, steps) for agent in run.agents}
    consulting, policies = run.consulting, []
    for name, policy in run.policies.items():
        agents = [agent for agent in run.agents if agent.policy == name]
        helpers = [helper for helper in consulting.helpers.values() if helper.policy == name] if consulting else []
        actions = sum(action_counts[agent.role] for agent in agents) * episodes
        if consulting and helpers:
            request_count = sum(action_counts[role] for role in consulting.roles(run)) * episodes
            actions += consulting.budget * request_count * len(helpers) / len(consulting.helpers)
        limits = [agent.sampling.max_new_tokens for agent in agents] + [
            item.sampling.max_new_tokens for item in helpers
        ]
        limit = max(limits, default=1)  # a policy without agents and helpers only proposes instructions, between steps
        members = pool_members(run.policies, name)
        lora = members[0][1].lora
        adapted = policy.train == "lora" or bool(policy.adapter) or policy.pool is not None
        policies.append(
            PolicyWorkload(
                name,
                local_model(run.models, policy.model),
                policy.train,
                lora.rank if adapted else 0,
                lora.target_modules if adapted else (),
                actions,
                _resolve_lengths(run, policy.model, limit, lengths),
                not run.is_remote(policy.model),
                len(members),
                adapted and policy.lora.trained_matrices == "B",
            )
        )
    live = min(max(real, imagined), run.rollout.max_concurrent_episodes)
    return StepWorkload(real, steps, live * (1 if run.team.acts_in_sequence else len(run.agents)), tuple(policies))


def compute_validation_workload(run: RunSettings, workload: StepWorkload) -> StepWorkload:
    """Return the workload of one validation: an episode per validation task, played as in a training step."""
    samples, tasks = run.rollout.samples_per_task, run.rollout.tasks_per_step
    real, imagined = tasks * samples, sum(s.extra_tasks(run.training.steps - 1, tasks) for s in run.sections) * samples
    episodes, limit = run.evaluation.validation_tasks, run.rollout.max_concurrent_episodes
    policies = (replace(item, actions=item.actions * episodes / (real + imagined)) for item in workload.policies)
    concurrent = workload.concurrent_actions * min(episodes, limit) / min(max(real, imagined), limit)
    return replace(workload, episodes=episodes, concurrent_actions=concurrent, policies=tuple(policies))


def _resolve_lengths(run: RunSettings, model: str, limit: int, known_lengths: KnownLengths) -> Lengths:
    context = run.models[model].context_length
    longest = known_lengths.longest or float(limit)
    max_tokens = max(limit, longest, known_lengths.action or 0.0)
    prompt = known_lengths.prompt
    if prompt is None:
        prompt = float(context - max_tokens if context > max_tokens else DEFAULT_PROMPT)
    action = known_lengths.action if known_lengths.action is not None else longest
    given = [known_lengths.prompt is not None, known_lengths.action is not None or known_lengths.longest is not None]
    of_limits = "the recipe's limits" if context > limit else f"limits, and prompts of {DEFAULT_PROMPT} tokens assumed"
    source = (
        known_lengths.source if all(given) else f"{known_lengths.source}, else {of_limits}" if any(given) else of_limits
    )
    return Lengths(prompt, action, max(longest, action), source)


def check_context_lengths(
    run: RunSettings, work: StepWorkload, known_lengths: KnownLengths, contexts: Mapping[str, int]
) -> None:
    """Check that actions fit each policy's context length.

    Args:
        run: settings of the run.
        work: workload of a step.
        known_lengths: known lengths.
        contexts: context length of each local model, in tokens; 0 if unknown.

    Raises:
        UserError: actions exceed the context of a policy's model, or the mean exceeds the maximum.
    """
    if known_lengths.longest and known_lengths.action and known_lengths.longest < known_lengths.action:
        raise UserError(
            f"--max-action-tokens {known_lengths.longest:,.0f}: actions have {known_lengths.action:,.0f} tokens on "
            "average, and the longest has no fewer; raise it, or lower --action-tokens"
        )
    if not (known_lengths.prompt or known_lengths.action or known_lengths.longest):
        return
    for policy in work.policies:
        model, lengths = run.policies[policy.name].model, policy.lengths
        configured = run.models[model].context_length
        context = configured or contexts.get(policy.model, 0) or MAX_CONTEXT
        if max((known_lengths.prompt or 0.0) + lengths.action, lengths.longest) > context:
            key = f"the {context:,} that models.{model} reads"
            if configured:
                key = f"models.{model}.context_length = {context:,}"
            raise UserError(
                f"--prompt-tokens, --action-tokens, --max-action-tokens: {known_lengths.prompt or 0:,.0f} tokens of a "
                f"prompt and {lengths.action:,.0f} of an action (the longest {lengths.longest:,.0f}) are more than "
                f"{key}; give fewer{', or raise that' if configured else ''}"
            )


@dataclass(frozen=True, slots=True)
class RecordedLengths:
    """Lengths and times from the newest recorded steps of a run."""

    lengths: KnownLengths
    environment_seconds: float  # seconds per environment step, without the time of agents


def read_recorded_lengths(folder: RunFolder) -> RecordedLengths | None:
    """Return a run's recorded lengths; None without recorded episodes."""
    files = sorted(folder.episodes.glob("*.parquet"))[-MAX_FILES:]
    episodes = [episode for file in files for episode in read_episodes(file) if episode.actions and not episode.fork]
    return mean_lengths(episodes, f"the last {len(files)} recorded steps of {folder.path}") if episodes else None


def mean_lengths(episodes: Sequence[Episode], source: str) -> RecordedLengths:
    """Return the mean lengths over actions and episodes; at least one episode with an action is required."""
    actions = [action for episode in episodes for action in episode.actions]
    counts = Counter(action.agent for action in actions)
    steps = [max(1, len(episode.transitions)) for episode in episodes]
    idle = [
        max(0.0, episode.seconds - _active_seconds(episode)) / count
        for episode, count in zip(episodes, steps, strict=True)
    ]
    lengths = KnownLengths(
        prompt=fmean(len(action.prompt) for action in actions),
        action=fmean(len(action.tokens) for action in actions),
        longest=float(max(len(action.tokens) for action in actions)),
        environment_steps=fmean(steps),
        actions={agent: count / len(episodes) for agent, count in counts.items()},
        source=source,
    )
    return RecordedLengths(lengths, fmean(idle))


def _active_seconds(episode: Episode) -> float:
    """Return the seconds with at least one active agent."""
    total, busy_until = 0.0, 0.0
    for started, ended in sorted((action.started, action.ended) for action in episode.actions):
        total += max(0.0, ended - max(started, busy_until))
        busy_until = max(busy_until, ended)
    return total
