"""Cards as data sheets have them. Rates are of dense products; sheets that count sparsity are halved here."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

from marft.config.settings import did_you_mean


@dataclass(frozen=True, slots=True)
class Card:
    """One device.

    ``memory`` is in bytes as sheets count them, 10⁹ to the GB: drivers report a little more. ``link`` is what goes one
    way to the other cards of a machine, half of what sheets say of both ways together.

    >>> CARDS["h100"].flops / CARDS["h100"].bandwidth  # operations a byte read, below which bandwidth decides
    295.2...
    """

    name: str
    flops: float  # bfloat16 operations a second
    flops_float32: float  # float32 operations a second, without tensor cores
    memory: float  # bytes
    bandwidth: float  # bytes of its memory a second
    link: float  # bytes a second, one way
    host: float  # bytes a second to the host's memory, one way: PCIe 5 or 4 of 16 lanes; 0 where it is the host
    source: str

    @property
    def is_cpu(self) -> bool:
        return self.name == "cpu"


_GB, _T = 1e9, 1e12

CARDS = {
    card.name: card
    for card in (
        Card("h100", 989 * _T, 67 * _T, 80 * _GB, 3350 * _GB, 450 * _GB, 64 * _GB, "NVIDIA H100 data sheet, SXM"),
        Card("h200", 989 * _T, 67 * _T, 141 * _GB, 4800 * _GB, 450 * _GB, 64 * _GB, "NVIDIA H200 data sheet, SXM"),
        Card("h20", 148 * _T, 44 * _T, 96 * _GB, 4000 * _GB, 450 * _GB, 64 * _GB, "NVIDIA H20 data sheet"),
        Card("b200", 2250 * _T, 75 * _T, 180 * _GB, 8000 * _GB, 900 * _GB, 64 * _GB, "NVIDIA DGX B200 sheet, / 8"),
        Card("a100-40", 312 * _T, 19.5 * _T, 40 * _GB, 1555 * _GB, 300 * _GB, 32 * _GB, "NVIDIA A100 data sheet, SXM"),
        Card("a100-80", 312 * _T, 19.5 * _T, 80 * _GB, 2039 * _GB, 300 * _GB, 32 * _GB, "NVIDIA A100 data sheet, SXM"),
        Card("l40s", 362 * _T, 91.6 * _T, 48 * _GB, 864 * _GB, 32 * _GB, 32 * _GB, "NVIDIA L40S data sheet; PCIe 4"),
        Card("rtx4090", 165 * _T, 82.6 * _T, 24 * _GB, 1008 * _GB, 32 * _GB, 32 * _GB, "NVIDIA Ada white paper"),
        Card("mi300x", 1307 * _T, 163 * _T, 192 * _GB, 5300 * _GB, 448 * _GB, 64 * _GB, "AMD MI300X data sheet"),
        # two threads of an Emerald Rapids Xeon without AMX (half_precision.md); its bandwidth is an assumption
        Card("cpu", 0.165 * _T, 0.327 * _T, 0.0, 12 * _GB, 12 * _GB, 0.0, "results/half_precision.md"),
    )
}  # fmt: skip


def card_named(name: str) -> Card:
    """
    Raises:
        ValueError: no card goes by that name.
    """
    found = CARDS.get(name.casefold())
    if found is None:
        raise ValueError(f"--gpu: no card is called {name!r}{did_you_mean(name, CARDS)}")
    if found.is_cpu:
        return replace(found, memory=float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")))
    return found
