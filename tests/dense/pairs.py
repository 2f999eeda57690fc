"""Comparisons of attempts, and their loss as it is written down: one graph over all actions of a pair (Rafailov et al.
2023), of which each policy takes the gradient of its own actions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from marft.common import seeds
from marft.common.types import Action, ActionKey, Episode
from tests.dense.cases import EQUAL, Case, Judged
from tests.dense.losses import Row
from tests.dense.model import Scores, score


@dataclass
class Side:
    group: object
    earned: float
    actions: list[Action]
    agent: str = ""


@dataclass
class Pair:
    better: list[ActionKey]
    worse: list[ActionKey]
    agent: str
    weight: float


class Part(list[Row]):
    """A minibatch of comparisons."""

    pairs: Sequence[Pair] = ()


def sides_of(cases: Sequence[Case], s: Any) -> list[Side]:
    """What is compared: attempts, agents' parts of attempts, or candidates of a state."""
    found = []
    for case in cases:
        whole = sum(pay.whole() for pay in case.pays)
        learned = [a for a, learns in zip(case.actions, case.trains, strict=True) if learns]
        if s.name == "preference-tree":
            for a in case.actions:
                if case.episode.fork is None or a.id == case.episode.fork.at:
                    pay = case.pays[a.step]
                    before = tuple((b.id, tuple(b.tokens.tolist())) for b in case.actions if b.index < a.index)
                    key = (case.episode.task.id, a.id, tuple(a.prompt.tolist()), before)
                    mine = [a] if a in learned else []
                    found.append(Side(key, pay.team + pay.own.get(a.agent, 0.0), mine, a.agent))
        elif s.sides == "team":
            found.append(Side(case.episode.task.id, whole, learned))
        else:
            for agent in dict.fromkeys(a.agent for a in case.actions):
                own = sum(pay.team + pay.own.get(agent, 0.0) for pay in case.pays)
                mine = [a for a in learned if a.agent == agent]
                found.append(Side(case.episode.task.id, own if s.judged_by == "own" else whole, mine, agent))
    return found


def pairs_of(cases: Sequence[Case], s: Any) -> list[Pair]:
    """Better against worse, group by group."""
    found, groups = [], {}  # type: ignore[var-annotated]
    for side in sides_of(cases, s):
        groups.setdefault((side.group, side.agent), []).append(side)
    for group in groups.values():
        for better, worse in in_pairs(group, s.pairs):
            if better.earned - worse.earned >= EQUAL and better.actions + worse.actions:
                gap = better.earned - worse.earned if s.weights == "gap" else 1.0
                keys = [[a.key for a in side.actions] for side in (better, worse)]
                found.append(Pair(keys[0], keys[1], better.agent, gap))
    mean = sum(pair.weight for pair in found) / max(1, len(found))
    for pair in found:
        pair.weight /= mean
    return found


