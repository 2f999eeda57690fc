"""Mutated recipes: what is asked of them all, and ten thousand of them by hand.

python -m tests.fuzzing              # 10,000; or a number, and a first seed
"""

from __future__ import annotations

import copy
import random
import re
import signal
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from types import FrameType
from typing import Any

import tomli_w

from marft.common.errors import UserError
from marft.common.packages import bundled_plugins
from marft.config import RunSettings, load_recipe, parse_recipe, to_toml
from marft.config.algorithms import PRESETS
from marft.config.bundled import bundled_names, bundled_recipe
from tests.helpers import recipe

ROOT = Path(__file__).parents[1]
SECONDS = 5  # for one recipe, on a busy machine
JARGON = re.compile(r"pydantic|Traceback|validation error|input_value|value_error|errors\.pydantic\.dev", re.IGNORECASE)
EXTREMES: list[Any] = [
    0, -1, 1, 2**31, 2**63, -(2**63), 10**30, 10**400, 0.0, -0.0, 1e-300, 5e-324, 1e308, -1e308, float("nan"),
    float("inf"), -float("inf"), True, False, "", " ", "\0", "\x1b[31mred\x1b[0m", "\r\n", "\t", "[bold]x[/bold]", "ü",
    "日本語", "\u202eright to left", "\ud83d", "x" * 5000, "../../etc/passwd", "/", ".", "..", "nan", "1", "true",
    "'''", '"""', "\\", "{x}", "{", "%s", [], {}, [[]], [{}], {"": ""}, {"name": "x"}, [1, "a"], ["", ""], ["a", "a"],
    None, date(2026, 1, 2), 1.5, [1.0, -1.0], [0, 0], {"organization": "chain"}, {"name": "function", "call": "os:system"},
    "os:getcwd", "marft.config.plugins:Plugin", "tests.plugins:Reversed", "(a+)+$", "(", "x" * 200 + "\n",
]  # fmt: skip


OURS = {  # in place of what the docs only name
    "my_package.weather:look_up": "tests.fuzzing:look_up",
    "my_package.notes:Notebook": "tests.fuzzing:Notebook",
    "my_package.rewards:brevity": "tests.fuzzing:brevity",
    "my_package.team:solve": "tests.fuzzing:solve",
    "/opt/theirs/bin/python": sys.executable,
    "problems.jsonl": "problems",
    "network.json": str(Path(__file__).parent / "flow_network.json"),
}
SHOWN = (  # pages with recipes, or parts of one
    "README.md",
    *(f"docs/{page}.md" for page in ("recipes", "environments", "teams", "gateway", "tools", "rewards", "algorithms")),
)
NEEDED: dict[str, dict[str, Any]] = {  # keys without a default, and roles of the recipe in tests
    "flow": {"network": str(Path(__file__).parent / "flow_network.json")},
    "graph": {"visible": {"actor": ["reasoner"]}},
    "hierarchical": {"planner": "reasoner", "workers": ["actor"]},
    "orchestrated": {"router": "reasoner"},
    "program": {"call": "tests.fuzzing:solve", "idle_timeout_seconds": 5.0},
    "reflective": {"actor": "actor", "critic": "reasoner", "reviser": "actor"},
    "record": {"fields": {"state": "leaving (.+)"}},
    "format": {"pattern": "a+", "agents": ["actor"], "clip": [0.0, 1.0]},
    "function": {"call": "tests.fuzzing:brevity", "weight": 0.5},
    "judge": {"endpoint": {"url": "http://127.0.0.1:8000/v1", "extra_body": {"a": [1, {"b": 2.0}]}}, "model": "m"},
}


def look_up(city: str, days: int = 1) -> str:
    """A tool."""
    return f"{city}: {days}"


def solve(task: Any, clients: Any) -> str:
    """A team."""
    return f"{task.id}: {len(clients)}"


def brevity(episode: Any) -> float:
    """A reward."""
    return -float(len(episode.actions))


class Notebook:
    """Tools with a state."""

    def __init__(self, task: Any, seed: int) -> None:
        self.lines: list[str] = []

    def write(self, line: str) -> str:
        self.lines.append(line)
        return "noted"


def shown_everywhere() -> Iterator[dict[str, Any]]:
    """Every recipe that ships or stands in the docs, whole enough to be read."""
    for name in bundled_names():
        yield {"name": name, **tomllib.loads(bundled_recipe(name).read_text(encoding="utf-8"))}
    for page in SHOWN:
        for block in (ROOT / page).read_text(encoding="utf-8").split("```toml\n")[1:]:
            for theirs, ours in OURS.items():
                block = block.replace(theirs, ours)
            yield {**recipe(), **tomllib.loads(block.split("```")[0])}
    for name in PRESETS:
        yield recipe(algorithm={"name": name}, training={"steps": 9})
    for name in bundled_plugins("organizations"):
        yield recipe(team={"organization": name, **NEEDED.get(name, {})})
    for name in bundled_plugins("channels"):
        yield recipe(channel={"name": name, **NEEDED.get(name, {})})
    yield recipe(rewards=[{"name": name, **NEEDED.get(name, {})} for name in bundled_plugins("rewards")])
    yield complete(recipe())


