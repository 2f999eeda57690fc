"""Plant small faults one at a time and see whether a test fails: mutation testing of what must be right.

    python tools/mutants/run.py                          # all; goes on where it stopped
    python tools/mutants/run.py --only learning/credit   # a regular expression over files, functions and lines
    python tools/mutants/run.py --area flows             # one area of mutants.toml; may be repeated
    python tools/mutants/run.py --sample                 # a fixed sample, from scratch: what CI runs

Survivors are killed with a test that reads as a claim, or listed in survivors.toml with the reason. A survivor that is
not listed, and an entry that names no mutant any more, fail the run.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from forks import Ending
from ledger import (
    NOT_STARTED,
    Area,
    Outcome,
    Project,
    Results,
    Survivors,
    as_entries,
    function_of,
    read_killers,
    write_killers,
)
from mutation import Mutant
from warm import Limits, Seen, look, meet_in_place, meet_on_import, warm_up

OWN_AT_A_TIME = 8  # tests called as the file is, to one of each other kind: they are cheap, and written for it
TRACED = 4.0  # how many times as long a test may take whose lines are looked at


class Selection:
    """Which tests a mutant meets: those that run its line; of what runs on import, all in a file in which one reads the
    module, whichever happened to import it. First the ones that have killed others of its function; then by turns those
    that have killed others of its file, those that are called as it is, those that run most of its file, and what is
    fast and to the point: a test of the part before a test of the whole."""

    def __init__(self, seen: dict[str, Seen], killers: dict[str, Counter[str]], budget: float) -> None:
        self.seen, self.killers, self.budget = seen, killers, budget
        self.running: defaultdict[tuple[str, int], set[str]] = defaultdict(set)
        self.reading: defaultdict[str, set[str]] = defaultdict(set)
        self.price: dict[str, float] = {}
        self.of_files: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for function, counts in killers.items():
            self.of_files[function.partition(":")[0]].update(counts)
        for test, one in seen.items():
            self.price[test] = (0.01 + one.seconds) * sum(map(len, one.lines.values()))
            for file, lines in one.lines.items():
                self.reading[file].add(test)
                for line in lines:
                    self.running[file, line].add(test)

    def __call__(self, mutant: Mutant) -> list[str]:
        lines = mutant.lines if mutant.function else ()
        tests = set().union(*(self.running.get((mutant.file, line), ()) for line in lines))
        tests = tests or self._reading(mutant.file)
        kills, beside = self.killers[function_of(mutant)], self.of_files[mutant.file]
        by_price = sorted(tests or self.seen, key=lambda test: (self.price[test], test))
        turn = {test: turn for turn, test in enumerate(by_price)}
        others = sorted((test for test in by_price if beside[test]), key=lambda test: -beside[test])
        called = f"test_{Path(mutant.file).stem}"
        own = [test for test in by_price if Path(test.partition("::")[0]).name.startswith(called)]
        broad = sorted(by_price, key=lambda test: -len(self.seen[test].lines.get(mutant.file, ())))
        for some, at_a_time in ((others, 1), (own, OWN_AT_A_TIME), (broad, 1)):
            for rank, test in enumerate(some):
                turn[test] = min(turn[test], rank // at_a_time)
        chosen: list[str] = []
        total = 0.0
        for test in sorted(by_price, key=lambda test: (-kills[test], turn[test])):
            seconds = self.seen[test].seconds
            if not chosen or total + seconds <= self.budget:  # a long test leaves room for shorter ones after it
                chosen.append(test)
                total += seconds
        return chosen

    def _reading(self, source: str) -> set[str]:
        files = {test.partition("::")[0] for test in self.reading.get(source, ())}
        return {test for test in self.seen if test.partition("::")[0] in files}


class Progress:
    """Keeps what has come of each mutant, and says now and then how many and how long the rest will take."""

    def __init__(self, results: Results, killers: dict[str, Counter[str]], count: int) -> None:
        self.results, self.killers, self.count = results, killers, count
        self.tally = Counter[str]()
        self.began = self.shown = time.monotonic()

    def add(self, ending: Ending[Mutant]) -> None:
        outcome, by = _judged(ending)
        self.results.add(ending.task, outcome, by, ending.seconds)
        self.tally[outcome] += 1
        if outcome == "killed":
            self.killers[function_of(ending.task)][by] += 1
        if outcome == "survived":
            print(f"survived: {ending.task.name}", flush=True)
        now, done = time.monotonic(), self.tally.total()
        if now - self.shown > 10 or done == self.count:
            self.shown = now
            left = (now - self.began) / done * (self.count - done) / 60
            parts = ", ".join(f"{n} {what}" for what, n in sorted(self.tally.items()))
            print(f"{done} of {self.count}: {parts}; about {left:.0f} min left", flush=True)


def _judged(ending: Ending[Mutant]) -> tuple[Outcome, str]:
    if ending.hung:
        return "timed out", ""
    by = json.loads(ending.said)["by"] if ending.said else NOT_STARTED
    return ("killed", by) if by else ("survived", "")


def apart(do: Callable[[], object]) -> None:
    """Do something in a fork, so that this process stays one that has imported nothing of the project.

    Raises:
        SystemExit: it has failed, and has said why.
    """
    sys.stdout.flush()
    process = os.fork()
    if process == 0:
        code = 1
        try:
            do()
            code = 0
        finally:
            if code:
                traceback.print_exc()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    try:
        failed = os.waitpid(process, 0)[1]
    except BaseException:  # ended from outside: then so is the fork, which ends those that it has started
        os.kill(process, signal.SIGTERM)
        raise
    if failed:
        raise SystemExit(1)


def meet(
    project: Project, options: Sequence[str], mutants: Sequence[Mutant], select: Selection, results: Results, jobs: int
) -> None:  # fmt: skip
    """Let every mutant meet its tests.

    Args:
        options: of pytest.
    """
    limits = Limits({test: one.seconds for test, one in select.seen.items()}, project.spare, project.patience)
    progress = Progress(results, select.killers, len(mutants))
    in_place = [mutant for mutant in mutants if mutant.function]
    files = sorted({test.partition("::")[0] for mutant in in_place for test in select(mutant)})
    if in_place:
        apart(lambda: meet_in_place(
            options, in_place, select, limits, files, jobs, progress.add
        ))  # fmt: skip
    results.reload()
    left = [mutant for mutant in mutants if results.known(mutant) is None]
    progress = Progress(results, select.killers, len(left))
    for ending in meet_on_import(options, left, select, limits, jobs):
        progress.add(ending)


def looked_at(
    project: Project, area: Area, results: Results, killers: dict[str, Counter[str]], jobs: int
) -> Selection:  # fmt: skip
    """What the tests of an area do without a mutant. Looked at again are files of tests that have changed, or that run
    a file which has, and all where the area has other sources."""
    kept = project.results / f"seen-{area.name}.json"
    kept.parent.mkdir(parents=True, exist_ok=True)
    table = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}
    if table.pop("sources", None) != area.sources:
        table = {}
    changed = [
        file for file in area.tests
        if file not in table or any(results.digest(of) != digest for of, digest in table[file]["digests"].items())
    ]  # fmt: skip
    sources = {str(project.root / file): file for file in area.sources}
    patience = TRACED * project.patience
    looking = look([*project.options, *area.options], [[file] for file in changed], sources, jobs, patience)
    for number, ((file,), seen) in enumerate(looking, 1):
        run = sorted({source for one in seen.values() for source in one.lines})
        digests = {of: results.digest(of) for of in (file, *run)}
        table[file] = {"digests": digests, "tests": {test: vars(one) for test, one in seen.items()}}
        kept.write_text(json.dumps({"sources": area.sources, **table}), encoding="utf-8")
        print(f"looked at the tests without a mutant: {number} of {len(changed)} files, {file}", flush=True)
    found = {test: Seen(**one) for file in area.tests for test, one in table[file]["tests"].items()}
    return Selection(found, killers, project.budget)


def run_all(project: Project, wanted: list[Mutant], survivors: Survivors, options: argparse.Namespace) -> Results:
    """Every mutant whose outcome is not known yet; those that may survive only if asked for."""
    results = Results(project, project.results / "results.jsonl")
    if options.fresh:
        results.path.unlink(missing_ok=True)
        results.reload()
    todo = [
        mutant for mutant in wanted
        if results.known(mutant) is None and (options.recheck or mutant.name not in survivors.kinds)
    ]  # fmt: skip
    print(f"{len(wanted)} mutants, {len(todo)} to do", flush=True)
    if todo:
        warm_up(project.root, project.warm, project.environment)
        killers = counted(read_killers(project.home / "killers.json"))
        for function, counts in results.killers().items():
            killers[function].update(counts)
        for area in project.areas:
            if mine := [mutant for mutant in todo if mutant.file in area.sources]:
                print(f"{area.name}: {len(mine)} mutants to do", flush=True)
                select = looked_at(project, area, results, killers, options.jobs)
                meet(project, [*project.options, *area.options], mine, select, results, options.jobs)
    if options.remember:
        everything, killers = project.mutants(), results.killers()
        known = killers.keys() | read_killers(project.home / "killers.json").keys()
        sample = sample_of(project, (mutant for mutant in everything if function_of(mutant) in known), survivors)
        needed = [found for mutant in sample if (found := results.known(mutant)) and found.by]
        functions = {function_of(mutant) for mutant in everything}
        write_killers(project.home / "killers.json", killers, functions, needed)
    return results


def sample_of(project: Project, mutants: Iterable[Mutant], survivors: Survivors) -> list[Mutant]:
    """The fixed sample: the mutants whose names have the smallest digests, but for those that may survive."""
    known = [mutant for mutant in mutants if mutant.name not in survivors.kinds]
    return sorted(known, key=lambda mutant: hashlib.sha256(mutant.name.encode()).digest())[: project.sample]


def run_sample(project: Project, wanted: list[Mutant], survivors: Survivors, options: argparse.Namespace) -> Results:
    """A fixed sample, which ``wanted`` becomes, of the functions of which it is known what kills their mutants. They
    meet those tests, then those that are known for their files."""
    hints = read_killers(project.home / "killers.json")
    if not hints:
        raise SystemExit(
            "killers.json: nothing is known yet of which tests to begin with; run all with --remember first"
        )
    wanted[:] = sample_of(project, (mutant for mutant in wanted if function_of(mutant) in hints), survivors)
    killers = counted(hints)
    tests = sorted({test for mutant in wanted for test in hints[function_of(mutant)]})
    warm_up(project.root, project.warm, project.environment)
    parts = [tests[first :: options.jobs] for first in range(min(options.jobs, len(tests)))]
    patience = TRACED * project.patience  # other work goes on beside it, and a test that is waited for says nothing
    seen = {t: one for _, some in look(project.options, parts, {}, options.jobs, patience) for t, one in some.items()}
    for function, names in hints.items():
        for test in names:
            if test in seen:
                seen[test].lines[function.partition(":")[0]] = []
    results = Results(project, Path(tempfile.mkdtemp()) / "results.jsonl")
    meet(project, project.options, wanted, Selection(seen, killers, project.budget), results, options.jobs)
    return results


def counted(hints: dict[str, list[str]]) -> dict[str, Counter[str]]:
    """As if each test that is known for a function had killed one mutant of it less than the one before."""
    ranks = {name: {test: len(tests) - place for place, test in enumerate(tests)} for name, tests in hints.items()}
    return defaultdict(Counter, {name: Counter(rank) for name, rank in ranks.items()})


def report(project: Project, wanted: Sequence[Mutant], survivors: Survivors, results: Results) -> bool:
    """Print what has come of the mutants of each file → whether nothing is left to be done."""
    outcomes = {mutant.name: known.outcome for mutant in wanted if (known := results.known(mutant))}
    rows: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for mutant in wanted:
        kind = survivors.kinds.get(mutant.name)
        outcome = outcomes.get(mutant.name)
        what = kind if kind and outcome in (None, "survived") else outcome or "not done"
        rows[mutant.file][what] += 1
        rows["all"][what] += 1
    columns = ("killed", "timed out", "survived", "equivalent", "accepted", "not done")
    print(f"{'':48}{''.join(f'{column:>12}' for column in columns)}{'held':>9}")
    for file, row in rows.items():
        held, changing = row["killed"] + row["timed out"], row.total() - row["equivalent"] - row["not done"]
        share = f"{held / changing:9.1%}" if changing else ""
        print(f"{file:48}{''.join(f'{row[column]:12}' for column in columns)}{share}")
    left = [
        mutant for mutant in wanted if outcomes.get(mutant.name) == "survived" and mutant.name not in survivors.kinds
    ]
    for mutant in left:
        print(f"{mutant.file}:{mutant.lineno}: survived: {mutant.change}   in   {mutant.line}")
    needless = [name for name in survivors.kinds if outcomes.get(name) in ("killed", "timed out")]
    for name in needless:
        print(f"listed as a survivor, and killed: {name}")
    if left:
        project.results.mkdir(parents=True, exist_ok=True)
        (project.results / "survivors.toml").write_text(as_entries(left), encoding="utf-8")
        print(f"kill them with a test, or list them with the reason: {project.results / 'survivors.toml'}")
    return not left and not needless and not rows["all"]["not done"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, default=Path(__file__).parent / "mutants.toml")
    parser.add_argument("--only", default="", help="mutants whose name matches this regular expression")
    parser.add_argument("--area", action="append", default=[], help="mutants of this area; may be given several times")
    parser.add_argument("--sample", action="store_true", help="a fixed sample, from scratch")
    parser.add_argument("--recheck", action="store_true", help="run those too that may survive")
    parser.add_argument("--fresh", action="store_true", help="forget the results of earlier runs")
    parser.add_argument("--remember", action="store_true", help="keep in killers.json which tests killed what")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    project = Project.read(options.config.resolve())
    survivors = Survivors(project.home / "survivors.toml")
    everything = project.mutants()
    unknown = sorted(set(options.area) - {area.name for area in project.areas})
    if unknown:
        parser.error(f"mutants.toml has no area {', '.join(unknown)}: {', '.join(area.name for area in project.areas)}")
    files = {file for area in project.areas if area.name in (options.area or [area.name]) for file in area.sources}
    wanted = [mutant for mutant in everything if mutant.file in files and re.search(options.only, mutant.name)]
    stale = survivors.stale(everything)
    results = (run_sample if options.sample else run_all)(project, wanted, survivors, options)
    complete = report(project, wanted, survivors, results)
    for name in stale:
        print(f"survivors.toml names a mutant that there is none of any more: {name}")
    sys.exit(0 if complete and not stale else 1)


if __name__ == "__main__":
    main()
