"""Checks across recipe tables: conflicting references, sizes and settings, each with a remedy.

A recipe with a problem is rejected. A setting without effect is a warning.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from marft.common.atomic import read_text
from marft.config.bundled import bundled_models
from marft.config.helpers import auxiliary_policies
from marft.config.models import Models, ModelSettings, local_model, opponent_pools, reader_models
from marft.config.names import name_conflicts
from marft.config.sections import find_cluster
from marft.config.settings import did_you_mean

if TYPE_CHECKING:
    from marft.config.agents import AgentSettings
    from marft.config.run import RunSettings

MAX_WARMUP_RATIO = 10  # maximum ratio of warm-up steps to training steps: the learning rate then reaches a tenth
ENVIRONMENT_TOOLS = "environment"  # entry in an agent's tools that stands for the environment's tools

MAX_EPISODES = 1_000_000  # maximum episodes in one training step
MAX_TOKENS = 10**10  # maximum tokens sampled in one environment step by all episodes of a training step
BYTES_PER_TOKEN = 9  # bytes of a recorded token: id, log-prob and mark


def recipe_problems(run: RunSettings) -> Iterable[str]:
    """Yield the conflicts between the tables of a recipe, one sentence each, with a remedy."""
    for problems in (
        _name_problems,
        _missing_references,
        _team_problems,
        _sampling_problems,
        _group_problems,
        _length_problems,
        _rate_problems,
        _teammate_loss_problems,
        _reward_problems,
        _lag_problems,
        _remote_problems,
        _rank_problems,
        _quantization_problems,
        _placement_problems,
        _size_problems,
        _side_problems,
        _turn_problems,
        _pool_problems,
        _helper_problems,
    ):
        yield from problems(run)
    for section in run.sections:
        yield from section.problems(run)


def warn_idle_settings(run: RunSettings) -> Iterable[str]:
    """Yield warnings for settings that have no effect in this run."""
    yield from warn_idle_cluster(run)
    yield from warn_idle_kl_stop(run)
    yield from warn_untrained_replies(run)


def warn_idle_cluster(run: RunSettings) -> Iterable[str]:
    """Yield a warning for a ``[cluster]`` table without effect, because the run has no other process."""
    if find_cluster(run) and not run.engine.separate_weights and not run.rollout.workers and run.training.ranks == 1:
        yield (
            "[cluster]: the cluster is not joined, for all of this run is one process: what is started there are "
            "workers (rollout.workers), ranks (training.ranks) and an engine apart (engine.kind = 'process' or "
            "'vllm')"
        )


def warn_idle_kl_stop(run: RunSettings) -> Iterable[str]:
    """Yield a warning for a KL stop without effect, because each step has only one update."""
    algorithm = run.algorithm
    if algorithm.kl_stop and algorithm.epochs * algorithm.minibatches == 1:
        yield (
            f"algorithm.kl_stop = {algorithm.kl_stop:g} cannot stop anything: the KL is compared with it before each "
            "update, and a step makes one (epochs = 1, minibatches = 1), before which no policy has moved; the metric "
            "kl has how far the update went; to limit that, set algorithm.team_kl, or more minibatches or epochs"
        )


def warn_untrained_replies(run: RunSettings) -> Iterable[str]:
    """Yield a warning if helper replies are context only and never trained."""
    if run.consulting is not None and not run.algorithm.teammate_text.coefficient:
        yield (
            "what helpers reply is read and not learned, so little of it is left once they are gone; set "
            "algorithm.name = 'aipo', or algorithm.teammate_text.coefficient = 1.0"
        )


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
    if run.rollout.reuse > 1 and credit.keeps_state:
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


def _remote_problems(run: RunSettings) -> Iterable[str]:
    """Yield problems with remote models and their policies."""
    models = run.models
    for name, model in models.items():
        if model.endpoint is not None:
            yield from _reader_problems(models, name)
            yield from _key_problems(name, model)
    for name, policy in run.policies.items():
        if policy.model not in models or models[policy.model].endpoint is None:
            continue
        if policy.train != "frozen":
            yield f"policies.{name}: model {policy.model!r} is remote and cannot be trained here; set train = 'frozen'"
        if policy.adapter:
            yield f"policies.{name}.adapter: model {policy.model!r} is remote and takes no adapter; remove it"


def _reader_problems(models: Models, name: str) -> Iterable[str]:
    reader = local_model(models, name)
    if not reader:
        yield (
            f"models.{name}.endpoint: no local model reads what it says; add one: [models.reader] path = 'tiny', or "
            "any other whose tokenizer counts as you like"
        )
    elif reader not in models:
        yield f"models.{name}.endpoint.local_model: no model is called {reader!r}{did_you_mean(reader, models)}"
    elif models[reader].endpoint is not None:
        yield f"models.{name}.endpoint.local_model: {reader!r} is remote too; name a local model"


def _key_problems(name: str, model: ModelSettings) -> Iterable[str]:
    for key in (
        "revision",
        "dtype",
        "quantization",
        "quantization_block_size",
        "double_quantization",
        "chat_template",
        "template_options",
        "date",
        "gradient_checkpointing",
        "router_replay",
        "ranks",
    ):
        if getattr(model, key) != type(model).model_fields[key].default:
            yield f"models.{name}.{key}: means something for a local model alone; remove it, the endpoint decides"


def _rank_problems(run: RunSettings) -> Iterable[str]:
    """Yield a problem for each LoRA rank above the model's hidden size."""
    for name, policy in run.policies.items():
        model = run.models.get(policy.model)
        size = _hidden_size(model) if model is not None and model.endpoint is None and policy.train == "lora" else None
        if size is not None and policy.lora.rank > size:
            yield (
                f"policies.{name}.lora.rank: {policy.lora.rank:,} is more than the {size:,} dimensions of model "
                f"{policy.model!r}, and a change of full rank has no more; lower it, or use train = 'full'"
            )


