"""What one training step of a recipe has to do: how many actions of which policies, and how long they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from marft.config.models import local_model
from marft.config.pools import members_of
from marft.config.run import RunSettings

PROMPT = 512  # tokens of a prompt, where neither the recipe's context nor anybody says how many
MOST = 2**20  # tokens that a model reads, where nothing says how many: no model whose sizes are known here reads more
ONE_BY_ONE = ("chain", "reflective", "hierarchical", "orchestrated", "flow")  # organizations whose agents take turns


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
    versions: int = 1  # that are loaded at the same time: of a pool several, an adapter each
    half: bool = False  # whether B of its adapter learns alone

    @property
    def tokens(self) -> float:
        """Prompts and actions of a step together."""
        return self.actions * self.lengths.row

    @property
    def written(self) -> float:
        """Tokens sampled in a step."""
        return self.actions * self.lengths.action


@dataclass(frozen=True, slots=True)
class Sampled:
    """What is sampled from one set of weights: all policies on a base, or one that is tuned whole and has its own."""

    model: str  # that they are on
    policies: tuple[PolicyWork, ...]
    whole: bool = False

    @property
    def name(self) -> str:
        """Of whose weights they are: the model's, or the policy's own."""
        return self.policies[0].name if self.whole else self.model


@dataclass(frozen=True, slots=True)
class Work:
    """A training step.

    ``episodes`` are the real ones, which take an environment; policies write and learn from imagined ones, too.
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

    def sampled(self) -> tuple[Sampled, ...]:
        """What is sampled here, by the weights that it is sampled from: an engine apart has a process for each."""
        found = []
        for model in dict.fromkeys(policy.model for policy in self.policies):
            here = [policy for policy in self.of_model(model) if policy.here]
            on_base = tuple(policy for policy in here if policy.train != "full")
            found += [Sampled(model, on_base)] if on_base else []
            found += [Sampled(model, (policy,), whole=True) for policy in here if policy.train == "full"]
        return tuple(found)


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

    def but(self, given: Known) -> Known:
        """The same but for what is given: with the steps of an episode its actions become more, or fewer."""
        steps, actions = given.environment_steps, self.actions
        if steps and self.environment_steps and actions:
            actions = {role: count * steps / self.environment_steps for role, count in actions.items()}
        longest = given.longest or (max(self.longest, given.action or 0.0) if self.longest else None)
        return replace(
            self, prompt=given.prompt or self.prompt, action=given.action or self.action, longest=longest,
            environment_steps=steps or self.environment_steps, actions=actions,
        )  # fmt: skip


def work_of(run: RunSettings, known: Known = Known()) -> Work:
    """What a step of a recipe has to do. What is not known is what its limits allow for: every action as long as it may
    be, every episode as many steps as it may have. Helpers are counted while their budget is whole, all
    kinds asked alike; imagined episodes as many as there are of them in the last step."""
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
        limit = max(limits, default=1)  # where there is none it proposes instructions, between steps
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
    """
    Args:
        contexts: tokens that each local model is made for; 0 where that is not known.

    Raises:
        ValueError: actions are longer than a policy's model reads, or longer on average than the longest.
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
