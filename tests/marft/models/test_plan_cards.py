"""Cards that are planned for are those of their makers' sheets."""

from __future__ import annotations

import os

import pytest

from marft.models.device_specs import DEVICE_SPECS, find_device_spec

SHEETS = {  # dense bfloat16 and plain float32 teraflops, GB, GB/s of memory; GB/s of NVLink or its like, both ways
    "h100": (989, 67, 80, 3350, 900),
    "h200": (989, 67, 141, 4800, 900),
    "h20": (148, 44, 96, 4000, 900),
    "b200": (2250, 75, 180, 8000, 1800),
    "a100-40": (312, 19.5, 40, 1555, 600),
    "a100-80": (312, 19.5, 80, 2039, 600),
    "l40s": (362, 91.6, 48, 864, 64),
    "rtx4090": (165, 82.6, 24, 1008, 64),
    "mi300x": (1307, 163, 192, 5300, 896),
}


@pytest.mark.parametrize("name", SHEETS)
def test_a_card_is_that_of_its_sheet(name: str) -> None:
    bfloat16, float32, memory, bandwidth, both_ways = SHEETS[name]
    card = DEVICE_SPECS[name]
    assert (card.flops, card.flops_float32) == (bfloat16 * 1e12, float32 * 1e12)
    assert (card.memory, card.bandwidth, card.link_bandwidth) == (memory * 1e9, bandwidth * 1e9, both_ways * 1e9 / 2)
    assert card.host_bandwidth in (32e9, 64e9)  # PCIe 4 or 5, one way


def test_every_card_has_a_sheet() -> None:
    assert DEVICE_SPECS.keys() == SHEETS.keys() | {"cpu"}


def test_a_processor_has_all_the_memory_that_its_machine_has() -> None:
    assert find_device_spec("cpu").memory == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
