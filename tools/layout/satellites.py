"""Write the file that tells the core which extra installs what: ``python tools/layout/satellites.py``.

It reads ``packages/*/pyproject.toml`` and the folders of recipes and models. A name is installed by the extra of its
own name where its distribution has one, by the extra that ``[tool.marft.extras]`` of the distribution gives it, or by
the distribution's own extra of the core (``marft-lab``: ``lab``).
"""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
TARGET = ROOT / "packages/marft/src/marft/common/packages.json"
CORE = "marft"


def projects() -> dict[str, dict[str, Any]]:
    """Return the tables of each distribution's ``pyproject.toml``, by its name."""
    files = sorted(ROOT.glob("packages/*/pyproject.toml"))
    tables = [tomllib.loads(file.read_text(encoding="utf-8")) for file in files]
    return {table["project"]["name"]: table for table in tables}


def satellites() -> dict[str, Any]:
    """Return what the file should hold."""
    tables = projects()
    names: dict[str, dict[str, str]] = {}
    for distribution, table in tables.items():
        if distribution == CORE:
            continue
        own = table["project"].get("optional-dependencies", {})
        given = table.get("tool", {}).get("marft", {}).get("extras", {})
        for group, points in table["project"]["entry-points"].items():
            kind = group.removeprefix("marft.")
            for name in points:
                otherwise = name if name in own else distribution.removeprefix(f"{CORE}-")
                names.setdefault(kind, {})[name] = given.get(f"{kind}.{name}", otherwise)
        names.pop("resources", None)
        source = ROOT / "packages" / distribution / "src" / distribution.replace("-", "_")
        extra = distribution.removeprefix(f"{CORE}-")
        for file in source.glob("recipes/*.toml"):
            names.setdefault("recipes", {})[file.stem] = extra
        for file in source.glob("models/*/config.json"):
            names.setdefault("models", {})[file.parent.name.replace("_", "-")] = extra
    extras = {
        extra: _ours(needs) or [f"{CORE}[{extra}]"]
        for extra, needs in tables[CORE]["project"]["optional-dependencies"].items()
    }
    return {
        "import_names": {distribution: distribution.replace("-", "_") for distribution in tables},
        "extras": extras,
        "plugin_extras": names,
    }


def _ours(needs: list[str]) -> list[str]:
    """Return the requirements on this project's distributions, without their versions; none where no satellite is."""
    found = [need.partition("==")[0] for need in needs if re.match(rf"{CORE}\b", need)]
    return found if any(need.startswith(f"{CORE}-") for need in found) else []


def main() -> None:
    """Write the file."""
    TARGET.write_text(json.dumps(satellites(), indent=1, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
