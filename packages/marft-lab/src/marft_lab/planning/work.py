"""Workload of a training step: number of actions per policy, and their lengths."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from marft.config.models import local_model
from marft.config.pools import members_of
from marft.config.run import RunSettings

PROMPT = 512  # default prompt length in tokens, if neither the context length nor the options give it
MOST = 2**20  # maximum context in tokens, if unknown; no known model reads more
ONE_BY_ONE = ("chain", "reflective", "hierarchical", "orchestrated", "flow")  # organizations with sequential agents


@dataclass(frozen=True, slots=True)
class Lengths:
    """Mean lengths of an action in tokens, and the maximum."""

    prompt: float
    action: float
    longest: float  # tokens of the longest action
    source: str = "given"

    @property
    def row(self) -> float:
        """Mean tokens of prompt and action together."""
        return self.prompt + self.action

    @property
    def longest_row(self) -> float:
        """Tokens of prompt and longest action together."""
        return self.prompt + self.longest


@dataclass(frozen=True, slots=True)
class PolicyWork:
    """A policy's workload in a step."""

    name: str
    model: str  # local model of the policy
    train: str  # "lora", "full" or "frozen"
    rank: int  # rank of the adapter; 0 without an adapter
    targets: tuple[str, ...]
    actions: float  # per step
    lengths: Lengths
    here: bool  # False for a policy behind an endpoint
    versions: int = 1  # concurrently loaded versions; a pool has several, with one adapter each
    half: bool = False  # True if only B of the adapter is trained

    @property
    def tokens(self) -> float:
        """Prompt and action tokens per step."""
        return self.actions * self.lengths.row

    @property
    def written(self) -> float:
        """Sampled tokens per step."""
        return self.actions * self.lengths.action


@dataclass(frozen=True, slots=True)
class Sampled:
    """Weights for sampling: a base with its adapters, or a fully trained policy."""

    model: str  # model of the policies
    policies: tuple[PolicyWork, ...]
    whole: bool = False

    @property
    def name(self) -> str:
        """Name of the weights: the model's name, or the policy's name for a fully trained policy."""
        return self.policies[0].name if self.whole else self.model


@dataclass(frozen=True, slots=True)
class Work:
    """Workload of a training step.

    Args:
        episodes: real episodes, which need an environment; sampling and training also include imagined episodes.
        environment_steps: environment steps per episode.
        asked_at_once: maximum concurrent requests, without a limit on rows.
        policies: workload of each policy.
    """

    episodes: int
    environment_steps: float  # per episode
    asked_at_once: float
    policies: tuple[PolicyWork, ...]

    @property
    def trained(self) -> tuple[PolicyWork, ...]:
        """Workloads of the trained policies."""
        return tuple(policy for policy in self.policies if policy.train != "frozen")

    def of_model(self, model: str) -> tuple[PolicyWork, ...]:
        """Return the policies on a model."""
        return tuple(policy for policy in self.policies if policy.model == model)

    def sampled(self) -> tuple[Sampled, ...]:
        """Return the local sets of weights to sample from; a separate engine runs a process per set."""
        found = []
        for model in dict.fromkeys(policy.model for policy in self.policies):
            here = [policy for policy in self.of_model(model) if policy.here]
            on_base = tuple(policy for policy in here if policy.train != "full")
            found += [Sampled(model, on_base)] if on_base else []
            found += [Sampled(model, (policy,), whole=True) for policy in here if policy.train == "full"]
        return tuple(found)


@dataclass(frozen=True, slots=True)
class Known:
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

    def but(self, given: Known) -> Known:
        """Return the lengths with overrides; the number of actions scales with the overridden steps per episode."""
        steps, actions = given.environment_steps, self.actions
        if steps and self.environment_steps and actions:
            actions = {role: count * steps / self.environment_steps for role, count in actions.items()}
        longest = given.longest or (max(self.longest, given.action or 0.0) if self.longest else None)
        return replace(
            self, prompt=given.prompt or self.prompt, action=given.action or self.action, longest=longest,
            environment_steps=steps or self.environment_steps, actions=actions,
        )  # fmt: skip


