"""Files of a cold start: imitation rows per role, and a manifest of sources and rejections, written atomically."""

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
    """Source of imitation rows.

    Args:
        run: settings of the run.
        teacher: description of the teacher.
        parts: stages of the filter funnel, all passed by every row.
    """

    run: RunSettings
    teacher: Mapping[str, object]
    parts: Sequence[str]

    def of_rows(self) -> dict[str, object]:
        """Return the source fields of each row."""
        asked = SynthesisSettings.of(self.run)
        return {"split": asked.split, "seed": self.run.seed, "teacher": dict(self.teacher), "filters": [*self.parts]}


@dataclass(frozen=True, slots=True)
class Made:
    """Result of a synthesis.

    Args:
        path: folder of the rows.
        rows: number of rows, by role.
        episodes: number of episodes behind the rows.
        funnel: rejections of each stage.
    """

    path: Path
    rows: Mapping[str, int]
    episodes: int
    funnel: Sequence[Passage]


def write_rows(
    folder: Path, rows: Sequence[Mapping[str, Any]], origin: Origin, filters: Sequence[Mapping[str, object]],
    funnel: Sequence[Passage],
) -> Made:  # fmt: skip
    """Write rows and manifest, and replace earlier files.

    Args:
        folder: run folder.
        rows: imitation rows.
        origin: source of the rows.
        filters: settings of each filter.
        funnel: rejections of each stage.
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
    """Return a filter's settings as in a recipe."""
    return part.model_dump(mode="json")
