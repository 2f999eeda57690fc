"""What a cold start leaves: a file of rows for each role, and a manifest that says where they are from, and what was
left out on the way. All of it is there at once, or not at all."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from marft.common import atomic
from marft.common.version import __version__
from marft.config.parts import FilterPart
from marft.config.run import RunSettings
from marft_lab.synthesis.settings import SynthesisSettings
from marft_lab.synthesis.sifting import Passage
from marft_serve.traces.rows import MANIFEST, ROWS

FORMAT = "rows of MARFT, 1"


@dataclass(frozen=True, slots=True, eq=False)
class Origin:
    """Where rows are from.

    Args:
        teacher: what is known of whoever played.
        parts: of the funnel, all of which each row went through.
    """

    run: RunSettings
    teacher: Mapping[str, object]
    parts: Sequence[str]

    def of_rows(self) -> dict[str, object]:
        """What each row says of it."""
        asked = SynthesisSettings.of(self.run)
        return {"split": asked.split, "seed": self.run.seed, "teacher": dict(self.teacher), "filters": [*self.parts]}


@dataclass(frozen=True, slots=True)
class Made:
    """What came of it.

    Args:
        path: the folder of rows.
        rows: how many there are, by role.
        episodes: that they are of.
        funnel: what each part of it left out.
    """

    path: Path
    rows: Mapping[str, int]
    episodes: int
    funnel: Sequence[Passage]


def write_rows(
    folder: Path, rows: Sequence[Mapping[str, Any]], origin: Origin, filters: Sequence[Mapping[str, object]],
    funnel: Sequence[Passage],
) -> Made:  # fmt: skip
    """Write rows and manifest, in the place of what was there.

    Args:
        filters: what each was set to.
    """
    texts: dict[str, list[str]] = {}
    for row in rows:
        texts.setdefault(str(row["agent"]), []).append(json.dumps(row, ensure_ascii=False) + "\n")
    files = {f"{role}.jsonl": "".join(lines).encode() for role, lines in sorted(texts.items())}
    made = Made(
        folder / ROWS, {role: len(lines) for role, lines in sorted(texts.items())},
        len({row["order"][0] for row in rows}), funnel,
    )  # fmt: skip
    asked = SynthesisSettings.of(origin.run)
    manifest = {
        "format": FORMAT,
        "version": __version__,
        "recipe": origin.run.name,
        **origin.of_rows(),
        "asked": {key: getattr(asked, key) for key in ("tasks", "attempts", "per_task", "balance")},
        "settings": [*filters],
        "funnel": [{**asdict(one), "kept": one.kept} for one in funnel],
        "episodes": made.episodes,
        "rows": made.rows,
        "files": {name: hashlib.sha256(content).hexdigest() for name, content in files.items()},
    }
    with atomic.new_folder(made.path) as draft:
        for name, content in files.items():
            (draft / name).write_bytes(content)
        (draft / MANIFEST).write_text(json.dumps(manifest, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return made


def settings_of(part: FilterPart) -> dict[str, object]:
    """A filter with its thresholds, as a recipe has it."""
    return part.model_dump(mode="json")
