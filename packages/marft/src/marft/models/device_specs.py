"""Device specifications from data sheets, and storage and compute precision of model weights.

Rates are for dense products. Data-sheet rates that count sparsity are halved.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

from marft.common.errors import UserError
from marft.config.models import ModelSettings
from marft.config.settings import did_you_mean
from marft.models.model_sizes import ModelSizes, nf4_bits


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """Specification of one device.

    ``memory`` is in bytes with data-sheet units, 10⁹ per GB; drivers report slightly more. ``link_bandwidth`` is the
    one-way bandwidth to the other devices of a machine, half of the data-sheet value for both directions.

    >>> spec = DEVICE_SPECS["h100"]
    >>> spec.flops / spec.bandwidth  # operations per byte read; below it, bandwidth is the limit
    295.2...
    """

    name: str
    flops: float  # bfloat16 operations per second
    flops_float32: float  # float32 operations per second, without tensor cores
    memory: float  # bytes
    bandwidth: float  # memory bandwidth, bytes per second
    link_bandwidth: float  # one-way bandwidth to other devices, bytes per second
    host_bandwidth: float  # one-way bandwidth to CPU memory, bytes per second: PCIe 5 or 4 with 16 lanes; 0 for a CPU
    source: str

    @property
    def is_cpu(self) -> bool:
        """True for a CPU."""
        return self.name == "cpu"


_GB, _T = 1e9, 1e12

DEVICE_SPECS = {
    card.name: card
    for card in (
        DeviceSpec("h100", 989 * _T, 67 * _T, 80 * _GB, 3350 * _GB, 450 * _GB, 64 * _GB, "NVIDIA H100 data sheet, SXM"),
        DeviceSpec(
            "h200", 989 * _T, 67 * _T, 141 * _GB, 4800 * _GB, 450 * _GB, 64 * _GB, "NVIDIA H200 data sheet, SXM"
        ),
        DeviceSpec("h20", 148 * _T, 44 * _T, 96 * _GB, 4000 * _GB, 450 * _GB, 64 * _GB, "NVIDIA H20 data sheet"),
        DeviceSpec(
            "b200", 2250 * _T, 75 * _T, 180 * _GB, 8000 * _GB, 900 * _GB, 64 * _GB, "NVIDIA DGX B200 sheet, / 8"
        ),
        DeviceSpec(
            "a100-40", 312 * _T, 19.5 * _T, 40 * _GB, 1555 * _GB, 300 * _GB, 32 * _GB, "NVIDIA A100 data sheet, SXM"
        ),
        DeviceSpec(
            "a100-80", 312 * _T, 19.5 * _T, 80 * _GB, 2039 * _GB, 300 * _GB, 32 * _GB, "NVIDIA A100 data sheet, SXM"
        ),
        DeviceSpec(
            "l40s", 362 * _T, 91.6 * _T, 48 * _GB, 864 * _GB, 32 * _GB, 32 * _GB, "NVIDIA L40S data sheet; PCIe 4"
        ),
        DeviceSpec("rtx4090", 165 * _T, 82.6 * _T, 24 * _GB, 1008 * _GB, 32 * _GB, 32 * _GB, "NVIDIA Ada white paper"),
        DeviceSpec("mi300x", 1307 * _T, 163 * _T, 192 * _GB, 5300 * _GB, 448 * _GB, 64 * _GB, "AMD MI300X data sheet"),
        # two threads of an Emerald Rapids Xeon without AMX (half_precision.md); the bandwidth is an assumption
        DeviceSpec("cpu", 0.165 * _T, 0.327 * _T, 0.0, 12 * _GB, 12 * _GB, 0.0, "results/half_precision.md"),
    )
}

DRIVER_NAMES = {  # driver names of known devices; devices with similar names have other rates
    "NVIDIA H100 80GB HBM3": "h100", "NVIDIA H200": "h200", "NVIDIA H20": "h20", "NVIDIA B200": "b200",
    "NVIDIA A100-SXM4-40GB": "a100-40", "NVIDIA A100-SXM4-80GB": "a100-80", "NVIDIA L40S": "l40s",
    "NVIDIA GeForce RTX 4090": "rtx4090", "AMD Instinct MI300X": "mi300x",
}  # fmt: skip


def find_device_spec(name: str) -> DeviceSpec:
    """Return the specification of a device by name. For "cpu", the memory is this machine's.

    Raises:
        UserError: no device has this name.
    """
    spec = DEVICE_SPECS.get(name.casefold())
    if spec is None:
        raise UserError(f"--gpu: no card is called {name!r}{did_you_mean(name, DEVICE_SPECS)}")
    if spec.is_cpu:
        return replace(spec, memory=float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")))
    return spec


@dataclass(frozen=True, slots=True)
class Precision:
    """Storage and compute precision for a model's base weights on a device."""

    is_half: bool  # whether the weights of the layers are bfloat16, or are dequantized to it
    on_cpu: bool
    layer_bits: float = 0.0  # bits per layer weight that the recipe quantizes to; 0: as in the checkpoint

    @staticmethod
    def from_settings(model: ModelSettings, spec: DeviceSpec) -> Precision:
        """Build the precision from model settings.

        ``"auto"`` is float32 on a CPU and bfloat16 on a GPU (:func:`marft.models.loader.pick_dtype`).
        """
        layer_bits = 0.0
        if model.quantization == "nf4":
            layer_bits = nf4_bits(model.quantization_block_size, model.double_quantization)
        return Precision(
            model.dtype == "bfloat16" or (model.dtype == "auto" and not spec.is_cpu), spec.is_cpu, layer_bits
        )

    @property
    def bytes_per_element(self) -> int:
        """Bytes per number in products.

        On a CPU, half-precision weights are multiplied in float32. The same holds for a fully fine-tuned model.
        """
        return 2 if self.is_half and not self.on_cpu else 4

    @property
    def computes_in_float32(self) -> bool:
        """True if full fine-tuning computes in a higher precision than the base model's storage."""
        return self.is_half and self.on_cpu

    def weight_bytes(self, shape: ModelSizes) -> float:
        """Return the bytes of a base model's weights.

        On a CPU, the embeddings, head, norms and biases of a half-precision model are float32
        (:mod:`marft.models.half_precision`).
        """
        if bits := self.quantized_bits(shape):
            return bits / 8 * shape.matrix_parameters + self.bytes_per_element * (
                shape.parameters - shape.matrix_parameters
            )
        return self.unquantized_bytes(shape)

    def quantized_bits(self, shape: ModelSizes) -> float:
        """Return the bits per layer weight of a quantized base, constants included; 0 for an unquantized base."""
        return self.layer_bits or shape.layer_bits

    def unquantized_bytes(self, shape: ModelSizes) -> float:
        """Return the bytes of a base model's weights without quantization."""
        if not self.is_half:
            return 4.0 * shape.parameters
        if not self.on_cpu:
            return 2.0 * shape.parameters
        return 2.0 * shape.matrix_parameters + 4.0 * (shape.parameters - shape.matrix_parameters)

    def flops_per_second(self, spec: DeviceSpec) -> float:
        """Return the operations per second for products in this precision."""
        return spec.flops if self.bytes_per_element == 2 else spec.flops_float32
