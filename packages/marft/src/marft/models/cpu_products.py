"""Products with frozen float32 weights on a CPU.

oneDNN, which PyTorch contains, multiplies large matrices faster than the library behind ``torch.mm``: by a tenth for a
thousand rows, by a third for 32 rows. PyTorch offers it for float32 only as the operation that its compiler calls.
Small weights are multiplied by ``torch.mm``, which is called faster. Results are equal up to the order of sums.

No function here has a gradient: callers compute under ``no_grad`` or in an autograd Function.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

MIN_WEIGHTS = 2**17  # elements of the smallest weight that oneDNN multiplies
MAX_PACKED_BYTES = 2**30  # of the packed copies of a model's weights
PACKED_ROWS = 32  # rows that the packed order suits best
HAS_ONEDNN = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def uses_onednn(weight: Tensor) -> bool:
    """Return whether oneDNN multiplies this weight."""
    is_large = weight.numel() >= MIN_WEIGHTS
    return HAS_ONEDNN and is_large and weight.dtype is torch.float32 and weight.device.type == "cpu"


def _onednn_linear(x_NK: Tensor, weight_OK: Tensor, bias_O: Tensor | None) -> Tensor:
    out: Tensor = torch.ops.mkldnn._linear_pointwise(x_NK, weight_OK, bias_O, "none", [], "")
    return out


def multiply_rows(x_NK: Tensor, weight_OK: Tensor, bias_O: Tensor | None = None) -> Tensor:
    """Return ``x Wᵀ + b``, [N, O]."""
    if uses_onednn(weight_OK):
        return _onednn_linear(x_NK, weight_OK, bias_O)
    return torch.nn.functional.linear(x_NK, weight_OK, bias_O)


def multiply_columns(weight_OK: Tensor, x_KN: Tensor, bias_O: Tensor | None = None) -> Tensor:
    """Return ``W x + b``, [O, N], for few columns. By ``torch.mm`` this order reads the weights in memory order."""
    if weight_OK.is_mkldnn or uses_onednn(weight_OK):
        return _onednn_linear(x_KN.t(), weight_OK, bias_O).t()
    return weight_OK @ x_KN if bias_O is None else torch.addmm(bias_O[:, None], weight_OK, x_KN)


def add_product(total_NO: Tensor, x_NK: Tensor, weight_OK: Tensor) -> Tensor:
    """Return ``total + x Wᵀ``, [N, O]; the result may or may not be ``total`` itself."""
    if uses_onednn(weight_OK):
        out: Tensor = torch.ops.mkldnn._linear_pointwise.binary(x_NK, total_NO, weight_OK, None, "add")
        return out
    return total_NO.addmm_(x_NK, weight_OK.t())


class PackedWeights:
    """Packed copies of frozen weights, for :func:`multiply_columns`: a quarter faster for the few rows of decoding.

    Copies take memory. Weights beyond :data:`MAX_PACKED_BYTES` in all are multiplied as they are stored.

    Attributes:
        nbytes: memory of all copies.
    """

    def __init__(self) -> None:
        self._packed: dict[tuple[int, ...], tuple[list[Tensor], list[int], Tensor]] = {}
        self.nbytes = 0

    def pack(self, weights: Sequence[Tensor]) -> Tensor | None:
        """Return the packed copy of weights [O, K], one below the other, made at the first call; None if not packed.

        A copy is made anew when a weight has changed since.
        """
        key = tuple(map(id, weights))
        versions = [weight._version for weight in weights]
        found = self._packed.get(key)
        if found is not None and found[1] == versions:
            return found[2]
        if any(weight.requires_grad for weight in weights) or not uses_onednn(max(weights, key=Tensor.numel)):
            return None
        size = sum(weight.nbytes for weight in weights)
        if found is None and self.nbytes + size > MAX_PACKED_BYTES:
            return None
        self.nbytes += 0 if found else size
        packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(torch.cat(list(weights)).detach(), PACKED_ROWS)
        self._packed[key] = list(weights), versions, packed
        return packed
