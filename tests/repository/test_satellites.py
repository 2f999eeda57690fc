"""The core knows its satellites in one generated file: it says which extra installs a name that is missing."""

from __future__ import annotations

import json
import runpy
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from marft.cli.main import app
from marft.common import packages
from marft.common import packages as registry
from marft.common.packages import extra_for, install_command, missing_extra
from marft.config import load_recipe
from marft.config.plugins import load_registered
from tests.sources import ROOT, SOURCES

TOOL = runpy.run_path(str(ROOT / "tools/layout/satellites.py"))
TARGET = TOOL["TARGET"]
CORE = next(folder for folder in SOURCES if (folder / "marft").exists())
SATELLITES = [name for pair in packages.package_index().import_names.items() for name in pair if name != "marft"]


@pytest.fixture
def core_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the entry points of the satellites."""
    found = registry.entry_points

    def of_the_core(group: str) -> list[EntryPoint]:
        return [point for point in found(group=group) if point.dist and point.dist.metadata["Name"] == "marft"]

    monkeypatch.setattr(registry, "entry_points", of_the_core)
    registry._entry_points_by_name.cache_clear()
    yield
    monkeypatch.undo()
    registry._entry_points_by_name.cache_clear()


def installed_from(monkeypatch: pytest.MonkeyPatch, origin: object) -> None:
    class Installed:
        def read_text(self, name: str) -> str | None:
            assert name == "direct_url.json"
            return json.dumps(origin) if origin else None

    monkeypatch.setattr(packages, "distribution", lambda _: Installed())


def test_the_file_is_what_the_projects_say() -> None:
    """Where this fails, run ``python tools/layout/satellites.py``."""
    assert json.loads(TARGET.read_text(encoding="utf-8")) == TOOL["satellites"]()


def test_no_other_file_of_the_core_names_a_satellite() -> None:
    named = [
        file
        for file in CORE.rglob("*")
        if file.suffix in (".py", ".toml", ".json", ".jinja", ".html", ".ipynb") and file != TARGET
        and any(word in file.read_text(encoding="utf-8") for word in SATELLITES)
    ]  # fmt: skip
    assert not named


@pytest.mark.parametrize(
    ("kind", "name", "extra"),
    [
        ("sections", "dyna", "lab"), ("sections", "cluster", "ray"), ("commands", "view", "viewer"), ("environments", "gymnasium", "gymnasium"),
        ("environments", "relay", "envs"), ("organizations", "program", "gateway"), ("environments", "table", ""), ("sections", "nothing", ""),
    ],
)  # fmt: skip
def test_each_name_has_the_extra_that_installs_all_it_needs(kind: str, name: str, extra: str) -> None:
    assert extra_for(kind, name) == extra


@pytest.mark.usefixtures("core_only")
class TestWithoutThem:
    """An installation of the core alone says what to install."""

    def test_a_section(self) -> None:
        with pytest.raises(ValueError, match=r"unknown key 'dyna': 'dyna' comes with marft\[lab\], .*: pip install"):
            load_recipe("demo", ["--dyna.share", "0.5"])

    def test_an_unknown_section_is_suggested_among_the_others(self) -> None:
        with pytest.raises(ValueError, match="did you mean 'training'"):
            load_recipe("demo", ["--trainin.steps", "5"])

    def test_a_part(self) -> None:
        with pytest.raises(ValueError, match=r"'relay' comes with marft\[envs\], which is not installed: pip install"):
            load_recipe("demo", ["--environment", "{name = 'relay'}"])

    def test_a_command(self) -> None:
        ran = CliRunner().invoke(app, ["serve", "exports/team", "--port", "1"])
        assert "'serve' comes with marft[serve], which is not installed: pip install" in str(ran.exception)

    def test_help_lists_the_commands_of_the_core_alone(self) -> None:
        said = CliRunner().invoke(app, ["--help"]).output
        assert " train " in said
        assert " serve " not in said

    def test_a_command_that_nobody_knows_is_unknown(self) -> None:
        assert "No such command 'serv'" in CliRunner().invoke(app, ["serv"]).output

    def test_a_starter(self, tmp_path: Path) -> None:
        ran = CliRunner().invoke(app, ["init", "--kind", "environment", str(tmp_path / "my_env")])
        assert "--kind: 'environment' comes with marft[envs], which is not installed" in str(ran.exception)
        assert not list(tmp_path.iterdir())


class TestOfAnotherVersion:
    """A satellite of another version is one sentence where it is used, and nothing elsewhere."""

    @pytest.fixture(autouse=True)
    def older(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        info = tmp_path / "marft_lab-0.0.9.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: marft-lab\nVersion: 0.0.9\n")
        points = "[marft.sections]\nolder = nowhere:Older\n[marft.commands]\nolder = nowhere:app\n"
        (info / "entry_points.txt").write_text(points)
        monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])

    def test_a_section(self) -> None:
        with pytest.raises(ValueError, match=r"marft-lab 0\.0\.9 does not fit marft .*: install both in one version"):
            load_registered("sections", "older")

    def test_a_command(self) -> None:
        ran = CliRunner().invoke(app, ["older"])
        assert "marft-lab 0.0.9 does not fit marft" in str(ran.exception)
        assert "does not fit" in CliRunner().invoke(app, ["older", "--help"]).output

    def test_the_rest(self) -> None:
        assert load_recipe("demo")
        assert typer.main.get_command(app).commands["train"]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("origin", "extra", "command"),
    [
        (None, "serve", "pip install --find-links <the folder of MARFT's wheels> 'marft[serve]'"),
        ({"url": "https://example.org/marft.whl"}, "lab", "pip install --find-links <the folder of MARFT's wheels> 'marft[lab]'"),
        ({"url": "file:///my%20wheels/marft-0.1.0-py3-none-any.whl", "archive_info": {}}, "ray", "pip install --find-links '/my wheels' 'marft[ray]'"),
        ({"url": "file:///src/packages/marft", "dir_info": {}}, "ray", "pip install '/src/packages/marft-lab[ray]'"),
        ({"url": "file:///src/packages/marft", "dir_info": {}}, "envs", "pip install /src/packages/marft-envs"),
        (
            {"url": "file:///src/packages/marft", "dir_info": {"editable": True}}, "all",
            "pip install --editable '/src/packages/marft[math]' --editable /src/packages/marft-envs --editable /src/packages/marft-lab --editable /src/packages/marft-serve",
        ),
        ({"url": "file:///src/packages/marft", "dir_info": {"editable": True}}, "mcp", "pip install --editable '/src/packages/marft[mcp]'"),
    ],
)  # fmt: skip
def test_the_command_fits_how_the_core_is_installed(
    monkeypatch: pytest.MonkeyPatch, origin: object, extra: str, command: str
) -> None:
    installed_from(monkeypatch, origin)
    assert install_command(extra) == command


def test_names_that_no_satellite_adds_have_nothing_to_install() -> None:
    assert not missing_extra("sections", "trainin")
