"""What one training step of a recipe has to do: how many actions of which policies, and how long they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from marft.config.models import local_model
from marft.config.run import RunSettings

PROMPT = 512  # tokens of a prompt, where neither the recipe's context nor anybody says how many
ONE_BY_ONE = ("chain", "reflective", "hierarchical", "orchestrated")  # organizations whose agents take turns


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens of an action, on average, and of the longest."""

    prompt: float
    action: float
    longest: float  # tokens that the longest action writes
    source: str = "given"

    @property
    def row(self) -> float:
        """Of prompt and action together."""
        return self.prompt + self.action

    @property
    def longest_row(self) -> float:
        return self.prompt + self.longest


@dataclass(frozen=True, slots=True)
class PolicyWork:
    """What one policy does in a step."""

    name: str
    model: str  # the local model that it is on
    train: str  # "lora", "full" or "frozen"
    rank: int  # of its adapter; 0 where it has none
    targets: tuple[str, ...]
    actions: float  # in a step
    lengths: Lengths
    here: bool  # whether it is sampled here, and not behind an endpoint

    @property
    def tokens(self) -> float:
        """Prompts and actions of a step together."""
        return self.actions * self.lengths.row

    @property
    def written(self) -> float:
        """Tokens sampled in a step."""
        return self.actions * self.lengths.action


@dataclass(frozen=True, slots=True)
class Work:
    """A training step.

    ``asked_at_once`` is how many actions may be sampled at the same time, were there room for all.
    """

    episodes: int
    environment_steps: float  # of an episode
    asked_at_once: float
    policies: tuple[PolicyWork, ...]

    @property
    def trained(self) -> tuple[PolicyWork, ...]:
        return tuple(policy for policy in self.policies if policy.train != "frozen")

    def of_model(self, model: str) -> tuple[PolicyWork, ...]:
        """The policies on a model."""
        return tuple(policy for policy in self.policies if policy.model == model)


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a step beside its recipe; None is taken from the recipe's limits.

    ``actions`` are those of an agent in an episode, by role.
    """

    prompt: float | None = None
    action: float | None = None
    longest: float | None = None
    environment_steps: float | None = None
    actions: Mapping[str, float] | None = None
    source: str = "given"


def work_of(run: RunSettings, known: Known = Known()) -> Work:
    """What a step of a recipe has to do. What is not known is what its limits allow for: every action as long as it may
    be, every episode as many steps as it may have."""
    steps = known.environment_steps or (1.0 if run.environment.one_step else float(run.rollout.max_steps))
    episodes = run.rollout.tasks_per_step * run.rollout.samples_per_task
    policies = []
    for name, policy in run.policies.items():
        agents = [agent for agent in run.agents if agent.policy == name]
        actions = sum((known.actions or {}).get(agent.role, steps) for agent in agents) * episodes
        limit = max(agent.sampling.max_new_tokens for agent in agents)
        adapted = policy.train == "lora" or bool(policy.adapter)
        policies.append(
            PolicyWork(
                name, local_model(run.models, policy.model), policy.train, policy.lora.rank if adapted else 0,
                policy.lora.targets if adapted else (), actions, _lengths(run, policy.model, limit, known),
                not run.is_remote(policy.model),
            )
        )  # fmt: skip
    alone = run.team.name in ONE_BY_ONE
    live = min(episodes, run.rollout.max_live_episodes)
    return Work(episodes, steps, live * (1 if alone else len(run.agents)), tuple(policies))


def _lengths(run: RunSettings, model: str, limit: int, known: Known) -> Lengths:
    context = run.models[model].context
    longest = known.longest or float(limit)
    prompt = known.prompt if known.prompt is not None else float(context - limit if context > limit else PROMPT)
    action = known.action if known.action is not None else longest
    told = [known.prompt is not None, known.action is not None or known.longest is not None]
    of_limits = "the recipe's limits" if context > limit else f"limits, and prompts of {PROMPT} tokens assumed"
    source = known.source if all(told) else f"{known.source}, else {of_limits}" if any(told) else of_limits
    return Lengths(prompt, action, max(longest, action), source)
