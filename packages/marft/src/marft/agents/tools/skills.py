"""Skills: folders with instructions and scripts, added to an agent's profile.

``SKILL.md`` begins with a header that has a ``name`` and a ``description``. The rest contains instructions, which
become part of the agent's own. The scripts in ``scripts/*.py`` run in the sandbox with a copy of the whole folder.
Agents can read its other files.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from marft.agents.sandbox.runner import SandboxSettings, require_isolation, run_python
from marft.agents.tools.python import SandboxSource, format_result
from marft.common.atomic import read_text
from marft.common.errors import UserError
from marft.common.types import Tool

HEADER = re.compile(r"\A---\s*\n(.*?)\n---\s*\n?(.*)\Z", re.DOTALL)
MAX_FOLDER_BYTES = 8 * 2**20
SCRIPT_TEMPLATE = (
    "import runpy, sys\n"
    "sys.path[:0] = ['scripts', '.']\n"
    "sys.argv = {argv!r}\n"
    "runpy.run_path(sys.argv[0], run_name='__main__')\n"
)


@dataclass(frozen=True, slots=True)
class Skill:
    """Skill read from a folder.

    >>> Skill("unit-conversion", "Convert units.", "Always name the unit.", {}).prefix
    'unit_conversion'
    """

    name: str
    description: str
    instructions: str
    files: Mapping[str, bytes]

    @property
    def prefix(self) -> str:
        """Prefix for the names of the skill's tools."""
        return re.sub(r"\W", "_", self.name, flags=re.ASCII)

    @property
    def scripts(self) -> list[str]:
        """Paths of the scripts, sorted."""
        return sorted(name for name in self.files if re.fullmatch(r"scripts/[^/]+\.py", name))

    @property
    def texts(self) -> list[str]:
        """Paths to the remaining files, sorted."""
        return sorted(set(self.files) - set(self.scripts))

    @property
    def profile(self) -> str:
        """Text to add to an agent's instructions."""
        return "\n".join(part for part in (f"# Skill: {self.name}", self.description, "", self.instructions) if part)


def read_skill(folder: str) -> Skill:
    """Read a skill's folder.

    Raises:
        UserError: the folder has no valid SKILL.md with a name and a description, is too large, or contains links
            that lead out of it.
    """
    path = Path(folder)
    name, description, instructions = _read_header(path)
    paths = sorted(path.rglob("*"))
    for link in paths:
        if link.is_symlink() and not link.resolve().is_relative_to(path.resolve()):
            raise UserError(f"the skill at {folder}: {link.relative_to(path)} is a link that leads out of the folder")
    files = [file for file in paths if file.is_file() and file.name != "SKILL.md"]
    if sum(file.stat().st_size for file in files) > MAX_FOLDER_BYTES:
        raise UserError(f"the skill at {folder} is larger than {MAX_FOLDER_BYTES >> 20} MiB")
    contents = {file.relative_to(path).as_posix(): file.read_bytes() for file in files}
    return Skill(name, description, instructions, contents)


def _read_header(path: Path) -> tuple[str, str, str]:
    """Return name, description and instructions of a skill."""
    try:
        parts = HEADER.match(read_text(path / "SKILL.md"))
        header = yaml.safe_load(parts[1]) if parts else None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"cannot read the skill at {path}: {error}") from error
    if not isinstance(header, dict) or not all(isinstance(header.get(key), str) for key in ("name", "description")):
        raise UserError(f"{path / 'SKILL.md'} must begin with a header of ---, name: …, description: …, ---")
    if not re.match("[A-Za-z]", header["name"]):
        raise UserError(
            f"{path / 'SKILL.md'}: name must begin with a letter from a to z; its tools are called after it"
        )
    assert parts
    return header["name"], header["description"], parts[2].strip()


@dataclass(frozen=True)
class SkillSource(SandboxSource):
    """Tool source for a skill: reading its files and running its scripts."""

    skill: Skill
    limits: SandboxSettings = SandboxSettings()

    def __post_init__(self) -> None:
        if self.skill.scripts:
            require_isolation(self.limits)

    @property
    def tools(self) -> Sequence[Tool]:
        """Tools for the skill's files and scripts."""
        skill, tools = self.skill, []
        if skill.texts:
            file = {"type": "string", "enum": skill.texts}
            schema = {"type": "object", "properties": {"file": file}, "required": ["file"]}
            tools.append(Tool(f"{skill.prefix}_read", f"Read a file of the skill {skill.name}.", schema))
        if skill.scripts:
            properties = {
                "script": {"type": "string", "enum": skill.scripts},
                "arguments": {"type": "array", "items": {"type": "string"}},
                "input": {"type": "string", "description": "What the script reads from standard input."},
            }
            schema = {"type": "object", "properties": properties, "required": ["script"]}
            tools.append(Tool(f"{skill.prefix}_run", f"Run a script of the skill {skill.name}.", schema))
        return tools

    async def call(self, tool: str, arguments: Mapping[str, object]) -> str:
        """Read a file of the skill, or run a script in the sandbox, and return the text."""
        if tool == f"{self.skill.prefix}_read":
            return self.skill.files[_get_choice(arguments, "file", self.skill.texts)].decode("utf-8", "replace")
        script = _get_choice(arguments, "script", self.skill.scripts)
        words, stdin = arguments.get("arguments", []), arguments.get("input", "")
        if not isinstance(words, list) or not isinstance(stdin, str):
            raise UserError("arguments must be a list of strings, and input a string")
        code = SCRIPT_TEMPLATE.format(argv=[script, *map(str, words)])
        return format_result(run_python(code, self.limits, stdin, self.skill.files))


def _get_choice(arguments: Mapping[str, object], key: str, choices: Sequence[str]) -> str:
    value = arguments.get(key)
    if value not in choices:
        raise UserError(f"{key} must be one of {', '.join(choices)}")
    return str(value)