def in_pairs(group: Sequence[Side], which: str) -> list[tuple[Side, Side]]:
    ordered: list[Side] = []  # from the best to the worst, earlier attempts first among equals
    for side in group:
        place = len([other for other in ordered if other.earned >= side.earned])
        ordered.insert(place, side)
    if which == "all":
        return [(a, b) for i, a in enumerate(ordered) for b in ordered[i + 1 :]]
    pairs = [(ordered[i], ordered[-1 - i]) for i in range(len(ordered) // 2)]
    return pairs[:1] if which == "extremes" else pairs


def preference(cases: Sequence[Case], s: Any) -> list[Judged]:
    """Nothing is worth anything by itself; what is in a pair is trained."""
    held = {key for pair in pairs_of(cases, s) for key in (*pair.better, *pair.worse)}
    candidate = lambda case, a: s.name == "preference" or case.episode.fork is None or a.id == case.episode.fork.at  # noqa: E731
    return [
        Judged(case.zeros(), trained=[a.key in held and candidate(case, a) for a in case.actions]) for case in cases
    ]  # fmt: skip


def best(cases: Sequence[Case], s: Any) -> list[Judged]:
    """1 for what solved its task, or was the best of a group (Yuan et al. 2023); what was said before counts once."""
    kept: dict[str, set[ActionKey]] = {}
    said: dict[object, set[object]] = {}
    by_agent = s.select == "best" and s.judged_by == "own"
    entries = []
    for case in cases:
        for agent in dict.fromkeys(a.agent for a in case.actions) if by_agent else ("",):
            pay = sum(p.team + p.own.get(agent, 0.0) if by_agent else p.whole() for p in case.pays)
            mine = [a for a, t in zip(case.actions, case.trains, strict=True) if t and agent in ("", a.agent)]
            entries.append(((case.episode.task.id, agent), pay, mine, case))
    for group, pay, mine, case in sorted(entries, key=lambda entry: -entry[1]):
        others = [other[1] for other in entries if other[0] == group]
        good = case.episode.success if case.episode.success is not None else pay > 0
        if s.select == "best":
            good = max(others) - min(others) >= EQUAL and pay > max(others) - EQUAL
        words = tuple((a.agent, tuple(a.prompt.tolist()), tuple(a.tokens.tolist())) for a in mine)
        full = s.max_per_task and len(kept.get(repr(group), ())) >= s.max_per_task
        if not good or not mine or (s.distinct and words in said.setdefault(group, set())) or full:
            continue
        if s.drop_truncated and any(a.finish == "length" for a in mine):
            continue
        said.setdefault(group, set()).add(words)
        kept.setdefault(repr(group), set()).update(a.key for a in mine)
    all_kept = set().union(*kept.values()) if kept else set()
    flags = [[a.key in all_kept for a in case.actions] for case in cases]
    return [
        Judged(case.spread([float(flag) for flag in row]), trained=row) for case, row in zip(cases, flags, strict=True)
    ]  # fmt: skip


def loss_of(better: Tensor, worse: Tensor, nll: Tensor, lengths: tuple[int, int], o: Any) -> Tensor:
    """The loss of one comparison, from the log-ratios of its sides and what the better one's decisions cost in nats."""
    h = better - worse
    if o.loss == "ipo":
        return (h - 1 / (2 * o.beta)) ** 2 + o.nll_coefficient * nll
    z = o.beta * h + o.length_penalty * (lengths[0] - lengths[1]) - o.margin
    right, wrong = torch.nn.functional.logsigmoid(z), torch.nn.functional.logsigmoid(-z)
    return -(1 - o.label_smoothing) * right - o.label_smoothing * wrong + o.nll_coefficient * nll


@dataclass
class Comparing:
    """Of one training step."""

    pairs: Sequence[Pair]
    s: Any  # [algorithm]
    reference: Mapping[ActionKey, float]  # log π_ref of each action
    z: Mapping[ActionKey, float]
    actions: Mapping[ActionKey, Action]
    seen: list[tuple[float, float, float, float]] = field(default_factory=list)

    def split(self, rows: Sequence[Row], seed: int, step: int, epoch: int) -> list[list[Row]]:
        here = {row.action.key for row in rows}
        pairs = [pair for pair in self.pairs if here & {*pair.better, *pair.worse}]
        parts: list[list[Pair]] = [[] for _ in range(self.s.minibatches)]
        for agent in sorted({pair.agent for pair in pairs}):
            mine = [pair for pair in pairs if pair.agent == agent]
            order = seeds.generator(seed, "comparisons", agent, step, epoch).permutation(len(mine))
            for part, indices in zip(parts, np.array_split(order, self.s.minibatches), strict=True):
                part += [mine[i] for i in indices]
        found: list[list[Row]] = []
        for some in parts:
            held = {key for pair in some for key in (*pair.better, *pair.worse)}
            part = Part(row for row in rows if row.action.key in held)
            part.pairs = some
            found.append(part)
        return found

    def loss(self, part: Sequence[Row], scores: Sequence[Scores], now: Callable[[Action], Scores]) -> Tensor:
        """Σ over policies of the mean over the comparisons that hold their actions, others' actions held still."""
        assert isinstance(part, Part)
        owner = {row.action.key: row.action.policy for row in part}
        log_probs = {row.action.key: sum(s.log_probs[1:], s.log_probs[0]) for row, s in zip(part, scores, strict=True)}
        sizes = {key: action.num_decisions for key, action in self.actions.items()}
        with torch.no_grad():
            still = {key: math.fsum(now(self.actions[key]).numbers())
                     for pair in part.pairs for key in (*pair.better, *pair.worse)}  # fmt: skip
        total = torch.zeros((), dtype=torch.float64)
        for policy in sorted(set(owner.values())):
            mine = [p for p in part.pairs if policy in {owner.get(key) for key in (*p.better, *p.worse)}]
            for pair in mine:
                numbers = []
                for side in (pair.better, pair.worse):
                    ratio, logs, size = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64), 0
                    for key in side:
                        said = (
                            log_probs[key]
                            if owner.get(key) == policy
                            else torch.tensor(still[key], dtype=torch.float64)
                        )
                        ratio = ratio + (said - self.reference[key]) / self.z[key]
                        logs, size = logs + said, size + sizes[key]
                    numbers.append((ratio, logs, size))
                (better, logs, size), (worse, _, other_size) = numbers
                one = loss_of(better, worse, -logs / max(1, size), (size, other_size), self.s.objective)
                count = len(part.pairs) if self.s.denominator == "pooled" else len(mine)
                total = total + pair.weight * one / count
        self._see(part, still)
        return total

    def _see(self, part: Part, now: Mapping[ActionKey, float]) -> None:
        for pair in part.pairs:
            sides = [
                sum((now[key] - self.reference[key]) / self.z[key] for key in s) for s in (pair.better, pair.worse)
            ]
            right = 0.5 if sides[0] == sides[1] else float(sides[0] > sides[1])
            self.seen.append((right, sides[0] - sides[1], sides[0], sides[1]))

    def metrics(self, before: Mapping[str, float]) -> dict[str, float]:
        """What is reported: no loss of single actions, and no KL of actions that are in no pair."""
        names = ("accuracy", "margin", "chosen_log_ratio", "rejected_log_ratio")
        columns = zip(*self.seen, strict=True)
        found = {f"preference/{n}": math.fsum(c) / len(self.seen) for n, c in zip(names, columns, strict=False)}
        return {name: value for name, value in before.items() if name not in ("policy_loss", "kl_to_base")} | found


def begun(learner: Any, episodes: Sequence[Episode], cases: Sequence[Case], step: int) -> Comparing:
    """What a dense learner compares in a step: to its weights when it began, or to those of ``refresh`` steps."""
    o = learner.s.objective
    if not learner.start or (o.refresh and step % o.refresh == 0):
        learner.start = {
            name: replace(p, parameters={n: w.detach().clone() for n, w in p.parameters.items()})
            for name, p in learner.policies.items()
        }
    found = pairs_of(cases, learner.s.credit)
    held = {key for pair in found for key in (*pair.better, *pair.worse)}
    actions = {a.key: a for e in episodes for a in e.actions if a.key in held}
    reference = {}
    for key, a in actions.items():
        then = learner.start[a.policy]
        weights = {"start": then.weights(), "base": {}}.get(o.reference, {})
        with torch.no_grad():
            said = score(then.base, weights, a, learner.agents[a.agent].sampling.temperature).numbers()
        reference[key] = 0.0 if o.reference == "none" else math.fsum(said)
    return Comparing(found, learner.s, reference, {key: learner._z(a) for key, a in actions.items()}, actions)