def _quantization_problems(run: RunSettings) -> Iterable[str]:
    """Yield problems with a base in 4 bits, which is frozen and lies whole in each process."""
    for name, policy in run.policies.items():
        model = run.models.get(policy.model)
        if model is not None and model.quantization != "none" and policy.train == "full":
            yield (
                f"policies.{name}: train = 'full' needs an unquantized base, and models.{policy.model} has "
                f"quantization = {model.quantization!r}; set train = 'lora', or quantization = 'none'"
            )
    quantized = [name for name, model in run.models.items() if model.quantization != "none"]
    if quantized and run.training.shard:
        name = quantized[0]
        yield f"training.shard: models.{name} has 4-bit weights, which lie whole on every rank; set shard = false"


def _hidden_size(model: ModelSettings) -> int | None:
    """Return the width of a local model; None if the model is not on this disk, or has no such number."""
    folder = bundled_models().get(model.path, Path(model.path))
    try:
        table = json.loads(read_text(folder / "config.json"))
        size = table.get("hidden_size", table.get("text_config", {}).get("hidden_size"))
    except (OSError, ValueError, AttributeError, RecursionError):  # loading the model reports the error
        return None
    return size if isinstance(size, int) else None


def _placement_problems(run: RunSettings) -> Iterable[str]:
    """Yield problems with the assignment from models to ranks."""
    ranks = run.training.ranks
    for name, model in run.models.items():
        if len(set(model.ranks)) < len(model.ranks):
            yield f"models.{name}.ranks: names a rank twice"
        invalid_ranks = [rank for rank in model.ranks if rank >= ranks]
        if invalid_ranks:
            yield (
                f"models.{name}.ranks: there is no rank {invalid_ranks[0]}, for training.ranks = {ranks} counts from 0 "
                f"to {ranks - 1}; raise it"
            )
        if model.ranks and run.algorithm.critic.body == "lora":
            yield (
                f"models.{name}.ranks: a critic with a body of its own (algorithm.critic.body = 'lora') is learned by "
                "all ranks; set body = 'frozen', or remove the ranks"
            )


def _size_problems(run: RunSettings) -> Iterable[str]:
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
    steps = run.environment.max_episode_steps or run.rollout.max_steps
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


def _turn_problems(run: RunSettings) -> Iterable[str]:
    """Yield organizations that ignore the environment's turns, and teams that bypass the environment's messages."""
    environment, team = run.environment, run.team
    has_opponents = len(environment.opposing_sides) > 1 or bool(environment.opponent_roles)
    ignores_turns = team.single_action_each or team.ignores_turns
    if ignores_turns and (has_opponents or (environment.controls_turns and len(run.agents) > 1)):
        yield (
            f"team: in organization {team.name!r} agents act although it is not their turn; use organization = 'turns'"
        )
    elif ignores_turns and environment.offers_options:
        yield (
            f"team: in organization {team.name!r} nobody chooses from what environment {environment.name!r} offers; "
            "use organization = 'turns'"
        )
    if team.name != "turns" or getattr(team, "visible", "none") == "none":
        return
    if has_opponents:
        yield (
            "team.visible: opponents would read each other's whole turns, thoughts and advice with them; set visible "
            "= 'none': the environment shows the moves"
        )
    elif environment.relays_messages:
        yield (
            f"team.visible: environment {environment.name!r} passes on what agents say, by its rules, and they would "
            "read each other's whole turns beside it; set visible = 'none'"
        )


def _side_problems(run: RunSettings) -> Iterable[str]:
    """Yield credits and rewards that do not support opposing sides, and opponents that would learn."""
    sides, opponents = run.environment.opposing_sides, run.environment.opponent_roles
    if len(sides) > 1:
        yield from _credit_problems(run)
    for agent in run.agents:
        policy = run.policies.get(agent.policy)
        if agent.role in opponents and policy is not None and policy.train != "frozen":
            yield (
                f"agents.{agent.role}: an opponent that the others learn to play against, whose policy "
                f"{agent.policy!r} would learn from what they earn; set policies.{agent.policy}.train = 'frozen', or "
                "environment.opponent = 'self' to have both sides learn"
            )


