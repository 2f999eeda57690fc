"""Critic: learn V_φ from features of the base model.

With a frozen body, features are computed once per batch of episodes and reused for every update of the head.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from marft.common import seeds
from marft.common.types import Action, Episode, TokenIds
from marft.config.algorithm import CriticSettings
from marft.config.interfaces.credit import Floats, Level, Values, flatten_actions, split_rows
from marft.models.backbone import Backbone
from marft.models.critic import ValueHead
from marft.models.devices import copy_together, read_tensors, to_device
from marft.models.packed_rows import PackedRows, split_batches
from marft.trainer.ranks.interface import SINGLE_RANK, Ranks, merge_over_ranks, split_share, sum_over_ranks

LORA_TARGETS = ("q_proj", "v_proj")
MIN_VARIANCE = 1e-2  # minimum variance, as in Yu et al.'s code


def value_losses(values: Tensor, old_values: Tensor, returns: Tensor, clip: float, huber_delta: float | None) -> Tensor:
    """Return the loss of each value, shape [K]: the larger of clipped and unclipped error (formulas §8).

    Args:
        values: predicted values, shape [K], with gradient.
        old_values: values before the update, shape [K].
        returns: targets, shape [K].
        clip: maximum distance from ``old_values`` in the clipped error; 0 is off.
        huber_delta: error at which the Huber loss becomes linear; None uses the squared error.
    """
    errors = [values - returns]
    if clip:
        errors.append(old_values + (values - old_values).clamp(-clip, clip) - returns)
    losses = [_huber(error, huber_delta) if huber_delta is not None else 0.5 * error.square() for error in errors]
    return torch.stack(losses).amax(0)


def _huber(error: Tensor, delta: float) -> Tensor:
    size = error.abs()
    return torch.where(size <= delta, 0.5 * error.square(), delta * (size - 0.5 * delta))


def compute_explained_variance(values: Floats, returns: Floats) -> float:
    """Return ``1 − Var(returns − values) / Var(returns)``; NaN for constant returns."""
    variance = float(np.var(returns)) if len(returns) else 0.0
    return 1.0 - float(np.var(returns - values)) / variance if variance > 1e-12 else math.nan


class CriticBody(NamedTuple):
    """Base model that computes features; policies with the same name share it."""

    name: str
    backbone: Backbone


@dataclass(frozen=True, slots=True, eq=False)
class CriticInput:
    """Critic input for a segment, and the positions for its decisions' values."""

    token_ids: TokenIds  # [T]
    positions: npt.NDArray[np.int64]  # [U]


@dataclass(frozen=True, slots=True, eq=False)
class _HeadBatch:
    """Decisions under a value head on this rank: rows in the batch, and inputs."""

    head: str
    base: str
    global_rows: npt.NDArray[np.int64]  # flat indices of the head's decisions on all ranks
    rows: npt.NDArray[np.int64]  # [K] flat indices of decisions
    inputs: Sequence[CriticInput]  # Σ positions = K
    features: Tensor | None  # [K, D] with a frozen body, else None


