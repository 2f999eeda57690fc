"""Skills whose folders hold what could go wrong: names, links, files that are called like ours."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from marft.agents.tools.skills import SkillSource, read_skill
from tests.sources import TESTS
from tests.tool_games import call, isolated, run, says, with_tools

HEADER = "---\nname: {name}\ndescription: Says things.\n---\nSay them."


def skill_at(folder: Path, name: str = "sayings", **files: str) -> str:
    folder.mkdir(exist_ok=True)
    (folder / "SKILL.md").write_text(HEADER.format(name=name))
    for file, text in files.items():
        path = folder / file.replace("__", "/")
        path = path.with_suffix(".py")
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return str(folder)


@isolated
def test_a_skill_may_have_files_that_are_called_like_the_starter(tmp_path: Path) -> None:
    folder = skill_at(
        tmp_path / "s",
        program="word = 'ours'",
        _program="",
        scripts__say="import program; print(program.word, input())",
    )
    (tmp_path / "s" / ".stdin").write_text("kept")
    skill = read_skill(folder)
    assert {"program.py", "_program.py", ".stdin"} <= set(skill.texts)
    source = SkillSource(skill)
    said = asyncio.run(source.call("sayings_run", {"script": "scripts/say.py", "input": "heard"}))
    assert said == "ours heard"


def test_a_byte_order_mark_is_no_part_of_the_header(tmp_path: Path) -> None:
    path = tmp_path / "SKILL.md"
    path.write_bytes(b"\xef\xbb\xbf" + HEADER.format(name="sayings").encode())
    assert read_skill(str(tmp_path)).name == "sayings"


@pytest.mark.parametrize("name", ["na\u00efve words", "a-b.c", "Tool2"])
def test_tools_are_called_by_names_that_every_model_can_write(tmp_path: Path, name: str) -> None:
    (tool,) = SkillSource(read_skill(skill_at(tmp_path, name, table=""))).tools
    assert tool.name.isidentifier()
    assert tool.name.isascii()


@pytest.mark.parametrize("name", ["3d-printing", "\u65e5\u672c", "''", "_x"])
def test_names_that_no_tool_can_have_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="name must begin with a letter"):
        read_skill(skill_at(tmp_path, name))


@pytest.mark.parametrize("target", ["/etc/hostname", "../secret.txt", "..", "/no/such/file"])
def test_links_that_lead_out_of_the_folder_are_refused(tmp_path: Path, target: str) -> None:
    (tmp_path / "secret.txt").write_text("hush")
    folder = skill_at(tmp_path / "s")
    (tmp_path / "s" / "notes.txt").symlink_to(target)
    with pytest.raises(ValueError, match=r"notes.txt is a link that leads out of the folder"):
        read_skill(folder)


def test_links_inside_the_folder_are_followed(tmp_path: Path) -> None:
    folder = skill_at(tmp_path, table="1")
    (tmp_path / "same.txt").symlink_to("table.py")
    assert read_skill(folder).files["same.txt"] == b"1"


SKILL = TESTS / "skill_example"


class TestSkills:
    def test_its_instructions_become_the_agents(self) -> None:
        skill = read_skill(str(SKILL))
        assert (skill.name, skill.scripts, skill.texts) == (
            "unit-conversion", ["scripts/convert.py", "scripts/factors.py"], ["table.txt"],
        )  # fmt: skip
        assert skill.profile.startswith("# Skill: unit-conversion\nConvert lengths")
        assert "Always name the unit." in skill.profile

    @isolated
    def test_its_files_are_read_and_its_scripts_run_in_the_sandbox(self) -> None:
        turns = (
            call("unit_conversion_read", file="table.txt"),
            call("unit_conversion_run", script="scripts/convert.py", arguments=["3", "mile"]),
            call("unit_conversion_run", script="../../etc/passwd"),
            "ok",
        )
        (action,) = run(with_tools(says(*turns), SkillSource(read_skill(str(SKILL))), seconds=20)).actions
        outputs = [c.output for c in action.calls]
        assert "mile 1609.344" in outputs[0]
        assert outputs[1] == "4828.03 m"
        assert "script must be one of scripts/convert.py" in outputs[2]

    @pytest.mark.parametrize(
        ("text", "why"),
        [
            (None, "cannot read the skill"),
            ("no header", "must begin with a header"),
            ("---\nname: x\n---\n", "must begin"),
        ],
    )
    def test_a_folder_that_is_none_is_refused(self, tmp_path: Path, text: str | None, why: str) -> None:
        if text is not None:
            (tmp_path / "SKILL.md").write_text(text)
        with pytest.raises(ValueError, match=why):
            read_skill(str(tmp_path))
