"""Exports that are whole and mean harm: what they would run is told first, and nothing leads out of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from marft.config.plugins import import_object
from marft.runs.export.manifest import RECIPE, load_export, write_manifest
from marft.runs.export.recipe import export_recipe, read_recipe_table
from marft_serve.serving.settings import load_served_team
from tests.exports import MANIFEST

HOLDS: dict[str, Any] = {"name": "theirs", "agents": [{"role": "a"}], "team": {"organization": "chain"}}


def written(folder: Path, recipe: Mapping[str, Any], **manifest: Any) -> Path:
    """An export whose digests are right."""
    (folder / RECIPE).write_text(tomli_w.dumps(recipe))
    write_manifest(folder, {**MANIFEST, **manifest})
    return folder


@pytest.mark.parametrize(
    ("recipe", "says"),
    [
        ({"team": {"organization": "program", "call": "évil:run"}}, "team.call = évil:run"),
        ({"team": {"organization": "program", "call": "evil:รัน"}}, "team.call = evil:รัน"),
        ({"team": {"organization": "program", "call": "e\u0301vil.x:run"}}, "team.call"),
        ({"environment": {"name": "évil:Env"}}, "environment.name = évil:Env"),
        ({"team": {"organization": "program", "command": ["sh", "-c"]}}, "team.command = sh -c"),
        ({"tools": {"x": {"name": "mcp", "command": "rm"}}}, "tools.x.command = rm"),
        ({"tools": {"x": {"name": "mcp", "url": "http://x"}}}, "tools.x.url = http://x"),
        ({"team": {"organization": "program", "python": "/bin/sh"}}, "team.python = /bin/sh"),
    ],
)
def test_what_it_would_run_is_told_in_whatever_letters(recipe: dict[str, Any], says: str, tmp_path: Path) -> None:
    export = load_export(written(tmp_path, {**HOLDS, **recipe}))
    with pytest.raises(ValueError, match="would run code, or ask servers, of its author's") as told:
        read_recipe_table(export)
    assert says in str(told.value)
    assert read_recipe_table(export, trust_code=True)["name"] == "theirs"


@pytest.mark.parametrize(
    "path", ["my-team:solve", "my team:solve", ".team:solve", "team:a.b", ":solve", "team:", "team"]
)
def test_nothing_is_imported_whose_name_is_no_name(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("my-team.py", "my team.py"):
        (tmp_path / name).write_text("raise KeyboardInterrupt")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match="must look like"):
        import_object(path)


@pytest.mark.parametrize(
    ("key", "value"),
    [("x.path", "../secret"), ("x.path", "/etc/passwd"), ("x.path", 5), ("x.other", "."), ("x.path.deeper", "."),
     ("agents.7", "."), ("agents.none", "."), ("", ".")],
)  # fmt: skip
def test_no_path_leads_out_of_it(key: str, value: object, tmp_path: Path) -> None:
    export = load_export(written(tmp_path, {**HOLDS, "x": {"path": value}}, paths=(key,)))
    with pytest.raises(ValueError, match="has no path in the export under"):
        read_recipe_table(export)


@pytest.mark.parametrize(
    "recipe",
    [{}, {"agents": 5}, {"agents": [5]}, {**HOLDS, "agents": [{"tools": 5}]}, {**HOLDS, "rollout": 3},
     {**HOLDS, "engine": 3}, {**HOLDS, "tools": 3}, {**HOLDS, "tools": {"x": 3}}, {**HOLDS, "team": 3},
     {**HOLDS, "models": {"base": {"path": 1}}}, {**HOLDS, "policies": []}, {**HOLDS, "channel": {"name": []}}],
)  # fmt: skip
def test_a_recipe_that_is_none_is_refused_in_words(recipe: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        load_served_team(written(tmp_path, recipe), "best")


def test_one_without_a_recipe_is_refused(tmp_path: Path) -> None:
    write_manifest(tmp_path, MANIFEST)
    with pytest.raises(ValueError, match=r"team\.json lists no recipe\.toml"):
        load_export(tmp_path)


def test_a_tools_secrets_stay(tmp_path: Path) -> None:
    tools = {"x": {"name": "mcp", "api_key": "sk-1234", "path": "y"}}
    parts = {
        "models": {},
        "tools": tools,
        "rollout": {"max_steps": 1, "timeout_seconds": 1.0},
        "channel": {"name": "none"},
    }
    out = export_recipe({**HOLDS, **parts, "environment": {"name": "demo"}}, tmp_path)
    assert out.table["tools"]["x"] == {"name": "mcp", "path": "y"}
    assert out.omitted == ["tools.x.api_key: it may be a secret; give your own"]
