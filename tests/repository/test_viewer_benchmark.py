"""The benchmark of the viewer: it starts what a user starts, every address that it asks for answers, and rows are whole."""

from __future__ import annotations

import os
from multiprocessing.pool import ThreadPool
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.nights import BY_NIGHT
from tests.sources import ROOT

pytest.importorskip("fastapi", reason="needs pip install 'marft[viewer]'")
BENCHMARKS = ROOT / "benchmarks"


@pytest.fixture
def viewer(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The benchmark, asking twice, and making its run without processes of its own."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    import viewer

    monkeypatch.setattr(viewer, "TIMES", 2)
    monkeypatch.setattr(viewer.multiprocessing, "get_context", lambda _: SimpleNamespace(Pool=ThreadPool))
    return viewer


@pytest.mark.slow
@BY_NIGHT
def test_every_address_answers_and_nothing_that_was_started_stays(viewer: Any, tmp_path: Path) -> None:
    run, cache = tmp_path / "large", tmp_path / "cache"
    viewer.make_run(run, steps=4, actions=100)
    told, _, _, _, *rows = viewer.measure(run, cache)
    assert "all 4 steps are indexed" in told
    assert told.endswith(" 100 episodes.")
    found = {name.strip(): [float(cell) for cell in cells] for _, name, *cells, _ in (row.split("|") for row in rows)}
    assert list(found) == list(viewer.addresses("large", 4))
    for name, (first, median, most, _, _) in found.items():
        assert first <= most, name
        assert median <= most, name
    assert found["the page"][-1] > 0, "in KB"
    assert any(cache.rglob("*.arrow")), "its cache is the one that it is given"
    with viewer.viewer(run, cache) as (address, process):
        assert address.startswith("http://127.0.0.1:")
        assert b"view" in Path(f"/proc/{process}/cmdline").read_bytes()
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)
