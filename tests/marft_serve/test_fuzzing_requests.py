"""Requests that nobody would send: each is answered or refused, and the next plain one is answered as before.

All of them: ``python -m tests.fuzzing_requests``, or ``MARFT_FUZZ=20000`` for this file.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping

import pytest

pytest.importorskip("prometheus_client", reason="needs a server: pip install 'marft[serve]'")
pytest.importorskip("a2a", reason="needs A2A: pip install 'marft[a2a]'")
pytest.importorskip("mcp", reason="needs MCP: pip install 'marft[mcp]'")

from tests.fuzzing_requests import CALLS, WHOLE, Pestered, one, pester_anew, with_gateway, with_team

Asked = Callable[[Callable[[Pestered], Counter[int]]], Counter[int]]
COUNT = int(os.environ.get("MARFT_FUZZ", "120"))


@pytest.mark.slow
@pytest.mark.parametrize(("asked", "count"), [(with_team, COUNT), (with_gateway, COUNT // 2)])
def test_after_any_request_a_plain_one_is_answered_as_before(asked: Asked, count: int) -> None:
    faults: dict[str, str] = {}

    def note(seed: int, error: BaseException) -> None:
        faults[f"python -m tests.fuzzing_requests 1 {seed}"] = f"{type(error).__name__}: {str(error)[:300]}"

    statuses = pester_anew(asked, range(count), note)
    assert not faults
    assert statuses[400] > statuses[200] > count // 50


@pytest.mark.parametrize("paths", [WHOLE, CALLS])
def test_the_same_seed_is_the_same_request(paths: Mapping[str, object]) -> None:
    assert one(7, tuple(paths)) == one(7, tuple(paths))
    assert len({one(seed, tuple(paths)).body for seed in range(50)}) > 35
