"""Seconds per phase of a step: operations over the reached rate, or bytes over bandwidth, whichever is larger."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from marft.models.flops import forward_flops, training_flops
from marft.models.shapes import Shape
from marft.trainer.interfaces import KL_ACTIONS, KL_TOKENS
from marft_lab.planning.activations import FLOAT
from marft_lab.planning.company import Company
from marft_lab.planning.efficiencies import Efficiencies
from marft_lab.planning.memory import (
    MOMENTS,
    Place,
    engine_bytes,
    micro_batch,
    rows_at_once,
    takes_a_share,
    trained_numbers,
    vllm_share,
)
from marft_lab.planning.work import PolicyWork, Sampled


@dataclass(frozen=True, slots=True)
class Phase:
    """Phase of a step with its duration.

    Args:
        name: name of the phase.
        seconds: duration in seconds.
        side: active side: ``sampling``, ``learning``, or ``publishing`` between both.
    """

    name: str
    seconds: float
    side: str


def learned(shape: Shape, policy: PolicyWork, recomputes: bool, halves: bool) -> float:
    """Return the training operations per token of a policy, forward and backward."""
    length, share = policy.lengths.row, policy.lengths.action / policy.lengths.row
    adapter = shape.adapter_parameters(policy.rank, policy.targets) if policy.rank else 0
    return training_flops(
        shape, length, share, adapter, whole=policy.train == "full", recomputes=recomputes, halves=halves
    )


@dataclass(frozen=True, slots=True)
class Engine:
    """Speed factors of an engine on a model."""

    shape: Shape
    weights: float  # bytes read per decoding step, shared by all rows
    token: float  # bytes of a token's keys and values
    rate: float  # operations per second, over all cards of the engine
    bandwidth: float  # bytes per second, over all cards
    launch: float  # minimum seconds per layer
    iteration: float  # seconds besides the layers

    def step(self, rows: float, context: float, reached: Efficiencies) -> float:
        """Return the seconds of a decoding step for ``rows`` rows of ``context`` tokens.

        The step reads weights and caches, and multiplies with both.
        """
        bytes_read = self.weights + rows * context * self.token
        shape = self.shape
        attention = 4.0 * context * shape.queries * shape.layers
        operations = rows * (2.0 * (shape.matrix_parameters + shape.head_parameters) + attention)
        busy = max(
            bytes_read / (self.bandwidth * reached.bandwidth), operations / reached.rate(self.rate, self.bandwidth)
        )
        return max(busy, shape.layers * self.launch) + self.iteration


def sampling(place: Place, reached: Efficiencies, cards: int) -> list[Phase]:
    """Return the sampling phases, with one engine per card or per group of cards.

    Actions are sampled in waves of as many rows as fit. A wave ends with its longest action, whose row is alone at the
    end.

    Args:
        place: context of the plan.
        reached: hardware efficiencies.
        cards: number of sampling cards.
    """
    prefill = decode = 0.0
    for one in place.work.sampled():
        shape, policies = place.shapes[one.model], one.policies
        group = tensor_parallel(place, one) if place.run.engine.apart else 1
        engines = max(1, cards // group) if place.run.engine.apart else 1
        engine = _engine(place, one, group, reached)
        prompt = _mean(policies, lambda policy: policy.lengths.prompt)
        tokens = sum(policy.actions for policy in policies) * prompt
        prefill += tokens * forward_flops(shape, prompt) / (engines * reached.rate(engine.rate, engine.bandwidth))
        action = _mean(policies, lambda policy: policy.lengths.action)
        rows = min(rows_at_once(place, engines), _rows_that_fit(place, one, group))
        actions = sum(policy.actions for policy in policies)
        turns = max(1.0, actions / place.work.asked_at_once)  # sequential turns
        rounds = max(actions / engines / rows, turns)
        longest = max(policy.lengths.longest for policy in policies)
        alone = engine.step(1.0, prompt + action, reached)
        decode += rounds * action * engine.step(rows, prompt + action / 2, reached) + turns * (longest - action) * alone
    return [Phase("reading prompts", prefill, "sampling"), Phase("writing", decode, "sampling")]


def environment(place: Place, seconds: float) -> Phase:
    """Return the environment phase: live episodes step concurrently, and steps of an episode are sequential."""
    waves = -(-place.work.episodes // place.run.rollout.max_live_episodes)
    return Phase("environment", waves * place.work.environment_steps * seconds, "sampling")


def learning(place: Place, reached: Efficiencies, company: Company) -> list[Phase]:
    """Return the training phases of the slowest rank; with sequential policy updates, phases of all models add up."""
    of_model = {model: _of_model(place, reached, company, model) for model in place.shapes}
    if place.run.algorithm.schedule.name == "simultaneous":
        of_ranks = [
            [of_model[model] for model in of_model if company.learns(rank, model)] for rank in range(company.ranks)
        ]
        slowest = max(of_ranks, key=lambda mine: sum(sum(seconds.values()) for seconds in mine))
    else:
        slowest = list(of_model.values())
    found = {name: sum(seconds[name] for seconds in slowest) for name in next(iter(of_model.values()), {})}
    found |= exchanged(place, reached, company)
    return [Phase(name, seconds, "learning") for name, seconds in found.items() if seconds]


def _of_model(place: Place, reached: Efficiencies, company: Company, model: str) -> dict[str, float]:
    """Return the training seconds on one model; its ranks share a step's actions."""
    algorithm, shape, precision = place.run.algorithm, place.shapes[model], place.precision(model)
    ranks = len(company.on(model))
    recomputes = place.run.models[model].gradient_checkpointing
    update = old = after = base = critic = 0.0
    for policy in place.work.of_model(model):
        read = policy.tokens * forward_flops(shape, policy.lengths.row, policy.lengths.action / policy.lengths.row)
        rate = ranks * reached.rate(precision.rate(place.card), place.card.bandwidth)
        batches = policy.tokens / ranks / micro_batch(place, [policy], ranks)
        gathered = batches * _gathered(place, reached, company, policy)
        scoring = max(read / rate, gathered)
        if algorithm.critic.kind != "none":
            share = 1.0 if algorithm.level == "token" else policy.lengths.prompt / policy.lengths.row
            critic += share * scoring
            if algorithm.critic.body == "lora":
                critic += 2 * share * algorithm.critic.epochs * scoring
        if policy.train == "frozen":
            continue
        if algorithm.kl.coefficient:
            base += scoring
            old += scoring * (algorithm.kl.place == "reward")
        after += scoring * _measured(place, policy)
        old += (
            scoring * (1 - 1 / algorithm.minibatches) * (algorithm.kl.place != "reward" or not algorithm.kl.coefficient)
        )
        operations = policy.tokens * learned(shape, policy, recomputes, precision.half and not precision.on_cpu)
        launches = 3 * batches * shape.layers * (reached.cpu_launch if place.card.is_cpu else reached.launch)
        # weights are gathered for forward and backward; gradients of fully trained weights are scattered afterwards
        exchange = gathered * (3 if policy.train == "full" else 2)
        update += algorithm.epochs * max(operations / rate, launches, exchange)
    return {
        "critic": critic, "scores of the base": base, "scores before the update": old, "update": update,
        "scores after the update": after,
    }  # fmt: skip