class Critic:
    """V_φ: a body per base model, value heads (per base or per agent), and the optimizer.

    A frozen body runs once per batch of episodes. A body with its own adapter runs again in every update, with
    gradient.

    Args:
        settings: settings of the critic.
        level: level of decisions: action or token.
        bodies: base model of each policy.
        agents: role and policy of each agent.
        seed: seed of the run.
        tokens_per_batch: maximum tokens per forward pass.
        ranks: ranks that train together. Each gets all episodes and reads its share.
    """

    def __init__(
        self,
        settings: CriticSettings,
        level: Level,
        bodies: Mapping[str, CriticBody],
        agents: Sequence[tuple[str, str]],
        *,
        seed: int,
        tokens_per_batch: int,
        ranks: Ranks = SINGLE_RANK,
    ) -> None:
        self.ranks = ranks
        self.settings, self.level = settings, level
        self.seed, self.tokens_per_batch = seed, tokens_per_batch
        self.base_names = {policy: body.name for policy, body in bodies.items()}
        self.bases = dict(bodies.values())
        self.heads: dict[str, ValueHead] = {}
        self.base_of: dict[str, str] = {}  # model of each head
        for agent, policy in agents:
            name = self._head_of(agent, policy)
            if name not in self.heads:
                self.base_of[name], base = bodies[policy]
                head = ValueHead(base.head.in_features, settings.hidden_size, seeds.derive_seed(seed, "critic", name))
                self.heads[name] = head.to(base.device)
        self.normalizers = {
            name: ValueNormalizer(settings.value_decay) for name in self.heads if settings.normalize_values
        }
        groups: list[dict[str, object]] = [
            {"params": [p for head in self.heads.values() for p in head.parameters()], "lr": settings.learning_rate}
        ]
        # adapter of each body; empty with frozen bodies
        self.adapters = {name: f"critic of {name}" for name in self.bases} if settings.body == "lora" else {}
        if self.adapters:
            for name, adapter in self.adapters.items():
                self.bases[name].add_adapter(adapter, settings.lora_rank, 2.0 * settings.lora_rank, LORA_TARGETS, seed)
            groups.append({"params": list(self._adapter_parameters().values()), "lr": settings.lora_learning_rate})
        self.optimizer = torch.optim.Adam(groups, eps=settings.epsilon, foreach=True)
        self._decisions: list[_HeadBatch] = []

    def evaluate(self, episodes: Sequence[Episode]) -> Values:
        """Return V at every decision of ``episodes`` and at the end of truncated episodes.

        Inputs for :meth:`update` are stored.
        """
        actions = flatten_actions(episodes)
        action_inputs = [critic_inputs(action, self.level, self.settings.kind) for action in actions]
        sizes = [sum(len(item.positions) for item in segment_inputs) for segment_inputs in action_inputs]
        offsets = np.cumsum([0, *sizes])
        flat = np.zeros(sum(sizes))
        owners = [self._head_of(action.agent, action.policy) for action in actions]
        ends: defaultdict[str, list[tuple[int, str, CriticInput]]] = defaultdict(list)  # by head
        for i, episode in enumerate(episodes):  # each agent has its own final value: rewards may differ by agent
            policies = {action.agent: action.policy for action in episode.actions}
            for agent, ids in episode.bootstrap.items():
                end = CriticInput(ids, np.array([len(ids) - 1]))
                ends[self._head_of(agent, policies[agent])].append((i, agent, end))
        final_values: dict[tuple[int, str], float] = {}
        self._decisions = []
        for name, head in self.heads.items():
            own_actions = [i for i, owner in enumerate(owners) if owner == name]
            if not own_actions:  # agents at the end of an episode have also acted in it
                continue
            global_rows = _rows_of(own_actions, offsets)
            base = self.base_of[name]
            base_ranks = self.ranks.on(base)
            own_actions = split_share(
                base_ranks, own_actions, lambda i: sum(len(item.token_ids) for item in action_inputs[i])
            )
            own_ends = split_share(base_ranks, ends[name], lambda end: len(end[-1].token_ids))
            decision_inputs = [item for i in own_actions for item in action_inputs[i]]
            with torch.no_grad():
                features = self._read_features(base, [*decision_inputs, *(item for *_, item in own_ends)])
                values = head(features).double().cpu().numpy()
                if name in self.normalizers:
                    values = self.normalizers[name].denormalize(values)
            rows = _rows_of(own_actions, offsets)
            flat[rows] = values[: len(rows)]
            for (i, agent, _), value in zip(own_ends, values[len(rows) :], strict=True):
                final_values[i, agent] = float(value)
            cached_features = features[: len(rows)] if self.settings.body == "frozen" else None
            self._decisions.append(_HeadBatch(name, base, global_rows, rows, decision_inputs, cached_features))
        flat, final_values = sum_over_ranks(self.ranks, flat), merge_over_ranks(self.ranks, final_values)
        bootstrap = [
            {agent: final_values.get((i, agent), 0.0) for agent in episode.bootstrap}
            for i, episode in enumerate(episodes)
        ]
        return Values(split_rows(flat, sizes), bootstrap)

    def update(self, values: Values, targets: Sequence[Floats], step: int) -> dict[str, float]:
        """Fit the critic to the targets, on the inputs from :meth:`evaluate` → metrics.

        Args:
            values: values from :meth:`evaluate`.
            targets: target return of each decision, one array per action.
            step: index of the training step.
        """
        flat_values, returns = np.concatenate(values.actions), np.concatenate(targets)
        old, scaled_targets = self._normalize_targets(flat_values, returns)
        losses, norms, skipped = [], [], 0.0
        for epoch in range(self.settings.epochs):
            for part in self._minibatches(len(returns), step, epoch):
                self.optimizer.zero_grad()
                loss_terms = self._backward(part, old, scaled_targets)
                self.ranks.sum_gradients(p for group in self.optimizer.param_groups for p in group["params"])
                norm = torch.nn.utils.clip_grad_norm_(
                    self.parameters().values(), self.settings.max_gradient_norm, foreach=True
                )
                *term_values, (size,) = read_tensors([*loss_terms, norm])
                losses.append(float(sum_over_ranks(self.ranks, sum(term_values, np.zeros(1)))[0]))
                if math.isfinite(size):
                    self.optimizer.step()
                skipped += float(not math.isfinite(size))
                norms.append(float(size))
        return {
            "critic/loss": float(np.mean(losses)) if losses else math.nan,
            "critic/gradient_norm": float(np.mean(norms)) if norms else math.nan,
            "critic/skipped_updates": skipped / len(norms) if norms else 0.0,
            "critic/explained_variance": compute_explained_variance(flat_values, returns),
            "critic/value": float(flat_values.mean()) if len(flat_values) else math.nan,
        }

    def parameters(self) -> dict[str, torch.nn.Parameter]:
        """Return the parameters of heads, value normalizers and adapters, by name."""
        parts: list[tuple[str, torch.nn.Module]] = [*self.heads.items(), *self.normalizers.items()]
        return {f"{name}.{key}": p for name, part in parts for key, p in part.named_parameters()} | (
            self._adapter_parameters()
        )

    def state_dict(self) -> dict[str, Tensor]:
        """Return the tensors for a checkpoint, without the optimizer state."""
        return {name: parameter.detach() for name, parameter in self.parameters().items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> bool:
        """Load the tensors of :meth:`state_dict` → success.

        If names or shapes differ, return False and change nothing.
        """
        parameters = self.parameters()
        if {name: tensor.shape for name, tensor in state.items()} != {name: p.shape for name, p in parameters.items()}:
            return False
        copy_together(parameters.values(), [state[name] for name in parameters])
        return True

    def _normalize_targets(self, values: Floats, targets: Floats) -> tuple[Floats, Floats]:
        """Convert old values and targets to the normalized units of the heads.

        The statistics already include this batch's targets for the conversion of targets.
        """
        values, targets = values.copy(), targets.copy()
        for batch in self._decisions:
            if normalizer := self.normalizers.get(batch.head):
                values[batch.rows] = normalizer.normalize(values[batch.rows])
                normalizer.update(targets[batch.global_rows])
                targets[batch.rows] = normalizer.normalize(targets[batch.rows])
        return values, targets

    def _adapter_parameters(self) -> dict[str, torch.nn.Parameter]:
        parameters: dict[str, torch.nn.Parameter] = {}
        for name, body_adapter in self.adapters.items():
            for layer, adapter in self.bases[name].adapters(body_adapter).items():
                parameters[f"{name}.{layer}.lora_A"], parameters[f"{name}.{layer}.lora_B"] = adapter.a, adapter.b
        return parameters

    def _head_of(self, agent: str, policy: str) -> str:
        base = self.base_names[policy]
        return f"{base}/{agent}" if self.settings.heads == "agent" else base

    def _read_features(self, base: str, inputs: Sequence[CriticInput]) -> Tensor:
        base_ranks, backbone = self.ranks.on(base), self.bases[base]
        if base_ranks is None:
            return torch.empty(0, backbone.head.in_features, device=backbone.device)
        return read_features(backbone, inputs, self.tokens_per_batch, self.adapters.get(base), base_ranks)

    def _minibatches(self, count: int, step: int, epoch: int) -> list[np.ndarray]:
        order = seeds.generator(self.seed, "critic minibatches", step, epoch).permutation(count)
        return [part for part in np.array_split(order, self.settings.minibatches) if len(part)]

    def _backward(self, part: np.ndarray, old_values: Floats, returns: Floats) -> list[Tensor]:
        """Add the mean loss gradient over the decisions in ``part`` → loss terms."""
        chosen = np.zeros(len(returns), bool)
        chosen[part] = True
        delta = self.settings.huber_delta if self.settings.loss == "huber" else None
        losses = []
        for head, rows, features in self._feature_chunks(chosen):
            if not len(rows):  # idle pass with gradient 0
                (0.0 * features.sum()).backward()
                continue
            predicted = self.heads[head](features)
            old, target = to_device(np.stack([old_values[rows], returns[rows]]), predicted.device, predicted.dtype)
            loss = value_losses(predicted, old, target, self.settings.value_clip, delta).sum() / len(part)
            (self.settings.coefficient * loss).backward()
            losses.append(loss.detach())
        return losses

    def _feature_chunks(self, chosen: np.ndarray) -> Iterator[tuple[str, np.ndarray, Tensor]]:
        """Yield head, flat rows and features for the chosen decisions, in pieces that fit in memory.

        If other ranks run a body more often, extra pieces follow: no rows, and features of an idle pass.
        """
        for batch in self._decisions:
            if batch.features is not None:
                selected = np.flatnonzero(chosen[batch.rows])
                if len(selected):
                    yield batch.head, batch.rows[selected], batch.features[to_device(selected, batch.features.device)]
                continue
            base, body = self.bases[batch.base], self.adapters.get(batch.base)
            groups = list(self._input_batches(batch, chosen))
            idle = max(self.ranks.gather(len(groups))) - len(groups)
            for group, rows, positions in groups:
                features = read_features(base, group, self.tokens_per_batch, body)
                yield batch.head, rows, features[to_device(positions, features.device)]
            for _ in range(idle):
                yield batch.head, np.empty(0, np.int64), run_idle_pass(base, body)

    def _input_batches(
        self, batch: _HeadBatch, chosen: np.ndarray
    ) -> Iterator[tuple[list[CriticInput], np.ndarray, np.ndarray]]:
        """Yield batches of inputs with chosen decisions: inputs, flat rows, and positions within the batch."""
        first = 0
        for group in split_batches(batch.inputs, lambda item: len(item.token_ids), self.tokens_per_batch):
            count = sum(len(item.positions) for item in group)
            positions = np.flatnonzero(chosen[batch.rows[first : first + count]])
            if len(positions):
                yield group, batch.rows[first + positions], positions
            first += count


def _rows_of(actions: Sequence[int], offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the flat decision indices for some actions."""
    return np.concatenate([np.empty(0, np.int64), *(np.arange(offsets[i], offsets[i + 1]) for i in actions)])


def critic_inputs(action: Action, level: Level, kind: str = "centralized") -> list[CriticInput]:
    """Return the critic's inputs for an action, in order: one per segment with a decision.

    A later segment starts with a prompt reset (a newly rendered chat). There, a centralized critic also sees only the
    agent's own view.
    """
    later = action.segments[1:] if level == "token" else ()
    return [
        critic_input(action, level, kind),
        *(_token_input(context, action, start, stop) for context, start, stop in later),
    ]


def critic_input(action: Action, level: Level, kind: str = "centralized") -> CriticInput:
    """Return the critic's input for the decisions in an action's first segment.

    At action level the first segment covers all decisions. The value of a decision is read at the token before it,
    because a baseline must not depend on the decision.

    At action level that is the last token of the state. At token level it is, for each sampled token, the position of
    the logits that predict the token. An independent critic reads the agent's own rollout observation. A centralized
    critic also reads the step's earlier actions that the agent did not see.
    """
    state = action.prompt if action.state is None or kind == "independent" else action.state
    if level == "action":
        prefix = action.tokens[: int(np.argmax(action.sampled_mask))]  # text by others before the agent's first token
        return CriticInput(np.concatenate([state, prefix]), np.array([len(state) + len(prefix) - 1]))
    if action.choice:
        return CriticInput(state, np.array([len(state) - 1]))
    first = action.segments[0]
    return _token_input(state, action, first.start, first.stop)


def _token_input(context: TokenIds, action: Action, start: int, stop: int) -> CriticInput:
    ids = np.concatenate([context, action.tokens[start : stop - 1]])
    return CriticInput(ids, len(context) - 1 + np.flatnonzero(action.sampled_mask[start:stop]))


def run_idle_pass(base: Backbone, adapter: str | None) -> Tensor:
    """Return hidden states [1, D] of a dummy row, for a rank with less to read than its peers."""
    return base.hidden_states(PackedRows.from_rows([np.zeros(1, np.int32)], [adapter], base.device)).float()


def read_features(
    base: Backbone,
    inputs: Sequence[CriticInput],
    tokens_per_batch: int,
    adapter: str | None,
    ranks: Ranks = SINGLE_RANK,
) -> Tensor:
    """Return the base model's hidden states at the given positions, shape [Σ U, D], float32.

    Inputs with the same ids are computed once.

    Args:
        base: base model.
        inputs: inputs and positions.
        tokens_per_batch: maximum tokens per forward pass.
        adapter: adapter of the body; None without one.
        ranks: ranks that read different inputs with this base at the same time; all run the base equally often.
    """
    positions: dict[bytes, npt.NDArray[np.int64]] = {}
    for item in inputs:
        key = item.token_ids.tobytes()
        positions[key] = np.union1d(positions.get(key, item.positions), item.positions)
    cached: dict[bytes, Tensor] = {}
    batches = split_batches(sorted(positions, key=len, reverse=True), lambda key: len(key) // 4, tokens_per_batch)
    idle = max(ranks.gather(len(batches))) - len(batches)
    for keys in batches:
        packed = PackedRows.from_rows(
            [np.frombuffer(key, np.int32) for key in keys], [adapter] * len(keys), base.device
        )
        at = np.concatenate([start + positions[key] for start, key in zip(packed.starts(), keys, strict=True)])
        hidden = base.hidden_states(packed)[to_device(at, base.device)].float()
        cached.update(zip(keys, hidden.split([len(positions[key]) for key in keys]), strict=True))
    for _ in range(idle):
        run_idle_pass(base, adapter)
    return _select_features(cached, positions, inputs, torch.empty(0, base.head.in_features, device=base.device))


def _select_features(
    cached: Mapping[bytes, Tensor],
    positions: Mapping[bytes, npt.NDArray[np.int64]],
    inputs: Sequence[CriticInput],
    empty: Tensor,
) -> Tensor:
    """Return the features of the inputs, in their order, shape [Σ U, D].

    Args:
        cached: features by ids, [positions, D].
        positions: sorted positions of the features by ids.
        inputs: inputs and positions.
        empty: features of no input, [0, D].
    """
    keys = [item.token_ids.tobytes() for item in inputs]
    rows = [np.searchsorted(positions[key], item.positions) for key, item in zip(keys, inputs, strict=True)]
    if torch.is_grad_enabled():  # the gradient is summed input by input, in a fixed order
        return torch.cat(
            [empty, *(cached[key][to_device(row, empty.device)] for key, row in zip(keys, rows, strict=True))]
        )
    starts = dict(zip(cached, np.cumsum([0, *map(len, cached.values())]), strict=False))
    places = [np.empty(0, np.int64), *(starts[key] + row for key, row in zip(keys, rows, strict=True))]
    return torch.cat([empty, *cached.values()])[to_device(np.concatenate(places), empty.device)]


class ValueNormalizer(nn.Module):
    """Normalizer for value heads: a head predicts ``(V − mean) / std``.

    The statistics are exponential means of the targets and their squares. They are bias-corrected, so the first batch
    counts in full. Before the first batch, V equals the output of the head.

    The statistics are float64 parameters without gradient. They are saved in checkpoints with the head, bit for bit.

    Args:
        decay: weight of the old statistics per batch.

    >>> normaliser = ValueNormalizer(decay=0.9)
    >>> normaliser.update(np.array([9.0, 11.0]))
    >>> normaliser.normalize(np.array([12.0])).tolist(), normaliser.denormalize(np.array([2.0])).tolist()
    ([2.0], [12.0])
    """

    def __init__(self, decay: float) -> None:
        super().__init__()
        self.decay = decay
        self.sums = nn.Parameter(torch.zeros(3, dtype=torch.float64), requires_grad=False)  # sums of x, x², weights

    def update(self, targets: Floats) -> None:
        """Update the statistics with a batch of targets, shape [N]."""
        if not len(targets):
            return
        new = torch.tensor([targets.mean(), np.square(targets).mean(), 1.0], dtype=torch.float64)
        self.sums.mul_(self.decay).add_(new.to(self.sums.device), alpha=1.0 - self.decay)

    def normalize(self, values: Floats) -> Floats:
        """Return values in normalized units."""
        mean, std = self._moments()
        return (values - mean) / std

    def denormalize(self, values: Floats) -> Floats:
        """Return values in units of the targets."""
        mean, std = self._moments()
        return values * std + mean

    def _moments(self) -> tuple[float, float]:
        total, squares, weight = self.sums.tolist()
        if not weight:
            return 0.0, 1.0
        mean = total / weight
        return mean, max(squares / weight - mean**2, MIN_VARIANCE) ** 0.5
