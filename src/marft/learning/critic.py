"""Learning V_φ: features of the frozen base once per batch of episodes, the head as often as wanted."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from marft import seeds
from marft.config.algorithm import CriticSettings
from marft.learning.interfaces import Floats, Level, Values, split_rows
from marft.models.backbone import Backbone, PackedRows
from marft.models.critic import ValueHead
from marft.types import Action, Episode, TokenIds, all_actions


def value_loss(values: Tensor, old_values: Tensor, returns: Tensor, clip: float, huber_delta: float | None) -> Tensor:
    """The loss of each value, [K]: the larger of clipped and unclipped error (formulas §8).

    Args:
        clip: how far a value counts as moved from ``old_values``; 0 is off.
        huber_delta: where the Huber loss turns linear, on both sides; None squares.
    """
    errors = [values - returns]
    if clip:
        errors.append(old_values + (values - old_values).clamp(-clip, clip) - returns)
    losses = [_huber(error, huber_delta) if huber_delta is not None else 0.5 * error.square() for error in errors]
    return torch.stack(losses).amax(0)


def _huber(error: Tensor, delta: float) -> Tensor:
    size = error.abs()
    return torch.where(size <= delta, 0.5 * error.square(), delta * (size - 0.5 * delta))


def explained_variance(values: Floats, returns: Floats) -> float:
    """``1 − Var(returns − values) / Var(returns)``; NaN when the returns are all equal."""
    variance = float(np.var(returns)) if len(returns) else 0.0
    return 1.0 - float(np.var(returns - values)) / variance if variance > 1e-12 else math.nan


class Critic:
    """One value head for each base model, its optimizer, and the features of the episodes at hand.

    Args:
        bases: the frozen base that each policy reads with, by policy name.
        base_names: the model name of each policy: policies of one base share a head.
    """

    def __init__(
        self,
        settings: CriticSettings,
        level: Level,
        bases: Mapping[str, Backbone],
        base_names: Mapping[str, str],
        *,
        seed: int,
        tokens_per_batch: int,
    ) -> None:
        self.settings, self.level, self.bases, self.base_names = settings, level, bases, base_names
        self.seed, self.tokens_per_batch = seed, tokens_per_batch
        self.heads: dict[str, ValueHead] = {}
        for policy, name in base_names.items():
            if name not in self.heads:
                base = bases[policy]
                head = ValueHead(base.head.in_features, settings.hidden, seeds.derive_seed(seed, "critic", name))
                self.heads[name] = head.to(base.device)
        self.optimizer = torch.optim.Adam(
            [parameter for head in self.heads.values() for parameter in head.parameters()],
            lr=settings.learning_rate,
            eps=settings.epsilon,
            foreach=True,
        )
        self._features: list[tuple[str, Tensor]] = []  # (base, [K, D]) in the order of _order
        self._order: list[np.ndarray] = []  # for each base, the flat indices of its decisions

    def evaluate(self, episodes: Sequence[Episode]) -> Values:
        """V at every decision of ``episodes`` and at the end of truncated ones. Keeps the features for updates."""
        actions = all_actions(episodes)
        reads = [reading(action, self.level) for action in actions]
        sizes = [len(read.positions) for read in reads]
        ends = [(i, e.bootstrap, e.bootstrap_policy) for i, e in enumerate(episodes) if e.bootstrap is not None]
        flat = np.zeros(sum(sizes))
        firsts = np.cumsum([0, *sizes])
        bootstrap = np.zeros(len(episodes))
        self._features, self._order = [], []
        for name, head in self.heads.items():
            mine = [i for i, action in enumerate(actions) if self.base_names[action.policy] == name]
            mine_ends = [end for end in ends if self.base_names[end[2]] == name]
            if not mine and not mine_ends:
                continue
            base = next(self.bases[policy] for policy, base_name in self.base_names.items() if base_name == name)
            finals = [Reading(ids, np.array([len(ids) - 1])) for _, ids, _ in mine_ends]
            features = frozen_features(base, [*(reads[i] for i in mine), *finals], self.tokens_per_batch)
            with torch.no_grad():
                values = head(features).double().cpu().numpy()
            order = (
                np.concatenate([np.arange(firsts[i], firsts[i + 1]) for i in mine]) if mine else np.empty(0, np.int64)
            )
            flat[order] = values[: len(order)]
            bootstrap[[i for i, _, _ in mine_ends]] = values[len(order) :]
            self._features.append((name, features[: len(order)]))
            self._order.append(order)
        return Values(split_rows(flat, sizes), bootstrap)

    def update(self, values: Values, targets: Sequence[Floats], step: int) -> dict[str, float]:
        """Fit the heads to the targets, on the features that :meth:`evaluate` kept → metrics."""
        flat_values, returns = np.concatenate(values.actions), np.concatenate(targets)
        losses, norms = [], []
        for epoch in range(self.settings.epochs):
            for part in self._minibatches(len(returns), step, epoch):
                loss = self._loss(part, flat_values, returns)
                self.optimizer.zero_grad(set_to_none=True)
                (self.settings.coefficient * loss).backward()
                norm = torch.nn.utils.clip_grad_norm_(self.parameters().values(), self.settings.max_gradient_norm)
                self.optimizer.step()
                losses.append(loss.item())
                norms.append(norm.item())
        return {
            "critic/loss": float(np.mean(losses)) if losses else math.nan,
            "critic/gradient_norm": float(np.mean(norms)) if norms else math.nan,
            "critic/explained_variance": explained_variance(flat_values, returns),
            "critic/value": float(flat_values.mean()) if len(flat_values) else math.nan,
        }

    def parameters(self) -> dict[str, torch.nn.Parameter]:
        return {f"{name}.{key}": p for name, head in self.heads.items() for key, p in head.named_parameters()}

    def _minibatches(self, count: int, step: int, epoch: int) -> list[np.ndarray]:
        order = seeds.generator(self.seed, "critic minibatches", step, epoch).permutation(count)
        return [part for part in np.array_split(order, self.settings.minibatches) if len(part)]

    def _loss(self, part: np.ndarray, old_values: Floats, returns: Floats) -> Tensor:
        chosen = np.zeros(len(returns), bool)
        chosen[part] = True
        delta = self.settings.huber_delta if self.settings.loss == "huber" else None
        total = None
        for (name, features), order in zip(self._features, self._order, strict=True):
            rows = np.flatnonzero(chosen[order])
            if len(rows) == 0:
                continue
            predicted = self.heads[name](features[torch.from_numpy(rows).to(features.device)])
            old, target = (torch.from_numpy(x[order[rows]]).to(predicted) for x in (old_values, returns))
            sums = value_loss(predicted, old, target, self.settings.value_clip, delta).sum()
            total = sums if total is None else total + sums
        assert total is not None
        return total / len(part)


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """What the critic reads for one action, and the positions at which its decisions' values stand."""

    ids: TokenIds  # [T]
    positions: npt.NDArray[np.int64]  # [U]


