"""Recurrent layers over packed rows: Gated DeltaNet, Mamba, Mamba 2 and short convolutions.

transformers computes these layers (mixers) with functions of their modules: a causal convolution and a scan. The
mixer's own forward runs on the packed tokens, so its linear layers see no padding and adapters are routed as usual.
Within :func:`~marft.models.attention.use_plan`, the functions are replaced. With a :class:`PackedPlan`, rows of similar
length are padded and computed together by the original function, from an empty state. With a :class:`TreePlan`, a part
of a row starts from the state at the end of its prefix. A prefill keeps the state at each row's end. With a
:class:`DecodePlan`, the mixer gets one token per row with the states of the rows' slots, and updates them in place.

The functions of transformers call the kernels of ``fla``, ``mamba_ssm`` and ``causal_conv1d`` where installed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from functools import partial, wraps
from inspect import signature, unwrap
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from marft.models.attention import DecodePlan, PackedPlan, current_plan
from marft.models.devices import is_on_cpu, to_device
from marft.models.recurrent_states import RecurrentStates
from marft.models.tree_attention import TreePlan

CACHE_NAMES = ("cache_params", "past_key_values")  # names of a mixer's cache argument
NO_LIMIT = (0.0, float("inf"))
CPU_CHUNK = 64  # maximum chunk of Mamba 2 on a CPU, where the function of transformers takes half the time of 256
_mixer: ContextVar[Any] = ContextVar("mixer")  # the running mixer


def register_mixers(decoder: nn.Module) -> list[nn.Module]:
    """Let the decoder's recurrent layers compute packed rows; return these layers."""
    mixers = [module for module in decoder.modules() if _is_mixer(module)]
    for mixer in mixers:
        _replace_functions(sys.modules[type(mixer).__module__])
        parameters = signature(mixer.forward).parameters
        cache_name = next((name for name in CACHE_NAMES if name in parameters), CACHE_NAMES[0])
        mixer.register_forward_pre_hook(partial(_enter_mixer, cache_name), with_kwargs=True)
        mixer.register_forward_hook(_leave_mixer)
    return mixers


def supports_trees(mixers: Sequence[nn.Module]) -> bool:
    """Return whether recurrent layers can start from the state at a branch of a prefix tree."""
    return not any(hasattr(sys.modules[type(mixer).__module__], "mamba_selective_scan") for mixer in mixers)


def is_uncalled(model: nn.Module, name: str) -> bool:
    """Return whether a layer's mixer reads its weight and does not call it, as Mamba does with ``dt_proj``."""
    parent, _, child = name.rpartition(".")
    return child == "dt_proj" and _is_mixer(model.get_submodule(parent))


def _is_mixer(module: nn.Module) -> bool:
    has_convolution = any(isinstance(child, nn.Conv1d) for child in module.children())
    return has_convolution and hasattr(sys.modules[type(module).__module__], "causal_conv1d_fn")


def _enter_mixer(
    cache_name: str, mixer: Any, inputs: tuple[Tensor, ...], keywords: dict[str, Any]
) -> tuple[Any, dict[str, Any]] | None:
    plan = current_plan()
    if plan is None:
        return None
    _mixer.set(mixer)
    hidden_states = inputs[0] if inputs else keywords["hidden_states"]
    if not isinstance(plan, DecodePlan):
        return (hidden_states,), {}
    rows_nTD = hidden_states.transpose(0, 1)  # a batch with one token per row
    return (rows_nTD,), {cache_name: _SlotStates(plan.cache.states, len(rows_nTD))}


def _leave_mixer(_: nn.Module, __: object, out: Tensor) -> Tensor | None:
    return out.transpose(0, 1) if isinstance(current_plan(), DecodePlan) else None


class _SlotStates:
    """States of slots 0..n-1 with the methods of a transformers cache that a mixer calls for one token per row."""

    def __init__(self, states: RecurrentStates, rows: int) -> None:
        self.states, self.rows = states, rows

    def get_conv_state(self, layer_idx: int, **_: object) -> Tensor:
        """Return the last inputs of the convolution, [n, C, width]; the mixer updates them in place."""
        return self.states.tensors[layer_idx, "conv"][: self.rows]

    def get_recurrent_state(self, layer_idx: int, **_: object) -> Tensor:
        """Return the recurrent states, [n, …]; some mixers update them in place."""
        return self.states.tensors[layer_idx, "recurrent"][: self.rows]

    def update_recurrent_state(self, state: Tensor, layer_idx: int, **_: object) -> None:
        """Store new recurrent states."""
        self.get_recurrent_state(layer_idx).copy_(state)

    def is_recording_past(self, _: int) -> bool:
        """Return False: the convolution keeps only the inputs that it needs."""
        return False