def complete(table: dict[str, Any]) -> dict[str, Any]:
    """With every key that there is, as a run's folder has it."""
    return tomllib.loads(to_toml(parse_recipe(table)))


def places(table: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Paths to everything in a recipe."""
    inner = table.items() if isinstance(table, dict) else enumerate(table) if isinstance(table, list) else ()
    for key, value in inner:
        yield (*path, key)
        yield from places(value, (*path, key))


def mutated(table: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    """The recipe after one to four changes, most of them for the worse."""
    table = copy.deepcopy(table)
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        everywhere = list(places(table))
        if not everywhere:
            return table
        path = chance.choice(everywhere)
        owner: Any = table
        for key in path[:-1]:
            owner = owner[key]
        _change(owner, path[-1], table, everywhere, chance)
    return table


def _change(owner: Any, key: Any, table: Any, everywhere: list[Any], chance: random.Random) -> None:
    value = owner[key]
    how = chance.choice(("extreme", "extreme", "extreme", "drop", "rename", "double", "wrap", "swap", "deep", "scale"))
    if how == "extreme":
        owner[key] = copy.deepcopy(chance.choice(EXTREMES))
    elif how == "drop":
        del owner[key]
    elif how == "rename" and isinstance(owner, dict):
        owner[chance.choice((f"{key}x", str(key)[:-1], str(key).upper(), "\x1b[2J", "ключ", f"{key}.{key}"))] = (
            owner.pop(key)
        )
    elif how == "double" and isinstance(owner, list):
        owner.append(copy.deepcopy(value))
    elif how == "double":
        owner[f"{key}_2"] = copy.deepcopy(value)
    elif how == "wrap":
        owner[key] = chance.choice(([value], {"value": value}, str(value), [value, value]))
    elif how == "swap":
        other: Any = table
        for step in chance.choice(everywhere):
            other = other[step]
        owner[key] = copy.deepcopy(other)
    elif how == "deep":
        for _ in range(chance.choice((3, 40, 150, 400))):
            value = [value] if chance.random() < 0.5 else {"a": value}
        owner[key] = value
    elif isinstance(value, int | float) and not isinstance(value, bool):
        owner[key] = value * chance.choice((-1, 0, 0.5, 1000, 10**9))


@contextmanager
def in_time() -> Iterator[None]:
    """Raises: TimeoutError: it took over ``SECONDS`` seconds of processor time."""

    def late(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"took over {SECONDS} s")

    before = signal.signal(signal.SIGVTALRM, late)
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def judged(table: dict[str, Any], overrides: list[str], folder: Path) -> str:
    """``refused`` or ``accepted``, where the one or the other is as it should be.

    Raises:
        AssertionError: a refusal that nobody can read, or a run that cannot be written down and read again.
    """
    told = None
    try:
        with in_time():
            run = _read(table, overrides, folder)
    except ValueError as error:
        told = (type(error), str(error))
    if told:
        kind, text = told
        assert kind is UserError, f"{kind.__name__}: {text}"
        assert text.strip(), "an empty message"
        assert not JARGON.search(text), text[:2000]
        assert len(text) < 100_000, f"a message of {len(text)} characters"
        return "refused"
    assert parse_recipe(tomllib.loads(to_toml(run))) == run, "it reads back as another run"
    return "accepted"


def _read(table: dict[str, Any], overrides: list[str], folder: Path) -> RunSettings:
    """By way of a file where TOML can hold it, else directly."""
    try:
        text = tomli_w.dumps(table).encode()
    except (TypeError, ValueError, RecursionError):
        return parse_recipe(table, overrides)
    path = folder / "mutated.toml"
    path.write_bytes(text)
    return load_recipe(path, overrides)


def one(seed: int, originals: list[dict[str, Any]]) -> tuple[dict[str, Any], list[str]]:
    """The recipe of a seed, and what the command line says beside it."""
    chance = random.Random(seed)
    original = chance.choice(originals)
    if chance.random() < 0.8:
        return mutated(original, chance), []
    key = ".".join(map(str, chance.choice(list(places(original)))))
    text = chance.choice([str(chance.choice(EXTREMES)), "[" * 5000, "9" * 5000, "{ a = 1", "1\nx = 2", ""])
    return original, chance.choice(([f"--{key}", text], [f"--{key}={text}"], [f"--{key}.{text[:20]}", text], [key]))


def main() -> None:
    import tempfile
    import time
    import traceback

    count, first = (
        (int(word) for word in [*sys.argv[1:], "10000", "0"][:2]) if len(sys.argv) != 2 else (int(sys.argv[1]), 0)
    )
    originals, outcomes, faults = list(shown_everywhere()), Counter[str](), Counter[str]()
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(first, first + count):
            try:
                outcomes[judged(*one(seed, originals), Path(folder))] += 1
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt):
                    raise
                outcomes["fault"] += 1
                kind = f"{type(error).__name__}: {str(error)[:160]}"
                faults[kind] += 1
                if faults[kind] == 1:
                    print(f"seed {seed}: {kind}\n    {traceback.format_exc(limit=-2)[:1500]!r}")
    print(dict(outcomes), f"in {time.perf_counter() - began:.0f} s, {len(originals)} originals")
    for kind, number in faults.most_common(30):
        print(number, kind)


if __name__ == "__main__":
    main()