def _measured(place: Place, policy: PolicyWork) -> float:
    """Return the fraction of a policy's actions with a measured KL."""
    agents = sum(agent.policy == policy.name for agent in place.run.agents)
    return min(1.0, agents * max(KL_ACTIONS, KL_TOKENS / policy.lengths.action) / policy.actions)


def _gathered(place: Place, reached: Efficiencies, company: Company, policy: PolicyWork) -> float:
    """Return the seconds to gather the missing shards of a policy's weights once."""
    shares = len(company.on(policy.model)) if company.shard else 1
    shape = place.shapes[policy.model]
    precision = place.precision(policy.model)
    weights = precision.element * shape.parameters if policy.train == "full" else precision.weights(shape)
    return weights * (shares - 1) / shares / (place.card.link * reached.link)


def exchanged(place: Place, reached: Efficiencies, company: Company) -> dict[str, float]:
    """Return the seconds of communication between ranks besides passes, and of transfers to and from host memory.

    An all-reduce over n ranks sends 2·(n − 1)/n of the data (ring: Patarasuk and Yuan 2009). Before a step, trained
    weights are copied to the host, so that a bad step can be undone. Offloaded moments are transferred for every
    optimizer step.
    """
    card, algorithm = place.card, place.run.algorithm
    steps = algorithm.epochs * algorithm.minibatches
    summed = gathered = moved = brought = 0.0
    for model, shape in place.shapes.items():
        ranks = len(company.on(model))
        shares = ranks if company.shard else 1
        numbers = 0.0
        for policy in place.work.of_model(model):
            if policy.train == "frozen":
                continue
            in_parts = policy.train == "full" and shares > 1
            held = trained_numbers(place, policy) / (shares if in_parts else 1)
            moved += held * (FLOAT if company.offload else FLOAT + MOMENTS)
            brought += 2 * MOMENTS * held * steps * company.offload
            numbers += 0.0 if in_parts else held
            element = place.precision(model).element
            gathered += element * shape.parameters * (shares - 1) / shares * (policy.train == "full")
        summed += FLOAT * numbers * 2 * (ranks - 1) / ranks * steps
        if not place.run.engine.apart:  # a separate engine's frozen weights are copied to host memory only once
            gathered += place.precision(model).weights(shape) * (shares - 1) / shares
    link, host = card.link * reached.link, card.host * reached.host
    return {
        "sums of gradients": summed / link,
        "moments from the host and back": brought / host if host else 0.0,
        "copies for undoing": moved / host if host else 0.0,
        "gathering for the first rank": gathered / link,
    }


