"""The script that moves modules: imports, paths and the lists of planted faults follow."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from tests.sources import ROOT

SCRIPT = ROOT / "tools" / "layout" / "move.py"
MOVES = {
    "marft.a.b": "marft.c.d",
    "marft.a": "marft.z",
    "marft.z": "marft.a",
    "marft_lab.x": "marft_lab.y",
    "marft.e": "marft_lab.f",
}


@pytest.fixture(scope="module")
def move() -> ModuleType:
    spec = importlib.util.spec_from_file_location("move_modules", SCRIPT)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("was", "now"),
    [
        ("from marft.a.b import X, y\n", "from marft.c.d import X, y\n"),
        ("from marft.a import b\n", "from marft.c import d as b\n"),
        ("from marft.a import b as it, other\n", "from marft.z import other\nfrom marft.c import d as it\n"),
        ("from marft import a\n", "from marft import z as a\n"),
        ("import marft.a.b\nmarft.a.b.f()\n", "import marft.c.d\nmarft.c.d.f()\n"),
        ("from marft.ab import x\n", "from marft.ab import x\n"),
        ("if True:\n    from marft.a import b\n", "if True:\n    from marft.c import d as b\n"),
        ("patch('marft.a.b.f')\n", "patch('marft.c.d.f')\n"),
        ("x = 'their.marft.a.b'\n", "x = 'their.marft.a.b'\n"),
    ],
)
def test_imports_and_strings_follow(move: ModuleType, was: str, now: str) -> None:
    assert move.rewritten(was, MOVES, python=True) == now


@pytest.mark.parametrize(
    ("was", "now"),
    [
        ('"packages/marft/src/marft/a/b.py:F.of": [', '"packages/marft/src/marft/c/d.py:F.of": ['),
        ('"packages/marft/src/marft/a/**/*.py"', '"packages/marft/src/marft/z/**/*.py"'),
        ("[`b`](../packages/marft/src/marft/a/b.py)", "[`b`](../packages/marft/src/marft/c/d.py)"),
        ('here = ["a/b.py"]', 'here = ["c/d.py"]'),
        ('here = ["marft/a/b.py"]', 'here = ["marft/c/d.py"]'),
        ("`marft_lab/x.py` and `e.py`", "`marft_lab/y.py` and `marft_lab/f.py`"),
        ('plugin = "marft.a.b:Thing"', 'plugin = "marft.c.d:Thing"'),
    ],
)
def test_paths_follow(move: ModuleType, was: str, now: str) -> None:
    assert move.rewritten(was, MOVES, python=False) == now


def test_a_table_of_renames_keeps_its_old_names(move: ModuleType) -> None:
    table = '"marft.a" = "marft.e"\n\n["marft.a"]\n"X.of" = "build"\n'
    assert move.with_new_values(table, MOVES) == '"marft.a" = "marft_lab.f"\n\n["marft.a"]\n"X.of" = "build"\n'


def test_moves_are_read_from_words_and_files(move: ModuleType, tmp_path: Path) -> None:
    table = tmp_path / "moves.toml"
    table.write_text('[moves]\n"marft.x" = "marft.longer.y"\n')
    assert list(move.read_moves([str(table), "marft.a.b=marft.c.d"])) == ["marft.a.b", "marft.x"]
    with pytest.raises(ValueError, match="must be a TOML file, or look like"):
        move.read_moves(["marft.a"])
