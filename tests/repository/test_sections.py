"""Recipe sections: tables that installed packages add, read where a recipe sets them and nowhere else."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from marft.common.packages import bundled_plugins
from marft.common.version import __version__
from marft.config import load_recipe, parse_recipe, to_toml
from marft.config.sections import section_class, section_names
from marft_lab.world_models.settings import DynaSettings
from marft_serve.tracing.settings import TracingSettings
from tests.plugin_kinds import KINDS
from tests.sources import ROOT

PROJECTS = [
    tomllib.loads(file.read_text(encoding="utf-8"))["project"] for file in ROOT.glob("packages/*/pyproject.toml")
]
THEIRS = """
from collections.abc import Iterable
from typing import ClassVar
from marft.config.sections import Section

class Budget(Section):
    key: ClassVar[str] = "budget"
    dollars: float = 1.0

    def problems(self, run) -> Iterable[str]:
        if run.training.steps > 1000:
            yield f"budget.dollars: {run.training.steps} steps cost more"
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install a package that adds the section ``[budget]``."""
    info = tmp_path / "their_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[marft.sections]\nbudget = their_budget:Budget\n")
    (tmp_path / "their_budget.py").write_text(THEIRS)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "their_budget", raising=False)
    return tmp_path


def complaint(*overrides: str) -> str:
    with pytest.raises(ValueError, match=r".") as refused:
        load_recipe("demo", overrides)
    return str(refused.value)


def test_what_is_registered_is_what_the_project_says() -> None:
    """Where this fails, run ``make install``: names of parts are read off the installed package."""
    for kind in [
        *KINDS,
        "sections",
        "commands",
        "suites",
        "rollout_sources",
        "starters",
        "resources",
        "examples",
    ]:
        named = [name for project in PROJECTS for name in project["entry-points"].get(f"marft.{kind}", ())]
        assert sorted(named) == bundled_plugins(kind), kind


def test_all_packages_have_one_version_and_want_it_of_each_other() -> None:
    assert {project["version"] for project in PROJECTS} == {__version__}
    wanted = [
        need
        for project in PROJECTS
        for needs in (project["dependencies"], *project.get("optional-dependencies", {}).values())
        for need in needs
        if re.match(r"marft\b", need) and not need.startswith("marft[")
    ]
    assert {need.rpartition("==")[2] for need in wanted} == {__version__}


def test_every_section_is_known_by_the_name_of_its_table() -> None:
    assert {"dyna", "prompt_optimization", "sft", "shadow", "synthesis", "tracing"} <= set(section_names())
    assert all(section_class(name).key == name for name in section_names())


def test_a_recipe_has_the_sections_that_it_sets_and_writes_no_others() -> None:
    run = load_recipe("demo", ["--dyna.share", "0.25"])
    assert [section.key for section in run.sections] == ["dyna"]
    found = run.section(DynaSettings)
    assert found is not None
    assert found.share == 0.25
    assert run.section(TracingSettings) is None
    assert TracingSettings.from_run(run) == TracingSettings()
    written = tomllib.loads(to_toml(run))
    assert {"dyna", "tracing", "shadow"} & set(written) == {"dyna"}
    assert parse_recipe(written) == run


def test_a_run_without_a_section_keeps_the_others() -> None:
    run = load_recipe("demo", ["--dyna.share", "0.25", "--sft.epochs", "2"])
    assert [section.key for section in run.without_section("dyna").sections] == ["sft"]
    assert len(run.sections) == 2, "a copy was changed"


def test_a_package_adds_a_section_that_is_checked_like_ours(installed: Path) -> None:
    run = load_recipe("demo", ["--budget.dollars", "2.5"])
    assert tomllib.loads(to_toml(run))["budget"] == {"dollars": 2.5}
    assert "budget.dollars: input should be a valid number (given: 'x')" in complaint("--budget.dollars", "x")
    assert "budget: unknown key 'dollar'; did you mean 'dollars'?" in complaint("--budget.dollar", "1")
    assert "did you mean 'budget.dollars'?" in complaint("--dollars", "1")
    assert "did you mean 'budget'?" in complaint("--budge.dollars", "1")
    assert "budget.dollars: 2000 steps cost more" in complaint("--budget.dollars", "1", "--training.steps", "2000")


@pytest.mark.parametrize(
    ("module", "says"),
    [
        ("raise RuntimeError('no such GPU')", "cannot import 'their_budget:Budget': RuntimeError: no such GPU"),
        ("Budget = 3", "their_budget:Budget is not a section called 'budget'"),
        (THEIRS.replace('= "budget"', '= "money"'), "their_budget:Budget is not a section called 'budget'"),
    ],
)
def test_a_broken_package_is_one_sentence_where_its_section_is_set_and_nothing_elsewhere(
    installed: Path, module: str, says: str
) -> None:
    (installed / "their_budget.py").write_text(module)
    assert says in complaint("--budget.dollars", "1")
    assert load_recipe("demo", ["--dyna.share", "0.25"]).sections
    assert "did you mean 'tracing.otlp'?" in complaint("--otlp", "x")


@pytest.mark.slow
def test_a_recipe_imports_the_sections_that_it_sets_alone() -> None:
    script = "import sys; from marft.config import load_recipe; load_recipe('demo', sys.argv[1:]); print(*sys.modules)"
    said = subprocess.run(
        [sys.executable, "-c", script, "--tracing.max_queued_episodes", "7"], capture_output=True, text=True, check=True
    ).stdout.split()
    assert "marft_serve.tracing.settings" in said
    assert not {
        "marft_lab.world_models.settings",
        "marft_lab.prompt_optimization.settings",
        "marft_lab.shadow.settings",
        "torch",
    } & set(said)
