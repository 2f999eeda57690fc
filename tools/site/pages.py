"""The pages of the docs that are not written by hand: docs/settings.md, docs/presets.md, docs/metrics.md and
docs/commands.md, which are read off the code, and docs/papers.md, off papers.toml beside this file.

python tools/site/pages.py       # writes them
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from commands import page as commands_page
from keys import inner_tables, keys_of
from papers import page as papers_page

from marft.common.metrics.__main__ import render_page as metrics_page
from marft.common.packages import bundled_plugins
from marft.config.algorithm import AlgorithmSettings
from marft.config.algorithms import DESCRIPTIONS
from marft.config.interfaces.memory import MemorySystem
from marft.config.interfaces.reward import RewardTerm
from marft.config.plugin_kinds import PLUGIN_KINDS
from marft.config.plugins import find_plugin
from marft.config.run import RunSettings
from marft.config.sections import section_class, section_names
from marft.config.settings import Settings
from marft.envs.graders import GRADERS
from marft_lab.federated.combiner import Combiner
from marft_lab.federated.settings import FederationSettings
from marft_lab.safety.suite import SuiteSettings

DOCS = Path(__file__).parents[2] / "docs"
SECTIONS = {  # kinds of parts: where a recipe names them
    "engines": ("engine", "Engines"),
    "environments": ("environment", "Environments"),
    "organizations": ("team", "Organizations"),
    "channels": ("channel", "Channels"),
    "rewards": ("[rewards]", "Reward terms"),
    "filters": ("[synthesis.filters]", "Filters"),
    "checks": ("rules.NAME", "Checks of a suite"),
    "proposers": ("prompt_optimization.proposer", "Proposers"),
    "combiners": ("combine", "Combiners of a federation"),
    "callbacks": ("[callbacks]", "Callbacks"),
    "sinks": ("[sinks]", "Sinks"),
    "tools": ("tools.NAME", "Sources of tools"),
    "memories": ("tools.NAME.store", "Memory systems"),
    "world_models": ("dyna.model", "World models"),
    "credits": ("algorithm.credit", "Credits"),
    "objectives": ("algorithm.objective", "Objectives"),
    "teammate_weights": ("algorithm.teammate_text.weight", "Weights of others' text"),
    "schedules": ("algorithm.schedule", "Schedules"),
}
SHARED: Mapping[str, type[Settings]] = {
    "combiners": Combiner,
    "memories": MemorySystem,
    "rewards": RewardTerm,
}  # kinds whose parts share keys
NAMED = {"models": "models.NAME", "policies": "policies.NAME", "attacks": "attacks.NAME", "sites": "sites.NAME"}


def pages() -> Mapping[str, str]:
    """Every page that is not written by hand, by its file's name."""
    return {
        "settings.md": settings(),
        "presets.md": presets(),
        "metrics.md": metrics_page(),
        "commands.md": commands_page(),
        "papers.md": papers_page(),
    }


def stale() -> list[str]:
    """The pages that are not what the code says."""
    return [name for name, text in pages().items() if (DOCS / name).read_text(encoding="utf-8") != text]