def work_of(run: RunSettings, known: Known = Known()) -> Work:
    """Return the workload of a recipe's training step.

    Unknown lengths take the recipe's limits: every action has its maximum length, and every episode its maximum steps.
    Helper calls are counted with a full budget, spread evenly over the helpers. Imagined episodes are counted as in the
    last step.
    """
    steps = known.environment_steps or float(run.environment.episode_limit or run.rollout.max_steps)
    samples, tasks = run.rollout.samples_per_task, run.rollout.tasks_per_step
    real, imagined = tasks * samples, sum(s.extra_tasks(run.training.steps - 1, tasks) for s in run.sections) * samples
    episodes = real + imagined
    acts = {agent.role: (known.actions or {}).get(agent.role, steps) for agent in run.agents}  # in an episode
    consulting, policies = run.consulting, []
    for name, policy in run.policies.items():
        agents = [agent for agent in run.agents if agent.policy == name]
        helpers = [helper for helper in consulting.helpers.values() if helper.policy == name] if consulting else []
        actions = sum(acts[agent.role] for agent in agents) * episodes
        if consulting and helpers:
            asking = sum(acts[role] for role in consulting.roles(run)) * episodes
            actions += consulting.budget * asking * len(helpers) / len(consulting.helpers)
        limits = [agent.sampling.max_new_tokens for agent in agents] + [one.sampling.max_new_tokens for one in helpers]
        limit = max(limits, default=1)  # a policy without agents and helpers only proposes instructions, between steps
        members = members_of(run.policies, name)
        lora = members[0][1].lora
        adapted = policy.train == "lora" or bool(policy.adapter) or policy.pool is not None
        policies.append(
            PolicyWork(
                name, local_model(run.models, policy.model), policy.train, lora.rank if adapted else 0,
                lora.targets if adapted else (), actions, _lengths(run, policy.model, limit, known),
                not run.is_remote(policy.model), len(members), adapted and policy.lora.trains == "B",
            )
        )  # fmt: skip
    alone = run.team.name in ONE_BY_ONE
    live = min(max(real, imagined), run.rollout.max_live_episodes)
    return Work(real, steps, live * (1 if alone else len(run.agents)), tuple(policies))


def _lengths(run: RunSettings, model: str, limit: int, known: Known) -> Lengths:
    context = run.models[model].context
    longest = known.longest or float(limit)
    most = max(limit, longest, known.action or 0.0)
    prompt = known.prompt if known.prompt is not None else float(context - most if context > most else PROMPT)
    action = known.action if known.action is not None else longest
    told = [known.prompt is not None, known.action is not None or known.longest is not None]
    of_limits = "the recipe's limits" if context > limit else f"limits, and prompts of {PROMPT} tokens assumed"
    source = known.source if all(told) else f"{known.source}, else {of_limits}" if any(told) else of_limits
    return Lengths(prompt, action, max(longest, action), source)


def check_lengths(run: RunSettings, work: Work, known: Known, contexts: Mapping[str, int]) -> None:
    """Check that actions fit each policy's context length.

    Args:
        run: settings of the run.
        work: workload of a step.
        known: known lengths.
        contexts: context length of each local model, in tokens; 0 if unknown.

    Raises:
        ValueError: actions exceed the context of a policy's model, or the mean exceeds the maximum.
    """
    if known.longest and known.action and known.longest < known.action:
        raise ValueError(
            f"--longest-action {known.longest:,.0f}: actions have {known.action:,.0f} tokens on average, and the "
            "longest has no fewer; raise it, or lower --action-tokens"
        )
    if not (known.prompt or known.action or known.longest):
        return
    for policy in work.policies:
        model, lengths = run.policies[policy.name].model, policy.lengths
        said = run.models[model].context
        context = said or contexts.get(policy.model, 0) or MOST
        if max((known.prompt or 0.0) + lengths.action, lengths.longest) > context:
            key = f"models.{model}.context = {context:,}" if said else f"the {context:,} that models.{model} reads"
            raise ValueError(
                f"--prompt-tokens, --action-tokens, --longest-action: {known.prompt or 0:,.0f} tokens of a prompt and "
                f"{lengths.action:,.0f} of an action (the longest {lengths.longest:,.0f}) are more than {key}; give "
                f"fewer{', or raise that' if said else ''}"
            )
