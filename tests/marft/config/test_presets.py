"""Every number of every preset, written down with its source: whatever changes is named.

``tests/presets.json`` holds ``[value, source]`` by key: what all presets have unless they say otherwise, then each
preset's own, with every field of its credit, objective and schedule. After a change that is meant, write it anew with
``python -m tests.marft.config.test_presets`` and read the difference.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from marft.config.algorithm import (
    AlgorithmSettings,
    CriticSettings,
    KLSettings,
    OptimizerSettings,
    RewardSettings,
    SamplerCorrectionSettings,
    TeammateTextSettings,
)
from marft.config.algorithms import DESCRIPTIONS, OWN_CHOICE, PRESETS, SOURCES, find_source
from tests.sources import TESTS

SNAPSHOT = TESTS / "presets.json"
PLUGINS = ("credit.", "objective.", "schedule.")
TABLES = {
    "optimizer": OptimizerSettings, "critic": CriticSettings, "kl": KLSettings, "reward": RewardSettings,
    "sampler_correction": SamplerCorrectionSettings, "teammate_text": TeammateTextSettings,
}  # fmt: skip
Entries = dict[str, list[Any]]


def flatten(table: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """Nested tables as one, with dotted keys."""
    flattened: dict[str, object] = {}
    for key, value in table.items():
        flattened |= flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flattened


def resolved(name: str) -> dict[str, Any]:
    """Every setting of a preset, as a recipe that names it alone gets it, but for its own name."""
    values = AlgorithmSettings.model_validate({"name": name}).model_dump(mode="json", exclude={"name", "complete_from"})
    return flatten(values)


def snapshot() -> dict[str, Any]:
    """What the code says now."""
    fields = AlgorithmSettings.model_fields
    defaults = {key: field.default for key, field in fields.items() if not field.is_required() and key not in TABLES}
    defaults |= flatten({key: table().model_dump(mode="json") for key, table in TABLES.items()})
    del defaults["name"]
    presets: dict[str, Entries] = {}
    for name in PRESETS:
        values = resolved(name)
        assert set(defaults) <= set(values)
        presets[name] = {
            key: [value, find_source(name, key)]
            for key, value in values.items()
            if key.startswith(PLUGINS) or value != defaults.get(key) or find_source(name, key) != OWN_CHOICE
        }
    return {"defaults": {key: [value, OWN_CHOICE] for key, value in defaults.items()}, "presets": presets}


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_a_preset_is_what_was_written_down(name: str) -> None:
    """All of it: what the snapshot does not name has the default that the snapshot names."""
    kept = json.loads(SNAPSHOT.read_text(encoding="utf-8"))
    written = {**kept["defaults"], **kept["presets"][name]}
    values = resolved(name)
    changed = [
        f"{name}: {key} = {values.get(key, 'nothing')}, but {written.get(key, ['nothing'])[0]} was written down"
        for key in sorted({*values, *written})
        if key not in values or key not in written or values[key] != written[key][0]
    ]
    assert not changed, "\n".join(changed)
    assert {key: find_source(name, key) for key in values} == {key: source for key, (_, source) in written.items()}


def test_nothing_is_written_down_that_is_gone() -> None:
    kept = json.loads(SNAPSHOT.read_text(encoding="utf-8"))
    assert list(kept["presets"]) == list(PRESETS) == list(DESCRIPTIONS) == list(SOURCES)


def test_sources_are_of_settings_that_exist() -> None:
    assert [(name, key) for name, keys in SOURCES.items() for key in keys if key not in resolved(name)] == []


def test_the_papers_tables_differ_in_entropy_alone() -> None:
    tables = [resolved(f"marft-paper-table{number}") for number in (3, 4, 5)]
    assert [table.pop("entropy_coefficient") for table in tables] == [0.1, 0.0, 0.01]
    assert len({json.dumps(table) for table in tables}) == 1


def _lines(snapshot: dict[str, Any]) -> str:
    """One line a setting."""

    def block(entries: Entries, indent: str) -> str:
        rows = [f"{indent}{json.dumps(key)}: {json.dumps(e, ensure_ascii=False)}" for key, e in entries.items()]
        return ",\n".join(rows)

    presets = [f'    "{name}": {{\n{block(entries, " " * 6)}\n    }}' for name, entries in snapshot["presets"].items()]
    defaults = block(snapshot["defaults"], " " * 4)
    joined = ",\n".join(presets)
    return f'{{\n  "defaults": {{\n{defaults}\n  }},\n  "presets": {{\n{joined}\n  }}\n}}\n'


if __name__ == "__main__":
    SNAPSHOT.write_text(_lines(snapshot()), encoding="utf-8")
