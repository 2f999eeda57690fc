"""What is known of mutants: the list of survivors that are allowed, and the results of runs so far."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import tomli_w
from mutation import Mutant, Source

Kind = Literal["equivalent", "accepted"]
Outcome = Literal["killed", "timed out", "survived"]
NOT_STARTED = "(nothing starts)"  # in place of a test's id


@dataclass(frozen=True)
class Area:
    """Source files, and the test files that their mutants meet; both from the root."""

    name: str
    sources: list[str]
    tests: list[str]
    options: list[str]  # of pytest, beside those of the project


@dataclass(frozen=True)
class Project:
    """What is mutated and what it is tested with: ``mutants.toml``."""

    root: Path
    home: Path  # where the lists lie
    areas: list[Area]
    warm: list[str]
    options: list[str]
    environment: dict[str, str]
    sample: int  # mutants
    budget: float  # seconds of tests that a mutant may meet
    spare: float  # seconds of processor time that any test may take with a mutant
    patience: float  # seconds that one test may take on the wall

    @staticmethod
    def read(path: Path) -> Project:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
        root = (path.parent / table.pop("root")).resolve()
        taken: set[str] = set()
        areas = []
        for row in table.pop("area"):
            found = [str(p.relative_to(root)) for pattern in row["sources"] for p in sorted(root.glob(pattern))]
            sources = [file for file in dict.fromkeys(found) if file not in taken]
            taken.update(sources)
            areas.append(Area(row["name"], sources, _python_files(root, row["tests"]), row.get("options", [])))
        return Project(root=root, home=path.parent, areas=areas, **table)

    @property
    def sources(self) -> list[str]:
        return [file for area in self.areas for file in area.sources]

    def mutants(self) -> list[Mutant]:
        return [mutant for file in self.sources for mutant in Source(self.root, file).mutants]

    def tests_of(self, source: str) -> list[str]:
        """Return the test files that mutants of a source file meet."""
        return next(area.tests for area in self.areas if source in area.sources)

    @property
    def results(self) -> Path:
        return self.root / "build" / "mutants"


def _python_files(root: Path, places: Sequence[str]) -> list[str]:
    """Return the Python files among and below some places, from the root."""
    paths = [root / place for place in places]
    files = [file for path in paths for file in ([path] if path.is_file() else sorted(path.rglob("*.py")))]
    return [str(file.relative_to(root)) for file in files]


class Survivors:
    """``survivors.toml``: mutants that may survive, each with the reason.

    ``equivalent`` ones change nothing that anybody could see; ``accepted`` ones do, and no test holds them.

    Raises:
        ValueError: an entry has no reason or another kind.
    """

    def __init__(self, path: Path) -> None:
        self.kinds: dict[str, Kind] = {}
        entries = tomllib.loads(path.read_text(encoding="utf-8")).get("survivor", []) if path.exists() else []
        for entry in entries:
            if entry["kind"] not in ("equivalent", "accepted") or not entry["reason"].strip():
                raise ValueError(f"{path}: {entry['line']!r} needs a reason, and kind = 'equivalent' or 'accepted'")
            for change in entry["changes"]:
                name = f"{entry['file']} | {entry['function']} | {entry['line']} | {change}"
                self.kinds[name] = entry["kind"]

    def stale(self, mutants: Iterable[Mutant]) -> list[str]:
        """Entries that name no mutant any more."""
        alive = {mutant.name for mutant in mutants}
        return [name for name in self.kinds if name not in alive]


def as_entries(mutants: Iterable[Mutant]) -> str:
    """Mutants in the format of the list, for somebody to kill or to give reasons."""
    lines: defaultdict[tuple[str, str, str], list[str]] = defaultdict(list)
    for mutant in mutants:
        line = mutant.file, mutant.function, mutant.line
        lines[line].append(mutant.name.removeprefix(" | ".join(line) + " | "))  # a line may hold bars of its own
    entries = [
        {"file": file, "function": function, "line": line, "changes": changes, "kind": "", "reason": ""}
        for (file, function, line), changes in lines.items()
    ]
    return tomli_w.dumps({"survivor": entries}, multiline_strings=False)


@dataclass(frozen=True)
class Result:
    name: str
    function: str
    outcome: Outcome
    by: str  # id of the test that failed
    seconds: float
    holds_for: str  # digest of the files on which the outcome rests


class Results:
    """Results of runs so far, one line each. What they rest on is kept with them, so that a run goes on where the last
    one stopped and does again only what has changed since: a killed mutant rests on its own file and the test that
    killed it, one that survived on its own file and all tests of its area.
    """

    def __init__(self, project: Project, path: Path) -> None:
        self.project, self.path = project, path
        self._digests: dict[str, str] = {}
        for file in (*project.sources, *(test for area in project.areas for test in area.tests)):
            self.digest(file)  # as they are now, whatever becomes of them during a run
        self.latest: dict[str, Result] = {}
        self.reload()

    def reload(self) -> None:
        """Read what has been written, by this process or another."""
        self.latest.clear()
        if self.path.exists():
            for line in self.path.read_text(encoding="utf-8").splitlines():
                result = Result(**json.loads(line))
                self.latest[result.name] = result

    def add(self, mutant: Mutant, outcome: Outcome, by: str, seconds: float) -> None:
        result = Result(
            mutant.name, function_of(mutant), outcome, by, round(seconds, 2), self._rests_on(mutant.file, outcome, by)
        )
        self.latest[mutant.name] = result
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(result), ensure_ascii=False) + "\n")

    def known(self, mutant: Mutant) -> Result | None:
        """What came of the mutant, if nothing that this rests on has changed since."""
        found = self.latest.get(mutant.name)
        return found if found and found.holds_for == self._rests_on(mutant.file, found.outcome, found.by) else None

    def killers(self) -> dict[str, Counter[str]]:
        """How often each test has killed mutants of each function."""
        counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for result in self.latest.values():
            if result.outcome == "killed" and result.by != NOT_STARTED:
                counts[result.function][result.by] += 1
        return counts

    def _rests_on(self, source: str, outcome: Outcome, by: str) -> str:
        if outcome == "survived":
            return self.digest(source) + _sha("".join(map(self.digest, self.project.tests_of(source))))
        test = by.partition("::")[0]
        return self.digest(source) + (self.digest(test) if test and by != NOT_STARTED else "")

    def digest(self, file: str) -> str:
        """Of a file's text as it is when first asked for; of none where there is no file."""
        if file not in self._digests:
            path = self.project.root / file
            self._digests[file] = _sha(path.read_text(encoding="utf-8")) if path.exists() else ""
        return self._digests[file]


def function_of(mutant: Mutant) -> str:
    """The mutant's function, as ``file:function``; of what is outside of functions the file."""
    return f"{mutant.file}:{mutant.function}"


def read_killers(path: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found


def write_killers(
    path: Path, killers: Mapping[str, Counter[str]], functions: Collection[str], needed: Sequence[Result] = (),
    each: int = 4,
) -> None:  # fmt: skip
    """Keep for each function the tests that killed most of its mutants, and those that killed the mutants ``needed``: a
    hint about where to begin, no more. Hints stay for those of ``functions`` without results."""
    table = {name: tests for name, tests in read_killers(path).items() if name in functions}
    for name, counts in killers.items():
        ranked = [test for test, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))]
        wanted = {result.by for result in needed if result.function == name}
        table[name] = [test for rank, test in enumerate(ranked) if rank < each or test in wanted]
    table = dict(sorted(table.items()))
    path.write_text(json.dumps(table, indent=0, ensure_ascii=False) + "\n", encoding="utf-8")


def _sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