def publishing(place: Place, reached: Efficiencies) -> Phase:
    """Return the phase that sends changed weights to separate engines; the local engine shares weights."""
    if not place.run.engine.apart:
        return Phase("publishing", 0.0, "publishing")
    sent = sum(
        place.precision(p.model).element * place.shapes[p.model].parameters
        if p.train == "full"
        else FLOAT * place.shapes[p.model].adapter_parameters(p.rank, p.targets)
        for p in place.work.trained
    )
    return Phase("publishing", sent / (place.card.link * reached.link), "publishing")


def tensor_parallel(place: Place, one: Sampled) -> int:
    """Return the cards per engine: for vLLM the smallest power of two on which weights and one row fit."""
    if not takes_a_share(place):
        return 1
    weights, token = engine_bytes(place, one)
    row = token * max(policy.lengths.longest_row for policy in one.policies)
    share, most, cards = vllm_share(place.run) * place.card.memory, place.shapes[one.model].key_heads, 1
    while (weights + row) / cards > share and cards < most:
        cards *= 2
    return cards


def _engine(place: Place, one: Sampled, group: int, reached: Efficiencies) -> Engine:
    """Return the speed factors of an engine with one set of weights on ``group`` cards."""
    shape, precision, card = place.shapes[one.model], place.sampling_precision(one), place.card
    weights, token = engine_bytes(place, one)
    if not place.run.engine.apart:
        weights = precision.weights(shape)
    own = reached.cpu_launch if card.is_cpu else reached.launch
    launch = reached.captured if takes_a_share(place) else own
    iteration = 0.0 if card.is_cpu else reached.iteration
    return Engine(shape, weights, token, precision.rate(card) * group, card.bandwidth * group, launch, iteration)


def _rows_that_fit(place: Place, one: Sampled, group: int) -> float:
    if not takes_a_share(place):
        return float("inf")
    weights, token = engine_bytes(place, one)
    room = vllm_share(place.run) * place.card.memory * group - weights
    longest = max(policy.lengths.longest_row for policy in one.policies)
    return max(1.0, room / (token * longest))


def _mean(policies: Sequence[PolicyWork], of: Callable[[PolicyWork], float]) -> float:
    """Return the mean over actions."""
    return sum(policy.actions * of(policy) for policy in policies) / sum(policy.actions for policy in policies)
