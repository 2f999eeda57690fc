"""The layout: imports point one way between rooms and packages."""

from __future__ import annotations

import importlib.util
import re
import sys
from typing import Any

import pytest

from tests.sources import ROOT

TOOL = ROOT / "tools" / "layout" / "layout.py"


@pytest.fixture(scope="module")
def layout() -> Any:
    spec = importlib.util.spec_from_file_location("layout_tool", TOOL)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_imports_point_one_way(layout: Any) -> None:
    """From a room to those before it, from a satellite to the core and the satellites before it; for typing too."""
    assert layout.wrong_way() == []


def test_every_module_of_the_core_is_in_a_room_or_beside_them_on_purpose(layout: Any) -> None:
    beside = {name.split(".")[1] for name in layout.modules() if name.startswith("marft.")} - {*layout.ROOMS}
    assert beside == {"__main__", "examples"}


def test_the_loop_imports_little(layout: Any) -> None:
    """It is handed its parts; what it imports itself, and with that, fits in one head."""
    direct = {found.imported for found in layout.imports() if found.importer == layout.LOOP and not found.typing_only}
    assert len(direct) <= 12
    lines = sum(len(layout.modules()[name].read_text(encoding="utf-8").splitlines()) for name in layout.closure())
    assert lines <= 22_000


def test_the_picture_shows_the_arrows_of_today(layout: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "layout", layout)
    spec = importlib.util.spec_from_file_location("layout_picture", TOOL.with_name("picture.py"))
    assert spec
    assert spec.loader
    picture = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(picture)
    drawn = re.findall(r"<title>(\w+) → (\w+): \d+ imports", picture.OUTPUT.read_text(encoding="utf-8"))
    assert drawn == sorted(picture.arrows(picture.count_imports())), "python tools/layout/picture.py"