def reading(action: Action, level: Level) -> Reading:
    """The value of a decision is read at the token before it: a baseline must not see what it judges.

    At action level that is the last token of the state; at token level, for each sampled token, the position whose
    logits predict it.
    """
    state = action.prompt if action.state is None else action.state
    if level == "action":
        return Reading(state, np.array([len(state) - 1]))
    ids = np.concatenate([state, action.tokens[:-1]])
    return Reading(ids, len(state) - 1 + np.flatnonzero(action.sampled))


@torch.no_grad()
def frozen_features(base: Backbone, readings: Sequence[Reading], tokens_per_batch: int) -> Tensor:
    """Hidden states of the base alone, adapters off, at the positions wanted → [Σ U, D], float32.

    Readings of the same ids are computed once.
    """
    wanted: dict[bytes, npt.NDArray[np.int64]] = {}
    for read in readings:
        key = read.ids.tobytes()
        wanted[key] = np.union1d(wanted.get(key, read.positions), read.positions)
    found: dict[bytes, Tensor] = {}
    for keys in _by_tokens(sorted(wanted, key=len, reverse=True), tokens_per_batch):
        packed = PackedRows.of([np.frombuffer(key, np.int32) for key in keys], [None] * len(keys), base.device)
        at = np.concatenate([start + wanted[key] for start, key in zip(packed.starts(), keys, strict=True)])
        hidden = base.hidden_states(packed)[torch.from_numpy(at).to(base.device)].float()
        found.update(zip(keys, hidden.split([len(wanted[key]) for key in keys]), strict=True))
    rows = []
    for read in readings:
        key = read.ids.tobytes()
        places = np.searchsorted(wanted[key], read.positions)
        rows.append(found[key][torch.from_numpy(places).to(base.device)])
    return torch.cat(rows)


def _by_tokens(keys: Sequence[bytes], limit: int) -> list[list[bytes]]:
    groups: list[list[bytes]] = []
    tokens = 0
    for key in keys:
        length = len(key) // 4
        if not groups or tokens + length > limit:
            groups.append([])
            tokens = 0
        groups[-1].append(key)
        tokens += length
    return groups