def _replace_functions(modeling: Any) -> None:
    """Replace the functions of a modeling module, unless already replaced."""
    for name, replacement in REPLACEMENTS.items():
        original = getattr(modeling, name, None)
        if original is not None and not hasattr(original, "replaces"):
            setattr(modeling, name, _follow_plan(original, replacement))


def _follow_plan(original: Callable[..., Any], replacement: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls the replacement within a plan, and else the original.

    On a CPU, the original is transformers' torch function: kernels run on a GPU alone.
    """
    torch_function = unwrap(original)

    @wraps(original)
    def function(x: Tensor, *inputs: Any, **keywords: Any) -> Any:
        called = torch_function if is_on_cpu(x) else original
        if current_plan() is None:
            return called(x, *inputs, **keywords)
        return replacement(called, x, *inputs, **keywords)

    function.replaces = original  # type: ignore[attr-defined]
    return function


def _convolve(
    original: Callable[..., Tensor],
    x_1CN: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    **_: object,
) -> Tensor:
    """Convolve each row, [1, C, N]."""
    plan, x_NC, width = _row_plan(), x_1CN[0].t(), weight.shape[-1]
    if plan.cache is not None:
        rows = plan.tree.token_indices if isinstance(plan, TreePlan) else _row_indices(plan.lengths)
        _store_states(plan, "conv", _last_tokens(x_NC, rows, width).transpose(1, 2))

    def convolve(x_BTC: Tensor) -> Tensor:
        return original(x_BTC.transpose(1, 2), weight, bias, activation=activation).transpose(1, 2)

    if isinstance(plan, TreePlan):
        return plan.segments.convolve(convolve, x_NC, width).t()[None]
    return plan.map_rows(convolve, x_NC).t()[None]


def _row_indices(lengths: Sequence[int]) -> list[np.ndarray]:
    return np.split(np.arange(sum(lengths)), np.cumsum(lengths)[:-1])


def _last_tokens(x_NC: Tensor, rows: Sequence[np.ndarray], width: int) -> Tensor:
    """Return the last ``width`` tokens of each row, [B, width, C], with zeros before a shorter row.

    Args:
        rows: token indices of each row.
    """
    indices = np.stack([np.pad(row[-width:], (max(0, width - len(row)), 0), constant_values=-1) for row in rows])
    inside = to_device(indices >= 0, x_NC.device)
    return x_NC[to_device(indices.clip(0), x_NC.device)] * inside[..., None]


def _gated_delta_rule(
    original: Callable[..., Any],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    g: Tensor,
    beta: Tensor,
    use_qk_l2norm_in_kernel: bool = False,
    **_: object,
) -> tuple[Tensor, None]:
    """Apply the gated delta rule of Gated DeltaNet to each row, [1, N, H, D]."""

    def scan(
        state: Tensor | None, g: Tensor, beta: Tensor, query: Tensor, key: Tensor, value: Tensor
    ) -> tuple[Tensor, Tensor]:
        out: tuple[Tensor, Tensor] = original(
            query,
            key,
            value,
            g=g,
            beta=beta,
            initial_state=state,
            output_final_state=True,
            use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel,
        )
        return out

    return _scan_rows(scan, (g, beta), (query, key, value)), None


def _mamba2_scan(
    original: Callable[..., Any],
    x: Tensor,
    dt: Tensor,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    chunk_size: int,
    D: Tensor | None = None,
    dt_bias: Tensor | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = NO_LIMIT,
    **_: object,
) -> Tensor:
    """Apply the state space of Mamba 2 (Dao and Gu 2024) to each row, [1, N, H, D]."""

    def scan(state: Tensor | None, dt: Tensor, x: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        longest = min(chunk_size, CPU_CHUNK) if is_on_cpu(x) else chunk_size
        size = min(longest, 1 << (x.shape[1] - 1).bit_length())  # short rows need no long chunk
        out: tuple[Tensor, Tensor] = original(
            x, dt, a, b, c, chunk_size=size, D=D, initial_states=state, return_final_states=True
        )
        return out

    return _scan_rows(scan, (_time_steps(dt, dt_bias, dt_softplus, dt_limit),), (x, b, c))


def _mamba2_step(
    original: Callable[..., Tensor],
    state: Tensor,
    x: Tensor,
    dt: Tensor,
    *inputs: Tensor,
    dt_bias: Tensor | None = None,
    dt_softplus: bool = False,
    **keywords: Any,
) -> Tensor:
    """Advance the state space of Mamba 2 by one token per row, with time steps limited as in :func:`_mamba2_scan`."""
    limit = _mixer.get().time_step_limit
    if tuple(limit) != NO_LIMIT:
        dt, dt_bias, dt_softplus = _time_steps(dt, dt_bias, dt_softplus, limit), None, False
    return original(state, x, dt, *inputs, dt_bias=dt_bias, dt_softplus=dt_softplus, **keywords)


def _mamba_scan(
    original: Callable[..., Any],
    x: Tensor,
    dt: Tensor,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    delta_bias: Tensor | None = None,
    delta_softplus: bool = False,
    **keywords: Any,
) -> Tensor:
    """Apply the state space of Mamba (Gu and Dao 2023) to each row, [1, C, N]."""
    assert z is not None

    def scan(state: Tensor | None, dt: Tensor, x: Tensor, b: Tensor, c: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        assert state is None, "transformers' scan starts from an empty state"
        dt, x, b, c, z = (part.transpose(1, 2) for part in (dt, x, b, c, z))
        out, state = original(x, dt, a, b, c, D=D, z=z, **{**keywords, "return_last_state": True})
        return out.transpose(1, 2), state

    dt, x, b, c, z = (part.transpose(1, 2) for part in (dt, x, b, c, z))
    steps = _time_steps(dt, delta_bias, delta_softplus, NO_LIMIT)
    return _scan_rows(scan, (steps,), (x, b, c, z)).transpose(1, 2)


def _time_steps(dt: Tensor, bias: Tensor | None, apply_softplus: bool, limit: tuple[float, float]) -> Tensor:
    """Return time steps in float32. The functions of transformers add the bias themselves, also in padding."""
    steps = dt.float() if bias is None else dt.float() + bias.float()
    return (softplus(steps) if apply_softplus else steps).clamp(*limit)


def _scan_rows(scan: Callable[..., tuple[Tensor, Tensor]], rates: Sequence[Tensor], inputs: Sequence[Tensor]) -> Tensor:
    """Scan each row from an empty state, [1, N, …]; a prefill stores the final states.

    Args:
        scan: function of an initial state (None: empty) and of padded rows to their output and final state.
        rates: decays and step sizes, [1, N, H]. Padding gets 0 and therefore leaves the state unchanged.
        inputs: other inputs of the scan, [1, N, …].
    """
    plan, packed = _row_plan(), [x[0] for x in (*rates, *inputs)]
    if isinstance(plan, TreePlan):
        out, states = plan.segments.scan(scan, len(rates), *packed)
        ends = plan.segments.row_ends
    else:
        out, states = _scan_separate_rows(plan, scan, len(rates), packed)
        ends = to_device(np.argsort(plan.order), out.device)
    if plan.cache is not None:
        _store_states(plan, "recurrent", torch.cat(states)[ends])
    return out[None]


def _scan_separate_rows(
    plan: PackedPlan, scan: Callable[..., tuple[Tensor, Tensor]], masked: int, packed: Sequence[Tensor]
) -> tuple[Tensor, list[Tensor]]:
    """Return the output, [N, …], and the final states of the rows as they are padded, [B, …] in several parts."""
    states: list[Tensor] = []

    def run(*padded: Tensor) -> Tensor:
        out, state = scan(None, *padded)
        states.append(state)
        return out

    return plan.map_rows(run, *packed, masked=masked), states


def _row_plan() -> PackedPlan | TreePlan:
    plan = current_plan()
    assert isinstance(plan, PackedPlan | TreePlan)
    return plan


def _store_states(plan: PackedPlan | TreePlan, kind: str, states: Tensor) -> None:
    """Store the states at the rows' ends, [B, …], in the rows' slots."""
    assert plan.cache is not None
    assert plan.slots is not None
    plan.cache.states.write(_mixer.get().layer_idx, kind, states, plan.slots)


def _single_step(original: Callable[..., Any], *inputs: Any, **keywords: Any) -> Any:
    """Advance each row by one token with the original function, which already gets the state of each row."""
    return original(*inputs, **keywords)


def _unfused(*_: object, **__: object) -> None:
    """Return None for a fused function, which would ignore row ends and adapters: the mixer calls the others then."""


REPLACEMENTS: dict[str, Callable[..., Any]] = {
    "causal_conv1d_fn": _convolve,
    "torch_chunk_gated_delta_rule": _gated_delta_rule,
    "chunk_kimi_delta_attention": _gated_delta_rule,
    "mamba2_chunk_scan": _mamba2_scan,
    "mamba2_selective_state_update": _mamba2_step,
    "mamba_selective_scan": _mamba_scan,
    "causal_conv1d_update": _single_step,
    "torch_recurrent_gated_delta_rule": _single_step,
    "recurrent_kimi_delta_attention": _single_step,
    "mamba_selective_state_update": _single_step,
    "mamba2_split_conv1d_scan_combined": _unfused,
    "mamba_inner_fn": _unfused,
}
