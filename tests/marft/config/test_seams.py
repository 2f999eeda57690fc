"""A plugin is held to its seam when the recipe is read: kind, methods, arguments, coroutines, attributes."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from marft.common.packages import bundled_plugins
from marft.config import parse_recipe
from marft.config.plugins import find_plugin
from tests.helpers import recipe
from tests.plugin_kinds import KINDS
from tests.sources import ROOT

OPTION = {
    "organizations": ("--team", "organization"),
    "environments": ("--environment", "name"),
    "credits": ("--algorithm.credit", "name"),
    "objectives": ("--algorithm.objective", "name"),
    "schedules": ("--algorithm.schedule", "name"),
    "channels": ("--channel", "name"),
    "tools": ("--tools.mine", "name"),
    "rewards": ("--rewards", "name"),
}


def complaint(kind: str, name: str) -> str:
    option, tag = OPTION[kind]
    value = f"{{ {tag} = '{name}' }}"
    with pytest.raises(ValueError, match="recipe:") as caught:
        parse_recipe(recipe(), [option, f"[{value}]" if kind == "rewards" else value])
    return str(caught.value)


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind in KINDS for name in bundled_plugins(kind)])
def test_every_built_in_fits_its_own_seam_and_no_other(kind: str, name: str) -> None:
    cls = find_plugin(kind, name)
    assert not KINDS[kind].class_problems(cls)
    assert [other for other in KINDS if other != kind and not KINDS[other].class_problems(cls)] == []


@pytest.mark.parametrize(
    ("kind", "name", "told"),
    [
        ("organizations", "marft.trainer.objectives.ppo:PPO", "no method async def act(self, observation, agents), it looks like an objective"),
        ("environments", "marft.agents.organizations:Chain", "no method def tasks(self, split)"),
        ("credits", "marft.agents.channels:Raw", "no method def assign(self, inputs)"),
        ("objectives", "marft.trainer.credit.grpo:GRPO", "no method def __call__(self, inputs), it looks like a credit"),
        ("schedules", "marft.trainer.credit.rae:RAE", "derive it from marft.config.interfaces.schedule.UpdateSchedule"),
        ("channels", "marft.trainer.update_schedules:A2PO", "no method def transform(self, messages)"),
        ("tools", "marft.envs.math:Math", "no method def connect(self), it looks like an environment"),
        ("rewards", "tests.plugins:NotANumber", "derive it from marft.config.interfaces.reward.RewardTerm"),
        ("organizations", "tests.wrong:NotAwaited", "act is no coroutine; write async def act(self, observation, agents)"),
        ("organizations", "tests.wrong:TooFew", "act does not take the arguments of async def act(self, observation, agents)"),
        ("environments", "tests.wrong:AwaitedTasks", "tasks is a coroutine, which nobody would await; write def tasks(self, split)"),
        ("environments", "tests.wrong:Streaming", "tasks is a coroutine, which nobody would await"),
        ("channels", "tests.wrong:Abstract", "transform is abstract; write def transform(self, messages)"),
        ("schedules", "tests.wrong:Truthful", "its ratio_limit is True, not int or float"),
        ("credits", "tests.wrong:Halfway", "no method def load_state_dict(self, state)"),
        ("credits", "tests.wrong:Stranger", "its comparison_group is 'tasks', not '' or 'task'"),
        ("credits", "tests.wrong:Silent", "no method def assign(self, inputs)"),
        ("credits", "tests.wrong:Misspelt", "it says needs_crtic, which nobody reads; is needs_critic meant?"),
        ("credits", "tests.wrong:Overlooked", "it says fork_pln, which nobody reads; is fork_plan meant?"),
        ("organizations", "tests.wrong:Baseless", "derive it from marft.config.interfaces.organization.Organization"),
        ("organizations", "tests.wrong:Raises", "tests.wrong.Raises raised KeyError: 'nowhere' (wrong.py:"),
    ],
)  # fmt: skip
def test_a_class_that_does_not_fit_is_refused_with_key_class_and_what_is_missing(
    kind: str, name: str, told: str
) -> None:
    text = complaint(kind, name)
    assert told in text
    assert name.replace(":", ".") in text
    assert OPTION[kind][0].removeprefix("--") + ("." if kind == "rewards" else ": ") in text


def test_a_coroutine_behind_a_decorator_is_one() -> None:
    run = parse_recipe(recipe(), ["--team", "{ organization = 'tests.wrong:Decorated' }"])
    assert run.team.name == "tests.wrong:Decorated"


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("import nothing_like_this\n", "ModuleNotFoundError: No module named 'nothing_like_this' (broken_part.py:1)"),
        ("x = 1\nprint(undefined)\n", "NameError: name 'undefined' is not defined (broken_part.py:2)"),
        ("def f(:\n", "SyntaxError"),
        ("import sys\nsys.exit(3)\n", "SystemExit: 3 (broken_part.py:2)"),
        ("x = 1\n", "has no attribute 'Part'"),
    ],
)
def test_a_module_that_cannot_be_imported_is_a_message_with_file_and_line(
    source: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_part.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "broken_part", raising=False)
    text = complaint("organizations", "broken_part:Part")
    assert "cannot import 'broken_part:Part'" in text
    assert told in text


@pytest.mark.slow
def test_checking_seams_imports_no_torch() -> None:
    code = (
        "import sys; from tests.helpers import recipe; from marft.config import parse_recipe\n"
        "parse_recipe(recipe(rewards=[{'name': 'outcome'}], tools={}))\n"
        "print('torch' in sys.modules, 'transformers' in sys.modules)"
    )
    root = ROOT
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root)
    assert done.stdout.split() == ["False", "False"]


def test_names_that_nothing_goes_by_still_get_a_suggestion() -> None:
    assert "did you mean 'chain'?" in complaint("organizations", "chian")


def test_what_is_no_path_at_all_says_what_one_looks_like() -> None:
    given: Any = complaint("organizations", "package:")
    assert "must look like my_package.module:name" in given


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        ("environments", "throughput:Numbers"),
        ("environments", "organizations:Boxes"),
        ("environments", "versus.marft_steps:Coins"),
        ("channels", "concurrency:Even"),
    ],
)
def test_the_parts_that_benchmarks_bring_are_parts(kind: str, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    module, _, name = path.partition(":")
    assert not KINDS[kind].class_problems(getattr(importlib.import_module(module), name))


def test_what_is_no_plugin_at_all_is_refused_with_the_class_to_derive_from() -> None:
    said = "is not an environment: its class must derive from marft.config.interfaces.environment.Environment"
    assert said in complaint("environments", "collections:Counter")
