"""docs/papers.md: what is taken from which paper, what turns it on, and what it was held to.

All of it is in ``papers.toml`` beside this file; what the code and the results say themselves is read off them.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

from pydantic import BaseModel, ConfigDict

ROOT = Path(__file__).parents[2]
TABLE = Path(__file__).with_name("papers.toml")
GROUPS = {
    "learned": "Algorithms",
    "teams": "Teams and organizations",
    "systems": "Engines, systems, asynchrony",
    "worlds": "Worlds and graders",
    "statistics": "Evaluation and statistics",
    "models": "Models",
}
INTRODUCTION = """\
# Papers

Papers behind MARFT: what MARFT takes from each paper, the files and keys, the differences, and the evidence.
(`python tools/site/pages.py` generates this page from [`papers.toml`](../tools/site/papers.toml). A test fails if the
code cites a paper without a row.)

**Our reading** marks a formula that we do not know for certain. `marft algorithms NAME` prints the numbers of a preset
with their sources.

Kinds of evidence:

- **slow reference**: plain Python, written from the formulas and not from our code.
- **known values**: from theory, from another formula, or computed by hand.
- **other program**: another project's program, run on the same inputs.
- **measured**: our results on our tasks. The method works there; the paper's own figure, mostly from far larger
  models, is not reproduced.
- **published**: our attempt to reproduce a figure of the paper."""


class Row(BaseModel):
    """A table of papers.toml: every key is known, nothing is converted."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Paper(Row):
    """One paper; the head of ``papers.toml`` says what each key is."""

    name: str
    by: str
    also: tuple[str, ...] = ()
    title: str
    arxiv: str = ""
    venue: str = ""
    url: str = ""
    what: str
    here: tuple[str, ...]
    presets: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    ours: str = ""
    reference: tuple[str, ...] = ()
    parity: tuple[str, ...] = ()
    known: tuple[str, ...] = ()
    measured: tuple[str, ...] = ()
    published: str = ""
    nothing: str = ""

    @property
    def tests(self) -> tuple[str, ...]:
        """``test_file.py::test_name`` of whatever holds it."""
        return (*self.reference, *self.parity, *self.known)


class Passing(Row):
    """A citation of something that is not implemented."""

    cited: str
    why: str


class Out(Row):
    """What stays out."""

    what: str
    why: str


class Papers(Row):
    """All of ``papers.toml``."""

    learned: tuple[Paper, ...]
    teams: tuple[Paper, ...]
    systems: tuple[Paper, ...]
    worlds: tuple[Paper, ...]
    statistics: tuple[Paper, ...]
    models: tuple[Paper, ...]
    passing: tuple[Passing, ...]
    out: tuple[Out, ...]

    def all(self) -> Iterator[Paper]:
        """Every paper, group by group."""
        for group in GROUPS:
            yield from getattr(self, group)


@cache
def papers() -> Papers:
    """What ``papers.toml`` says.

    Raises:
        ValueError: a key is unknown, missing, or of another type.
    """
    return Papers.model_validate(tomllib.loads(TABLE.read_text(encoding="utf-8")))


def page() -> str:
    """The page, in Markdown."""
    table = papers()
    lines = [INTRODUCTION]
    for group, title in GROUPS.items():
        lines += ["", f"## {title}", "", "| paper | taken | files, keys | differences | evidence |"]
        lines += ["| --- | --- | --- | --- | --- |"]
        lines += [_row(paper) for paper in getattr(table, group)]
    lines += ["", "## What stays out", ""]
    lines += [f"- **{out.what}**: {out.why}." for out in table.out]
    return "\n".join(lines) + "\n"


def _row(paper: Paper) -> str:
    cells = (_cited(paper), paper.what, _place(paper), _ours(paper), _held(paper))
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _cited(paper: Paper) -> str:
    url = f"https://arxiv.org/abs/{paper.arxiv}" if paper.arxiv else paper.url
    title = f"[{paper.title}]({url})" if url else f"*{paper.title}*"
    by = "" if paper.by in (paper.name, paper.title) else f"{paper.by}, "
    where = f", arXiv {paper.arxiv}" if paper.arxiv else f", {paper.venue}"
    return f"**{paper.name}**: {by}{title}{where}"


def _package(file: str) -> str:
    return file.partition("/")[0].replace("_", "-")


def _place(paper: Paper) -> str:
    files = ", ".join(f"[`{file}`](../packages/{_package(file)}/src/{file})" for file in paper.here)
    named = [*_kind("preset", paper.presets), *_kind("key", paper.keys), *_kind("metric", paper.metrics)]
    named += [f"`{command}`" for command in paper.commands]
    return "; ".join([files, *named]) if named else f"{files}; needs no key"


def _kind(kind: str, names: Iterable[str]) -> list[str]:
    written = ", ".join(f"`{name}`" for name in names)
    return [f"{kind}{'s' if ', ' in written else ''} {written}"] if written else []


def _ours(paper: Paper) -> str:
    listed = any(fnmatch(preset, name) for preset in paper.presets for name in listed_differences())
    link = ["[as listed](algorithms.md#where-we-differ)"] if listed else []
    return "; ".join([*([paper.ours] if paper.ours else []), *link])


def _held(paper: Paper) -> str:
    """What it was held to, and plainly so where that is not much."""
    on_one_ground = [name for name in paper.presets if name in measured_presets()]
    results = [*(["algorithms.md"] if on_one_ground else []), *paper.measured]
    alone = paper.reference and not (paper.parity or paper.known or results or paper.published)
    held = [
        *_named("a slow reference alone" if alone else "slow reference", map(_test, paper.reference)),
        *_named("other program", map(_test, paper.parity)),
        *_named("known values", map(_test, paper.known)),
        *_named("measured", (f"[`{name}`](../benchmarks/results/{name})" for name in results)),
        *([f"**published**: {paper.published}"] if paper.published else []),
        *([f"**no reference**: {paper.nothing}"] if paper.nothing else []),
    ]
    return "; ".join(held)


def _named(kind: str, links: Iterable[str]) -> list[str]:
    written = ", ".join(links)
    return [f"**{kind}**: {written}"] if written else []


def _test(test: str) -> str:
    """A test as the claim that its name makes.

    >>> _test("marft/trainer/test_gae.py::test_gae_equals_the_slow_reference")
    '[gae equals the slow reference](../tests/marft/trainer/test_gae.py)'
    """
    file, _, name = test.partition("::")
    return f"[{name.removeprefix('test_').replace('_', ' ')}](../tests/{file})"


@cache
def listed_differences() -> frozenset[str]:
    """The presets of the table of differences in docs/algorithms.md; one may end in ``*``."""
    text = (ROOT / "docs" / "algorithms.md").read_text(encoding="utf-8").partition("## Where we differ")[2]
    cells = re.findall(r"^\| (`[^|]*`) \|", text.partition("\n## ")[0], flags=re.MULTILINE)
    return frozenset(name for cell in cells for name in re.findall(r"`([^`]+)`", cell))


@cache
def measured_presets() -> frozenset[str]:
    """The presets that were measured on the same ground: rows of benchmarks/results/algorithms.md."""
    text = (ROOT / "benchmarks" / "results" / "algorithms.md").read_text(encoding="utf-8")
    return frozenset(re.findall(r"^\| ([\w+-]+) \|", text, flags=re.MULTILINE))