def settings() -> str:
    """docs/settings.md: every key of a recipe, and of every part that it can name."""
    lines = [
        "# Every key",
        "",
        "Every key of a recipe, with type, default and meaning. [Recipes](recipes.md) explains how to combine tables.",
        "`marft train recipe.toml --dry-run` prints a recipe with every key of its tables.",
        "(`python tools/site/pages.py` generates this page.)",
        "",
        "A key without a default is required, except `name`, `team`, `channel`, `algorithm`, `engine` and `sinks`.",
        'The default "its own" means a table with defaults, listed further down. A [preset](presets.md) overrides the',
        "defaults of `[algorithm]`. A *part* is a table that names a class: bundled or your own.",
    ]
    for heading, cls in _tables(RunSettings, ""):
        lines += _section(f"## {_title(heading)}", cls)
    for name in section_names():
        for heading, cls in _tables(section_class(name), name):
            lines += _section(f"## {_title(heading)}", cls)
    for kind, (place, title) in SECTIONS.items():
        tag = PLUGIN_KINDS[kind].tag
        lines += ["", f"## {title}", "", f"Select one with `{tag}` in `[{place}]`; its keys go into the same table."]
        base = SHARED.get(kind)
        shared = tuple(base.model_fields) if base else ()
        if base:
            lines += _section(f"### {title}: all of them", base)
        for name in bundled_plugins(kind):
            cls = find_plugin(kind, name)
            lines += _section(f"### {title}: {name}", cls, without=shared)
            for heading, inner in list(_tables(cls, place))[1:]:
                lines += _section(f"#### {title}: {name}, `{heading.rpartition('.')[2]}`", inner)
    lines += [
        "",
        "## A suite",
        "",
        "Keys in the file of `marft eval --suite` ([safety](safety.md)). Goals are checks.",
    ]
    for heading, cls in _tables(SuiteSettings, ""):
        lines += _section(f"### A suite: `[{heading}]`" if heading else "### A suite: at the top", cls)
    lines += [
        "",
        "## A federation",
        "",
        "Keys in the file of `marft federate` ([federated](federated.md)).",
    ]
    for heading, cls in _tables(FederationSettings, ""):
        lines += _section(f"### A federation: `[{heading}]`" if heading else "### A federation: at the top", cls)
    lines += ["", "## Gradings", "", "`grading` of the environment `table`: a name, or a table with a name."]
    for name, cls in GRADERS.items():
        lines += _section(f"### Gradings: {name}", cls, without=("name",))
    return "\n".join(lines) + "\n"


def presets() -> str:
    """docs/presets.md: every preset, and what it is made of."""
    lines = [
        "# Presets",
        "",
        "A preset is an algorithm for `[algorithm] name = …`. `marft algorithms NAME` prints each setting of a preset",
        "with its source. [Algorithms](algorithms.md) explains the parts. (`python tools/site/pages.py` generates this",
        "page.)",
        "",
        "| preset | level | credit | objective | schedule | critic | description |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, about in DESCRIPTIONS.items():
        made = AlgorithmSettings.model_validate({"name": name})
        parts = (made.level, made.credit.name, made.objective.name, made.schedule.name, made.critic.kind)
        lines.append(f"| `{name}` | {' | '.join(parts)} | {_cell(about)} |")
    return "\n".join(lines) + "\n"


def _tables(cls: type[Settings], place: str) -> Iterator[tuple[str, type[Settings]]]:
    """A table and those inside it, each with the place where a recipe has it."""
    yield place, cls
    for name, field in cls.model_fields.items():
        for inner in inner_tables(field):
            yield from _tables(inner, f"{place}.{NAMED.get(name, name)}".removeprefix("."))


def _title(place: str) -> str:
    place = {"agents": "[agents]"}.get(place, place)
    return f"`[{place}]`" if place else "At the top"


def _section(heading: str, cls: type[Settings], without: Iterable[str] = ()) -> list[str]:
    lines = ["", heading]
    about = _about(cls)
    lines += ["", about] if about else []
    lines += _picture(cls)
    keys = [key for key in keys_of(cls) if key.name not in without]
    if keys:
        lines += ["", "| key | takes | default | meaning |", "| --- | --- | --- | --- |"]
        for key in keys:
            default = key.default if key.default in ("", "none", "its own", "a text") else f"`{key.default}`"
            lines.append(f"| `{key.name}` | {_cell(key.type)} | {_cell(default)} | {_cell(key.meaning)} |")
    return lines


def _about(cls: type[Settings]) -> str:
    """The first paragraph of its docstring, in Markdown."""
    text = inspect.cleandoc(vars(cls).get("__doc__") or "").split("\n\n")[0].removesuffix("::").strip()
    return re.sub(r":\w+:`([^`]+)`", r"`\1`", text).replace("``", "`")


def _picture(cls: type[Settings]) -> list[str]:
    """The drawing of an organization, which stands in its docstring after two colons."""
    _, found, rest = inspect.cleandoc(vars(cls).get("__doc__") or "").partition("::\n\n")
    drawn = rest[: len(rest) - len(rest.lstrip())] + rest.strip() if found else ""
    drawing = re.split(r"\n\n(?=\S)", drawn)[0]
    return ["", "```text", *textwrap.dedent(drawing).splitlines(), "```"] if "─" in drawing or "╲" in drawing else []


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main() -> None:
    """Write them."""
    for name, text in pages().items():
        (DOCS / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