def _credit_problems(run: RunSettings) -> Iterable[str]:
    credit = run.algorithm.credit
    if not credit.per_agent:
        yield (
            f"algorithm.credit: {credit.name!r} judges agents by what all of them earn together, and the agents of "
            f"environment {run.environment.name!r} play against each other: what one wins the other loses, and nobody "
            "would learn. Use algorithm.name = 'rae', credit 'agent-group' (attempts at a task, each side by itself), "
            "or 'gae' with successor = 'agent'"
        )
    if run.algorithm.reward.own_weight <= 0:
        yield (
            f"algorithm.reward.own_weight: {run.algorithm.reward.own_weight:g} leaves nothing of what a side earns by "
            "itself, and a team whose agents play against each other earns nothing else; set it to 1"
        )
    if run.algorithm.reward.shaping != "none":
        yield (
            "algorithm.reward.shaping: it measures what an agent earns against what the others earned before it, and "
            "here those are opponents; set shaping = 'none'"
        )
    for term in run.rewards:
        if term.same_for_team:
            yield (
                f"rewards: {term.name!r} pays both sides of a game alike, and one of them has lost it; remove it, and "
                "use 'outcome', which pays each side what it earned"
            )


def _pool_problems(run: RunSettings) -> Iterable[str]:
    """Yield problems with a recipe's opponent pools."""
    pools = opponent_pools(run)
    for name, source in pools.items():
        yield from _single_pool_problems(run, name, source)
    opponent_policies = {agent.policy for agent in run.agents if agent.role in run.environment.opponent_roles}
    for name in pools:
        if name not in opponent_policies:
            yield (
                f"policies.{name}.pool: none of its agents is an opponent, so nobody would play against its versions; "
                "set environment.opponent = 'pool' and give it to an agent of another side than the first"
            )
    if len(pools) > 1:
        yield f"policies: {', '.join(pools)} are pools, and a run has one; remove the others"
    if getattr(run.environment, "opponent", "") == "pool" and not pools:
        yield (
            "environment.opponent: 'pool' needs past versions to play against; give the opponent's policy train = "
            "'frozen' and pool = { policy = 'NAME' }, with the name of the policy in training"
        )
    if pools:
        yield from _pool_setting_problems(run)


def _single_pool_problems(run: RunSettings, name: str, source: str) -> Iterable[str]:
    policy, learner = run.policies[name], run.policies.get(source)
    if learner is None:
        yield f"policies.{name}.pool.policy: no policy is called {source!r}{did_you_mean(source, run.policies)}"
        return
    if policy.train != "frozen":
        yield f"policies.{name}.pool: past versions do not learn; set train = 'frozen'"
    if learner.train != "lora":
        yield (
            f"policies.{name}.pool.policy: {source!r} is not trained as an adapter (train = {learner.train!r}), and "
            "only adapters are small enough to keep several; set train = 'lora' there"
        )
    if policy.model != learner.model:
        yield (
            f"policies.{name}.pool: its versions are adapters on model {learner.model!r}, and it names "
            f"{policy.model!r}; name that of {source!r}"
        )
    if policy.adapter:
        yield f"policies.{name}.adapter: a pool begins with what {source!r} begins with; remove it"


def _pool_setting_problems(run: RunSettings) -> Iterable[str]:
    """Yield settings incompatible with an opponent pool."""
    if run.rollout.max_policy_lag or run.rollout.reuse > 1:
        yield (
            "rollout: which versions are in a pool is settled between steps, and nothing may be played ahead of them "
            "or learned from twice; set max_policy_lag = 0 and reuse = 1"
        )
    if run.engine.separate_weights or run.training.ranks > 1:
        yield (
            "policies: versions of a pool are copied in the memory of one process; use engine.kind = 'local' and "
            "training.ranks = 1"
        )
    if run.algorithm.credit.fork_plan is not None:
        yield (
            f"algorithm.credit: {run.algorithm.credit.name!r} plays episodes again, and does not know which version of "
            "a pool they were played against; use another credit"
        )


def _helper_problems(run: RunSettings) -> Iterable[str]:
    """Yield each problem with a recipe's helpers, with a remedy."""
    settings = run.consulting
    if settings is None:
        return
    for kind, helper in settings.helpers.items():
        path, policy = f"consulting.helpers.{kind}", run.policies.get(helper.policy)
        if policy is None:
            yield f"{path}: no policy is called {helper.policy!r}{did_you_mean(helper.policy, run.policies)}"
        elif policy.train != "frozen":
            yield (
                f"{path}: policy {helper.policy!r} learns, and what helpers say is no decision that is credited; set "
                "its train = 'frozen', or make the helper an agent"
            )
    for role in settings.roles(run):
        agent = next((agent for agent in run.agents if agent.role == role), None)
        if agent is None:
            yield f"consulting.agents: no agent is called {role!r}{did_you_mean(role, [a.role for a in run.agents])}"
        elif agent.policy in run.policies and run.is_remote(run.policies[agent.policy].model):
            yield f"consulting.agents: {role!r} is behind an endpoint, which cannot go on from a reply; leave it out"
        elif agent.sampling.constraint:
            yield f"consulting.agents: what {role!r} writes is held to a grammar, which no reply keeps; leave it out"
    if run.team.writes_prompts:
        yield f"consulting: organization {run.team.name!r} asks agents in messages of its own; remove it"
