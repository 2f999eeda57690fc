"""Names that become files, folders and columns: checked once, wherever people give them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from marft.config import parse_recipe
from marft.rollout.local_runner import LocalRolloutRunner
from tests.helpers import recipe

BAD = (
    "/somewhere",
    "..",
    ".",
    "a/b",
    "a\\b",
    "a.b",
    "",
    "a b",
    "a\x1b[2J",
    "a\nb",
    "-a",
    "a" * 65,
    "é" * 65,
    "CON",
    "nul",
    "\ud800",
)


def renamed(kind: str, name: str) -> dict[str, Any]:
    """A recipe whose second model, policy or agent, or only tool, is called ``name``."""
    table = recipe()
    if kind == "models":
        table["models"][name] = {"path": "tiny"}
        table["policies"]["actor"]["model"] = name
    elif kind == "policies":
        table["policies"][name] = table["policies"].pop("actor")
        table["agents"][1]["policy"] = name
    elif kind == "tools":
        table["tools"] = {name: {"name": "python"}}
        table["agents"][1]["tools"] = [name]
    else:
        table["agents"][1]["role"] = name
    return table


@pytest.mark.parametrize("kind", ["models", "policies", "tools", "roles"])
@pytest.mark.parametrize("name", BAD, ids=ascii)
def test_what_could_be_a_path_or_be_obeyed_by_a_terminal_is_no_name(kind: str, name: str) -> None:
    with pytest.raises(ValueError, match=r"recipe:\n") as caught:
        parse_recipe(renamed(kind, name))
    assert any(why in str(caught.value) for why in ("letters, digits", "at most 64 characters", "a device"))
    assert str(caught.value).replace("\n", "").isprintable()


@pytest.mark.parametrize("name", ["class", "None", "_private", "__init__", "a-b"])
def test_a_role_is_what_an_organization_can_call(name: str) -> None:
    with pytest.raises(ValueError, match="a role is a name that organizations call"):
        parse_recipe(renamed("roles", name))


@pytest.mark.parametrize("kind", ["models", "policies", "tools"])
def test_a_name_has_room_beside_it_in_a_file_of_255_bytes(kind: str) -> None:
    """Sixty-four letters may be four times as many bytes."""
    parse_recipe(renamed(kind, "é" * 64))
    with pytest.raises(ValueError, match="at most 64 characters"):
        parse_recipe(renamed(kind, "漢" * 43))


@pytest.mark.parametrize(
    "name",
    ["..", ".hidden", "-rf", "a/b", "a:b", 'a"b', "a*b", "a\tb", "ends.", "ends ", "aux", "prn.txt", "x" * 65, " x"],
)
def test_a_run_is_called_what_a_folder_can_be_called(name: str) -> None:
    with pytest.raises(ValueError, match=r"recipe:\n  name: ") as caught:
        parse_recipe(recipe(name=name))
    assert str(caught.value).replace("\n", "").isprintable()


@pytest.mark.parametrize("name", ["demo", "demo-1.5", "2026-11-22", "7", "true", "my run (2)", "größer"])
def test_ordinary_run_names_are_fine_on_the_command_line_too(name: str) -> None:
    assert parse_recipe(recipe(name=name)).name == name
    assert parse_recipe(recipe(), ["--name", name]).name == name
    assert parse_recipe(recipe(), ["--output", name]).output == name


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("models", "Base"),
        ("models", "\uff42ase"),  # a wide b, which some systems write as any other
        ("policies", "REASONER"),
        ("roles", "Reasoner"),
    ],
)
def test_names_that_one_file_system_takes_for_the_same_are_refused(kind: str, name: str) -> None:
    with pytest.raises(ValueError, match="are one file's name on some systems"):
        parse_recipe(renamed(kind, name))


def test_every_allowed_name_works_also_one_that_torch_has_a_use_for(tmp_path: Path) -> None:
    """Adapters once could not be called ``train`` or ``keys``."""
    run = parse_recipe(renamed("policies", "train"), ["--output", str(tmp_path)])
    with LocalRolloutRunner(run) as rollouts:
        assert rollouts.models.policies["train"].parameters()
