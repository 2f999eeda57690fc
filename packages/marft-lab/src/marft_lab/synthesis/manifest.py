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
from marft.config.plugin_types import FilterPart
from marft.config.run import RunSettings
from marft_lab.synthesis.filtering import FilterCounts
from marft_lab.synthesis.settings import SynthesisSettings
from marft_serve.traces.rows import MANIFEST, ROWS_FOLDER

FORMAT = "rows of MARFT, 1"


@dataclass(frozen=True, slots=True, eq=False)
class RowSource:
    """Source of imitation rows.

    Args:
        run: settings of the run.
        teacher: description of the teacher.
        parts: stages of the filter funnel, all passed by every row.
    """

    run: RunSettings
    teacher: Mapping[str, object]
    parts: Sequence[str]

    def row_fields(self) -> dict[str, object]:
        """Return the source fields of each row."""
        settings = SynthesisSettings.from_run(self.run)
        return {"split": settings.split, "seed": self.run.seed, "teacher": dict(self.teacher), "filters": [*self.parts]}


@dataclass(frozen=True, slots=True)
class SynthesisResult:
    """Result of a synthesis.

    Args:
        path: folder of the rows.
        rows: number of rows, by role.
        episodes: number of episodes behind the rows.
        stages: rejections of each stage.
    """

    path: Path
    rows: Mapping[str, int]
    episodes: int
    stages: Sequence[FilterCounts]


def write_rows(
    folder: Path,
    rows: Sequence[Mapping[str, Any]],
    origin: RowSource,
    filters: Sequence[Mapping[str, object]],
    stages: Sequence[FilterCounts],
) -> SynthesisResult:
    """Write rows and manifest, and replace earlier files.

    Args:
        folder: run folder.
        rows: imitation rows.
        origin: source of the rows.
        filters: settings of each filter.
        stages: rejections of each stage.
    """
    texts: dict[str, list[str]] = {}
    for row in rows:
        texts.setdefault(str(row["agent"]), []).append(json.dumps(row, ensure_ascii=False) + "\n")
    files = {f"{role}.jsonl": "".join(lines).encode() for role, lines in sorted(texts.items())}
    result = SynthesisResult(
        folder / ROWS_FOLDER,
        {role: len(lines) for role, lines in sorted(texts.items())},
        len({row["order"][0] for row in rows}),
        stages,
    )
    settings = SynthesisSettings.from_run(origin.run)
    manifest = {
        "format": FORMAT,
        "version": __version__,
        "recipe": origin.run.name,
        **origin.row_fields(),
        "asked": {key: getattr(settings, key) for key in ("tasks", "attempts", "max_per_task", "balance_by")},
        "settings": [*filters],
        "funnel": [{**asdict(stage), "kept": stage.kept_count} for stage in stages],
        "episodes": result.episodes,
        "rows": result.rows,
        "files": {name: hashlib.sha256(content).hexdigest() for name, content in files.items()},
    }
    with atomic.new_folder(result.path) as draft:
        for name, content in files.items():
            (draft / name).write_bytes(content)
        (draft / MANIFEST).write_text(json.dumps(manifest, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return result


def filter_settings(part: FilterPart) -> dict[str, object]:
    """Return a filter's settings as in a recipe."""
    return part.model_dump(mode="json")
