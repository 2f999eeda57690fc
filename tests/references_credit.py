"""Slow references of the critic-free credits and of step-level GAE, from the formulas: plain loops, float64."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations, permutations

from marft.common.types import Action, Episode
from tests import references

EQUAL, EPSILON = 1e-8, 1e-8


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def spread(values: Sequence[float]) -> float:
    """Unbiased standard deviation."""
    center = mean(values)
    return math.sqrt(sum((v - center) ** 2 for v in values) / (len(values) - 1))


def relative(reward: float, group: Sequence[float], scale: bool) -> float:
    if len(group) == 1 or max(group) - min(group) < EQUAL:
        return 0.0
    return (reward - mean(group)) / (spread(group) + EPSILON if scale else 1.0)


def team_return(episode: Episode) -> float:
    return sum(t.reward + sum(t.agent_rewards.values()) for t in episode.transitions)


def agent_return(episode: Episode, agent: str) -> float:
    return sum(t.reward + t.agent_rewards.get(agent, 0.0) for t in episode.transitions)


def grpo(batch: Sequence[Episode], scale: bool) -> list[float]:
    """One number an episode."""
    results = []
    for episode in batch:
        group = [team_return(other) for other in batch if other.task.id == episode.task.id]
        results.append(relative(team_return(episode), group, scale))
    return results


def rloo(batch: Sequence[Episode]) -> list[float]:
    results = []
    for i, episode in enumerate(batch):
        others = [team_return(o) for j, o in enumerate(batch) if o.task.id == episode.task.id and j != i]
        group = [*others, team_return(episode)]
        equal = max(group) - min(group) < EQUAL
        results.append(0.0 if not others or equal else team_return(episode) - mean(others))
    return results


def agent_group(batch: Sequence[Episode], scale: bool) -> list[list[float]]:
    """One number an action."""
    results = []
    for episode in batch:
        row = []
        for action in episode.actions:
            group = [
                agent_return(other, action.agent)
                for other in batch
                if other.task.id == episode.task.id and any(a.agent == action.agent for a in other.actions)
            ]
            row.append(relative(agent_return(episode, action.agent), group, scale))
        results.append(row)
    return results


def monte_carlo(
    episode: Episode, chain: str, level: str, gamma_token: float, gamma_agent: float, gamma_step: float
) -> list[list[float]]:
    """Walk from every decision to the end of its chain, and add up what is earned on the way."""
    actions = episode.actions
    pay = references.rewards(episode, references.Settings(chain, 1.0, 1.0, gamma_agent, gamma_step, 1.0, 1.0, 1.0))
    results = []
    for start in range(len(actions)):
        size = 1 if level == "action" else len(actions[start].tokens)
        row = []
        for j in range(size):
            total, discount, k = 0.0, gamma_token ** (size - 1 - j), start
            while True:
                total += discount * pay[k]
                after = references.successor(actions, k, chain)
                if after is None:
                    break
                passed = actions[after].step - actions[k].step
                discount *= gamma_agent if passed == 0 else gamma_step**passed
                discount *= gamma_token ** (0 if level == "action" else len(actions[after].tokens) - 1)
                k = after
            row.append(total)
        results.append(row)
    return results


def rae(batches: Sequence[Sequence[Episode]], decay: float, by: Sequence[str] = ()) -> list[list[list[float]]]:
    """Several batches one after another."""
    baselines: dict[tuple[object, ...], float] = {}
    results = []

    def key(e: Episode, agent: str) -> tuple[object, ...]:
        return agent, *(e.task.data.get(name) for name in by)

    for batch in batches:
        results.append(
            [[agent_return(e, a.agent) - baselines.get(key(e, a.agent), 0.0) for a in e.actions] for e in batch]
        )
        for wanted in {key(e, a.agent) for e in batch for a in e.actions}:
            agent = str(wanted[0])
            acted = [e for e in batch if key(e, agent) == wanted and any(a.agent == agent for a in e.actions)]
            earned = [agent_return(e, agent) for e in acted]
            baselines[wanted] = decay * baselines.get(wanted, 0.0) + (1 - decay) * mean(earned)
    return results


def tree(batch: Sequence[Episode], scale: bool, compared: str = "state") -> list[list[float | None]]:
    """None for actions that are no candidates."""

    def score(e: Episode, a: Action) -> float:
        return e.transitions[a.step].reward + e.transitions[a.step].agent_rewards.get(a.agent, 0.0)

    def candidates(e: Episode) -> list[Action]:
        return [a for a in e.actions if e.fork is None or a.id == e.fork.at]

    def state(e: Episode, a: Action) -> tuple[object, ...]:
        if compared != "state":
            return e.task.id, a.agent if compared == "agent" else a.step
        before = [(o.id, o.tokens.tolist()) for o in e.actions if o.index < a.index]
        return e.task.id, a.id, a.prompt.tolist(), before

    results: list[list[float | None]] = []
    for episode in batch:
        row: list[float | None] = []
        for action in episode.actions:
            if action not in candidates(episode):
                row.append(None)
                continue
            group = [score(o, c) for o in batch for c in candidates(o) if state(o, c) == state(episode, action)]
            row.append(relative(score(episode, action), group, scale))
        results.append(row)
    return results


def counterfactual(batch: Sequence[Episode], symmetric: bool) -> list[list[float | None]]:
    """None for actions of forks, but for the one at the fork where re-samples are judged as well."""
    results: list[list[float | None]] = []
    for episode in batch:
        row: list[float | None] = []
        for action in episode.actions:
            if episode.fork is not None and (not symmetric or action.id != episode.fork.at):
                row.append(None)
                continue
            origin = episode.name if episode.fork is None else episode.fork.origin
            others = [
                team_return(o)
                for o in batch
                if o is not episode
                and (
                    (o.fork is not None and o.fork.origin == origin and o.fork.at == action.id)
                    or (o.fork is None and o.name == origin and any(a.id == action.id for a in o.actions))
                )
            ]
            row.append(team_return(episode) - mean(others) if others else 0.0)
        results.append(row)
    return results


def spearman(a: Sequence[float], b: Sequence[float]) -> float:
    """Pearson correlation of mean ranks."""

    def ranks(values: Sequence[float]) -> list[float]:
        return [mean([r for r, w in enumerate(sorted(values)) if abs(w - v) < EQUAL]) for v in values]

    if constant(a) or constant(b):
        return 0.0
    ra, rb = ranks(a), ranks(b)
    ma, mb = mean(ra), mean(rb)
    covariance = sum((x - ma) * (y - mb) for x, y in zip(ra, rb, strict=True))
    return covariance / math.sqrt(sum((x - ma) ** 2 for x in ra) * sum((y - mb) ** 2 for y in rb))


def kendall(a: Sequence[float], b: Sequence[float]) -> float:
    """Pairs ranked alike less pairs ranked otherwise, over √(pairs that a ranks · pairs that b ranks)."""
    if constant(a) or constant(b):
        return 0.0
    alike = otherwise = of_a = of_b = 0
    for i, j in combinations(range(len(a)), 2):
        in_a, in_b = abs(a[i] - a[j]) >= EQUAL, abs(b[i] - b[j]) >= EQUAL
        of_a, of_b = of_a + in_a, of_b + in_b
        if in_a and in_b:
            same = (a[i] > a[j]) == (b[i] > b[j])
            alike, otherwise = alike + same, otherwise + (not same)
    return (alike - otherwise) / math.sqrt(of_a * of_b)


def ndcg(a: Sequence[float], b: Sequence[float]) -> float:
    """Discounted gains, b over its least one, in the order of a, over those in the order of b: the mean over every order
    in which ties of a may stand."""
    if constant(a) or constant(b):
        return 0.0

    def gain(order: Sequence[int]) -> float:
        return sum((b[k] - min(b)) / math.log2(2 + place) for place, k in enumerate(order))

    orders = [
        order
        for order in permutations(range(len(a)))
        if all(a[i] > a[j] - EQUAL for i, j in zip(order, order[1:], strict=False))
    ]
    return mean([gain(order) for order in orders]) / gain(sorted(range(len(b)), key=lambda k: -b[k]))


def constant(values: Sequence[float]) -> bool:
    return len(values) < 2 or max(values) - min(values) < EQUAL


CONSISTENCIES = {"spearman": spearman, "kendall": kendall, "ndcg": ndcg}


def comam(
    batch: Sequence[Episode],
    scale: bool,
    fallback: float = 1.0,
    consistency: str = "spearman",
    fixed: Mapping[str, float] = {},
) -> list[list[float]]:
    def local(e: Episode, agent: str) -> float:
        return sum(t.agent_rewards.get(agent, 0.0) for t in e.transitions)

    def whole(e: Episode) -> float:
        return sum(t.reward for t in e.transitions)

    results = []
    for episode in batch:
        row = []
        for action in episode.actions:
            agent = action.agent
            peers = [o for o in batch if o.task.id == episode.task.id and any(a.agent == agent for a in o.actions)]
            own = [local(o, agent) for o in peers]
            weight = max(0.0, CONSISTENCIES[consistency](own, [whole(o) for o in peers]))
            weight = fixed.get(agent, fallback if constant(own) else weight)
            mixed = [local(o, agent) + weight * whole(o) for o in peers]
            row.append(relative(local(episode, agent) + weight * whole(episode), mixed, scale))
        results.append(row)
    return results


def reinforce_plus_plus(
    batch: Sequence[Episode], costs: Sequence[Sequence[Sequence[float]]], trained: Sequence[str], whiten: bool
) -> list[float]:
    """One number a decision: the return minus the costs of this decision and all after it, whitened over the decisions
    of trained policies. ``costs`` are by episode, action and decision."""
    net: list[float] = []
    counted: list[float] = []
    for episode, of_actions in zip(batch, costs, strict=True):
        flat = [(action, cost) for action, row in zip(episode.actions, of_actions, strict=True) for cost in row]
        for place, (action, _) in enumerate(flat):
            to_come = 0.0
            for _, cost in flat[place:]:
                to_come += cost
            net.append(team_return(episode) - to_come)
            if action.policy in trained:
                counted.append(net[-1])
    if not whiten:
        return net
    earned = [team_return(episode) for episode in batch]
    if len(batch) == 1 or max(earned) - min(earned) < EQUAL:
        return [0.0] * len(net)
    if not counted:
        return net
    deviation = spread(counted) if len(counted) > 1 else 0.0
    return [(x - mean(counted)) / (deviation + EPSILON) for x in net]


def magrpo(batch: Sequence[Episode], costs: Sequence[Sequence[float]], scale: bool) -> list[float]:
    """One number an action: what is earned from its turn on, costs taken off, against the group's at that turn.
    ``costs`` are by episode and action."""

    def from_turn(number: int, turn: int) -> tuple[float, float]:
        earned = price = 0.0
        for t, transition in enumerate(batch[number].transitions):
            if t >= turn:
                earned += transition.reward + sum(transition.agent_rewards.values())
        for action, cost in zip(batch[number].actions, costs[number], strict=True):
            if action.step >= turn:
                price += cost
        return earned, earned - price

    results = []
    for number, episode in enumerate(batch):
        for action in episode.actions:
            group = [
                from_turn(other, action.step)
                for other, o in enumerate(batch)
                if o.task.id == episode.task.id and any(a.step == action.step for a in o.actions)
            ]
            gross, net = [g for g, _ in group], [n for _, n in group]
            if len(group) == 1 or max(gross) - min(gross) < EQUAL:
                results.append(0.0)
            else:
                mine = from_turn(number, action.step)[1]
                results.append((mine - mean(net)) / (spread(net) + EPSILON if scale else 1.0))
    return results


def running_moments(batches: Sequence[Sequence[float]], decay: float) -> tuple[float, float]:
    """Exponential mean of the batches' means and deviation from that of their squares, their start's bias taken out:
    batch k of K weighs decay^(K − k)."""
    weights = [decay ** (len(batches) - 1 - k) for k in range(len(batches))]
    first = sum(w * mean(b) for w, b in zip(weights, batches, strict=True)) / sum(weights)
    second = sum(w * mean([x * x for x in b]) for w, b in zip(weights, batches, strict=True)) / sum(weights)
    return first, math.sqrt(max(second - first**2, 1e-2))


def step_gae(
    episode: Episode, values: Sequence[Sequence[float]], ends: Mapping[str, float], kind: str, gamma: float, lam: float,
    traces: Sequence[float] | None = None,
) -> list[float]:  # fmt: skip
    """One number an action: that of its environment step. ``ends`` are the values of a truncated episode's end by agent."""
    steps = sorted({a.step for a in episode.actions})
    reward = dict.fromkeys(steps, 0.0)
    for t, transition in enumerate(episode.transitions):
        before = [s for s in steps if s <= t]
        if before:
            reward[before[-1]] += (transition.reward + sum(transition.agent_rewards.values())) * gamma ** (
                t - before[-1]
            )
    value, rho = {}, {}
    for t in steps:
        rows = [[float(x) for x in values[k]] for k, a in enumerate(episode.actions) if a.step == t]
        value[t] = rows[0][0] if kind == "first" else mean([x for row in rows for x in row])
        rho[t] = next(min(1.0, traces[k]) for k, a in enumerate(episode.actions) if a.step == t) if traces else 1.0
    final_value = 0.0
    if ends:
        speakers: list[str] = []  # of the last step, in the order asked, each once
        for action in episode.actions:
            if action.step == steps[-1] and action.agent not in speakers:
                speakers.append(action.agent)
        final_value = ends[speakers[0]] if kind == "first" else mean([ends[agent] for agent in speakers])
    advantage: dict[int, float] = {}
    for place in reversed(range(len(steps))):
        t = steps[place]
        if place + 1 < len(steps):
            following = steps[place + 1]
            g = gamma ** (following - t)
            advantage[t] = reward[t] + g * value[following] - value[t] + g * lam * rho[following] * advantage[following]
        else:
            last = final_value * gamma ** (len(episode.transitions) - t)
            advantage[t] = reward[t] + last - value[t]
    return [advantage[a.step] for a in episode.actions]
