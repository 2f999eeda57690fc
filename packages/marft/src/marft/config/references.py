"""Checks across recipe tables: inconsistent references and settings, each with a remedy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from marft.config.helpers import auxiliary_policies
from marft.config.models import reader_models
from marft.config.names import name_conflicts
from marft.config.settings import did_you_mean

if TYPE_CHECKING:
    from marft.config.agents import AgentSettings
    from marft.config.run import RunSettings

MAX_WARMUP_RATIO = 10  # maximum ratio of warm-up steps to training steps: the learning rate then reaches a tenth
ENVIRONMENT_TOOLS = "environment"  # entry in an agent's tools that stands for the environment's tools


def reference_problems(run: RunSettings) -> Iterable[str]:
    """Yield problems between recipe tables: unknown or unused names, teams, sampling, groups, lengths and rates."""
    for problems in (
        _name_problems, _missing_references, _team_problems, _sampling_problems, _group_problems, _length_problems,
        _rate_problems, _teammate_loss_problems, _reward_problems, _lag_problems,
    ):  # fmt: skip
        yield from problems(run)


def _name_problems(run: RunSettings) -> Iterable[str]:
    roles = dict.fromkeys(agent.role for agent in run.agents)
    for kind, names in (("models", run.models), ("policies", run.policies), ("tools", run.tools), ("agents", roles)):
        yield from name_conflicts(kind, names)


def _missing_references(run: RunSettings) -> Iterable[str]:
    for agent in run.agents:
        if agent.policy not in run.policies:
            hint = did_you_mean(agent.policy, run.policies)
            yield f"agents.{agent.role}: no policy is called {agent.policy!r}{hint}"
    for name, policy in run.policies.items():
        if policy.model not in run.models:
            yield f"policies.{name}: no model is called {policy.model!r}{did_you_mean(policy.model, run.models)}"
        if name not in auxiliary_policies(run) and not any(agent.policy == name for agent in run.agents):
            yield f"policies.{name}: no agent uses it; give it to an agent or remove it"
    for agent in run.agents:
        for tool in agent.tools:
            if tool not in run.tools and tool != ENVIRONMENT_TOOLS:
                hint = did_you_mean(tool, run.tools) or f"; describe it under [tools.{tool}]"
                yield f"agents.{agent.role}.tools: no tool is called {tool!r}{hint}"
    if ENVIRONMENT_TOOLS in run.tools:
        yield (
            f"tools.{ENVIRONMENT_TOOLS}: that name stands for the tools that the environment itself brings; "
            "take another"
        )
    for name in run.tools:
        if not any(name in agent.tools for agent in run.agents):
            yield f"tools.{name}: no agent has it; name it in an agent's tools or remove it"
    reader_names = reader_models(run.models)
    for name in run.models:
        if name not in reader_names and not any(policy.model == name for policy in run.policies.values()):
            yield f"models.{name}: no policy uses it; give it to a policy or remove it"


def _team_problems(run: RunSettings) -> Iterable[str]:
    for role, count in Counter(agent.role for agent in run.agents).items():
        if count > 1:
            yield f"agents: {count} agents are called {role!r}; every role needs a name of its own"
    if not any(agent.answers for agent in run.agents):
        yield "agents: nobody answers; set answers = true on the agent whose text is the team's answer"
    for part in (run.environment, run.team, *run.rewards, run.algorithm.credit):
        yield from part.problems([agent.role for agent in run.agents])
    port = getattr(run.team, "port", 0)
    if run.team.writes_prompts and port and run.rollout.workers >= 2:
        yield "team.port: one port cannot serve several rollout.workers; remove it, and each takes one that is free"
    if run.team.writes_prompts and run.channel.name != "raw":
        yield f"channel: a program passes messages on itself, and {run.channel.name!r} would do nothing; remove it"
    for agent in run.agents if run.team.writes_prompts else ():
        if agent.tools or agent.skills or agent.guidance or agent.memory != "none":
            yield (
                f"agents.{agent.role}: a program has tools, a memory and guidance of its own, and those of the recipe "
                "would do nothing; remove them"
            )


def _group_problems(run: RunSettings) -> Iterable[str]:
    credit, samples = run.algorithm.credit, run.rollout.samples_per_task
    if credit.comparison_group == "task" and samples < 2:
        yield (
            f"rollout.samples_per_task: credit {credit.name!r} compares attempts at the same task, and a group of one "
            "has no baseline; use at least 2, or a credit with a critic"
        )
    if run.algorithm.dynamic_sampling and samples < 2:
        yield "rollout.samples_per_task: dynamic_sampling draws all-equal groups again; groups of one always are, use 2"


def _lag_problems(run: RunSettings) -> Iterable[str]:
    if run.rollout.max_policy_lag and not run.engine.separate_weights:
        yield (
            f"rollout.max_policy_lag: engine {run.engine.name!r} samples with the learner's own weights, so nothing "
            "can be sampled while they move; set engine.kind = 'process' (or 'vllm'), or max_policy_lag = 0"
        )
    correction, credit = run.algorithm.sampler_correction, run.algorithm.credit
    chosen = "level" in correction.model_fields_set and not run.algorithm.objective.reads_pairs
    if run.rollout.reuse > 1 and correction.level == "none" and chosen:
        yield (
            "rollout.reuse: what an older policy has sampled is weighed with pi_old/mu, and "
            "algorithm.sampler_correction.level = 'none' weighs nothing; remove it, or set reuse = 1"
        )
    if run.rollout.reuse > 1 and hasattr(credit, "load_state_dict"):
        yield (
            f"rollout.reuse: credit {credit.name!r} remembers what episodes earned, and would count each of them "
            "several times; set reuse = 1, or use another credit"
        )


def _length_problems(run: RunSettings) -> Iterable[str]:
    critic = run.algorithm.critic
    if critic.kind != "none" and critic.warmup_steps >= run.training.steps:
        yield (
            f"training.steps: all {run.training.steps} would go to the critic's warm-up "
            f"(algorithm.critic.warmup_steps = {critic.warmup_steps}) and no policy would ever step; train longer"
        )


def _rate_problems(run: RunSettings) -> Iterable[str]:
    """Yield learning rates that are never reached, or that flip weights through weight decay."""
    optimizer, steps = run.algorithm.optimizer, run.training.steps
    if optimizer.warmup_steps >= MAX_WARMUP_RATIO * steps:
        yield (
            f"algorithm.optimizer.warmup_steps: in {steps} training steps the learning rate would rise to "
            f"{steps / optimizer.warmup_steps:.2g} of its height; lower it, or train longer"
        )
    for name, policy in run.policies.items():
        rate = policy.learning_rate or optimizer.learning_rate
        if policy.train != "frozen" and rate * optimizer.weight_decay >= 1:
            yield (
                f"algorithm.optimizer.weight_decay: times the learning rate {rate:g} of policy {name!r} it takes all "
                "of a weight in a step; lower either"
            )


def _reward_problems(run: RunSettings) -> Iterable[str]:
    if not run.environment.grades_answers and not run.team.grades_answers and not run.rewards:
        yield (
            "environment: nothing says what an answer is worth; name the column of the right ones (answer), a function "
            "that grades (grading), or rewards ([[rewards]])"
        )


def _teammate_loss_problems(run: RunSettings) -> Iterable[str]:
    remote = [
        name
        for name, policy in run.policies.items()
        if run.is_remote(policy.model) and name not in auxiliary_policies(run)
    ]
    if run.algorithm.teammate_text.coefficient and remote:
        yield (
            f"algorithm.teammate_text: it asks how likely a teammate's text was to its author, and an endpoint "
            f"(policies.{remote[0]}) does not say; set coefficient = 0"
        )


def _sampling_problems(run: RunSettings) -> Iterable[str]:
    for agent in run.agents:
        policy = run.policies.get(agent.policy)
        if agent.sampling.constraint and policy is not None:
            yield from _grammar_problems(run, agent, policy.model)
        if policy is None or policy.train == "frozen":
            continue
        sampling = agent.sampling
        if sampling.top_p != 1.0 or sampling.top_k != 0:
            yield (
                f"agents.{agent.role}.sampling: top_p and top_k change the distribution that policy {agent.policy!r} "
                "is trained on; a policy in training samples by temperature alone, so remove them"
            )
        if sampling.temperature == 0:
            yield f"agents.{agent.role}.sampling: temperature 0 never explores; use 1.0, or train = 'frozen'"


def _grammar_problems(run: RunSettings, agent: AgentSettings, model: str) -> Iterable[str]:
    kind = next(key for key in ("json_schema", "regex", "grammar") if getattr(agent.sampling, key))
    path = f"agents.{agent.role}.sampling.{kind}"
    reason = grammar_unsupported(run, model)
    if reason:
        yield f"{path}: {reason}; remove it"
    if kind == "json_schema" and (agent.tools or agent.skills):
        yield f"{path}: every turn would be JSON of this schema, and its tools could never be called; remove either"


def grammar_unsupported(run: RunSettings, model: str) -> str:
    """Return the reason why a model cannot sample under a grammar; "" if supported."""
    if run.is_remote(model):
        return f"model {model!r} is behind an endpoint, which cannot be held to a grammar"
    if not run.engine.supports_grammars:
        return f"engine {run.engine.name!r} cannot hold what it samples to a grammar (supports_grammars)"
    return ""
