"""Mutation testing itself: what is planted, what is reported, what is remembered."""

from __future__ import annotations

import gc
import importlib
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace
from typing import Any

import pytest

from tests.nights import NIGHT
from tests.sources import ROOT

DRIVER = ROOT / "tools" / "mutants" / "run.py"

SUMS = '''
"""Sums."""

LIMIT = 3.0


def total(values: list[float]) -> float:
    """Their sum, no more than the limit."""
    assert values is not None, "values"
    if min(values) < 0:
        raise ValueError("values: " + "negative")
    return min(LIMIT, sum(values))


def countdown(n: int) -> int:
    steps = 0
    while n > 0:
        n -= 1
        steps += 1
    return steps
'''
TESTS = """
import pytest
from sums import countdown, total


def test_total():
    assert total([0.5, 1.5]) == 2.0
    assert total([2.0, 2.0]) == 3.0
    with pytest.raises(ValueError):
        total([-1.0, 1.0])


def test_countdown():
    assert countdown(3) == 3
    assert countdown(0) == 0
"""
SETTINGS = """
root = "."
warm = ["pytest"]
options = ["-o", "pythonpath=src"]
environment = {}
sample = 12
budget = 60.0
patience = 60.0
spare = 0.3

[[area]]
name = "sums"
sources = ["src/*.py"]
tests = ["tests"]
"""
BOUNDARY = ("total", "if min(values) < 0:", "min(values) < 0 → min(values) <= 0")


def planted(folder: Path) -> Path:
    """A project whose tests never add a 0, so that refusing it survives; one of its files of tests holds none."""
    files = {
        "src/sums.py": SUMS, "tests/test_sums.py": TESTS, "tests/conftest.py": "", "mutants.toml": SETTINGS,
        "pytest.ini": "[pytest]\n",
    }  # fmt: skip
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text.lstrip(), encoding="utf-8")
    return folder


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return planted(tmp_path)


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int, str]:
    """The project after a run, and what that said."""
    folder = planted(tmp_path_factory.mktemp("project"))
    return folder, *run(folder, "--remember")


@pytest.fixture
def done(whole_run: tuple[Path, int, str], tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole_run[0], tmp_path / "done"))


def run(project: Path, *options: str) -> tuple[int, str]:
    command = [sys.executable, DRIVER, "--config", project / "mutants.toml", "--jobs", "2", *options]
    environment = {**os.environ, "PYTEST_ADDOPTS": ""}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    return done.returncode, done.stdout + done.stderr


def allow(project: Path, function: str, line: str, change: str, reason: str = "a 0 adds nothing") -> None:
    (project / "survivors.toml").write_text(
        f'[[survivor]]\nfile = "src/sums.py"\nfunction = "{function}"\nline = "{line}"\nchanges = ["{change}"]\n'
        f'kind = "equivalent"\nreason = "{reason}"\n'
    )


@pytest.mark.slow
@pytest.mark.skipif(not NIGHT, reason="make mutants-sample plants by day: make nightly")
def test_a_survivor_is_reported_with_its_place_and_fails_the_run(whole_run: tuple[Path, int, str]) -> None:
    folder, code, printed = whole_run
    assert code == 1
    assert [line for line in printed.splitlines() if line.startswith("survived: ")] == [
        "survived: src/sums.py | " + " | ".join(BOUNDARY)
    ]
    assert "src/sums.py:9: survived: min(values) < 0 → min(values) <= 0" in printed
    assert (folder / "src/sums.py").read_text() == SUMS.lstrip(), "no file is ever written"


@pytest.mark.slow
@pytest.mark.skipif(not NIGHT, reason="make mutants-sample plants by day: make nightly")
def test_a_survivor_that_is_listed_with_a_reason_is_accepted(done: Path) -> None:
    allow(done, *BOUNDARY)
    code, printed = run(done)
    assert code == 0
    assert "100.0%" in printed


@pytest.mark.slow
@pytest.mark.skipif(not NIGHT, reason="make mutants-sample plants by day: make nightly")
@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (("total", "if min(values) < 0:", "min(values) < 0 → min(values) == 0"), "none of any more"),
        (("countdown", "steps = 0", "0 → 1"), "listed as a survivor, and killed"),
    ],
)
def test_a_list_that_is_not_true_fails_the_run(done: Path, entry: tuple[str, str, str], message: str) -> None:
    allow(done, *entry)
    code, printed = run(done, "--recheck")
    assert code == 1
    assert message in printed


def test_an_entry_without_a_reason_is_refused(project: Path) -> None:
    allow(project, *BOUNDARY, reason=" ")
    assert "needs a reason" in run(project)[1]


@pytest.mark.slow
@pytest.mark.skipif(not NIGHT, reason="make mutants-sample plants by day: make nightly")
def test_a_run_goes_on_where_the_last_one_stopped_and_does_again_what_has_changed(done: Path) -> None:
    results = done / "build/mutants/results.jsonl"
    kept = results.read_text().splitlines()
    results.write_text("\n".join(kept[:-2]) + "\n")  # as if it had been ended there
    printed = run(done)[1]
    assert f"{len(kept)} mutants, 2 to do" in printed
    (done / "tests/test_zero.py").write_text(
        "from sums import total\n\n\ndef test_0():\n    assert total([0.0]) == 0.0\n"
    )
    code, printed = run(done)
    assert f"{len(kept)} mutants, 1 to do" in printed, "only what had survived meets the new test"
    assert code == 0
    assert f"{len(kept)} mutants, 0 to do" in run(done)[1]


@pytest.mark.slow
@pytest.mark.skipif(not NIGHT, reason="make mutants-sample plants by day: make nightly")
def test_a_mutant_that_never_ends_is_ended_and_counts_as_found(project: Path) -> None:
    code, printed = run(project, "--only", r"n -= 1 → \(removed\)")
    assert code == 0
    assert "1 timed out" in printed
    assert "100.0%" in printed


@pytest.mark.slow
@pytest.mark.skipif(not NIGHT, reason="make mutants-sample plants by day: make nightly")
def test_what_runs_on_import_is_mutated_too(project: Path) -> None:
    code, printed = run(project, "--only", r"\|  \|")
    assert code == 0
    assert "2 mutants" in printed
    assert "2 killed" in printed


@pytest.mark.slow
@pytest.mark.skipif(not NIGHT, reason="make mutants-sample plants by day: make nightly")
def test_what_runs_on_import_meets_all_tests_of_a_file_whichever_of_them_imports_it(project: Path) -> None:
    (project / "tests/test_sums.py").write_text(
        "def test_it_is_there():\n    import sums\n    assert sums\n\n\n"
        "def test_limit():\n    import sums\n    assert sums.LIMIT == 3.0\n"
    )
    code, printed = run(project, "--only", r"\|  \|")
    assert code == 0, printed
    assert "2 killed" in printed


@pytest.mark.slow
@pytest.mark.skipif(not NIGHT, reason="make mutants-sample plants by day: make nightly")
def test_what_runs_on_import_is_mutated_where_pytest_imports_a_module_for_its_examples(tmp_path: Path) -> None:
    files = {
        "src/pack/__init__.py": '"""Sums."""\n', "src/pack/sums.py": '"""\n>>> True\nTrue\n"""\n\nLIMIT = 3.0\n',
        "tests/test_sums.py": "from pack.sums import LIMIT\n\n\ndef test_limit():\n    assert LIMIT == 3.0\n",
        "mutants.toml": SETTINGS.replace("src/*.py", "src/pack/*.py").replace('["tests"]', '["src/pack/sums.py", "tests"]')
        .replace("options = [", 'options = ["--doctest-modules", "--import-mode=importlib", '),
    }  # fmt: skip
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    code, printed = run(tmp_path)
    assert code == 0, printed
    assert "2 killed" in printed


@pytest.mark.slow
@pytest.mark.skipif(not NIGHT, reason="make mutants-sample plants by day: make nightly")
def test_a_part_of_the_faults_that_is_run_leaves_the_hints_that_the_sample_needs(tmp_path: Path) -> None:
    project = planted(tmp_path)
    (project / "src/sums.py").write_text(
        "def tenfold(n):\n    return [10, 20, 30, 40, 50, 60][n]\n\n\ndef one():\n    return 1\n"
    )
    tests = [f"def test_{n}():\n    assert tenfold({n}) == {10 * n + 10}\n" for n in range(6)]
    text = "\n\n".join(["from sums import one, tenfold\n", *tests, "def test_one():\n    assert one() == 1\n"])
    (project / "tests/test_sums.py").write_text(text)
    (project / "mutants.toml").write_text(SETTINGS.replace("sample = 12", "sample = 1000"))
    assert run(project, "--remember")[0] == 0
    hints = (project / "killers.json").read_text()
    assert all(f"::test_{n}" in hints for n in range(6))
    assert run(project, "--only", "one", "--remember")[0] == 0
    assert (project / "killers.json").read_text() == hints


@pytest.mark.slow
@pytest.mark.skipif(not NIGHT, reason="make mutants-sample plants by day: make nightly")
def test_a_sample_is_the_same_each_time_and_fails_on_a_survivor_outside_the_list(done: Path) -> None:
    settings = done / "mutants.toml"
    settings.write_text(SETTINGS.replace("sample = 12", "sample = 1000"))
    code, printed = run(done, "--sample", "--only", "total")
    assert (code, "survived: src/sums.py" in printed) == (1, True)
    allow(done, *BOUNDARY)
    settings.write_text(SETTINGS.replace("sample = 12", "sample = 4"))
    reports = [run(done, "--sample", "--only", "total") for _ in range(2)]
    assert reports[0][0] == 0
    assert [report.splitlines()[-2:] for _, report in reports] == 2 * [reports[0][1].splitlines()[-2:]]


@pytest.mark.slow
@pytest.mark.skipif(not NIGHT, reason="make mutants-sample plants by day: make nightly")
def test_tests_that_fail_without_a_mutant_are_no_measure_and_say_why(project: Path) -> None:
    (project / "tests/test_broken.py").write_text("def test_broken():\n    assert 1 + 1 == 3\n")
    code, printed = run(project)
    assert code == 1
    assert "fail without any mutant: tests/test_broken.py::test_broken" in printed
    assert "assert (1 + 1) == 3" in printed


@pytest.fixture
def mutants_of(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.syspath_prepend(str(DRIVER.parent))
    from mutation import Source

    def of(text: str) -> list[Any]:
        (tmp_path / "a.py").write_text(dedent(text))
        return Source(tmp_path, "a.py").mutants

    return of


@pytest.mark.parametrize(
    ("line", "changes"),
    [
        ("x = a < b", {"a < b → a <= b"}),
        ("x = a in b", {"a in b → a not in b"}),
        ("x = a - b", {"a - b → a + b", "a - b → a", "a - b → -b"}),
        ("x = -a", {"-a → a"}),
        ("x = 2", {"2 → 3", "2 → 1"}),
        ("x = 0", {"0 → 1"}),
        ("x = 0.5", {"0.5 → 1.0", "0.5 → 0.0"}),
        ("x = 1e-8", {"1e-08 → 0.001"}),
        ("x = True", {"True → False"}),
        ("x = not a", {"not a → a"}),
        ("x = a and b", {"a and b → a or b", "a and b → a", "a and b → b"}),
        ("a.b = c", {"a.b = c → (removed)"}),
        ("a += b", {"a += b → (removed)", "a += b → a -= b"}),
        ("f()", {"f() → (removed)"}),
        ("raise ValueError('a' + b)", {"raise ValueError('a' + b) → (removed)"}),
        ("return a", {"return a → return None"}),
        ("x = f(k=a)", {"f(k=a) → f()"}),
        ("x = f(a, b)", {"f(a, b) → f(b, a)"}),
        ("x = max(a)", {"max(a) → min(a)"}),
        ("x = a.sum()", {"a.sum() → a.mean()"}),
        ("x = a.detach()", {"a.detach() → a"}),
        ("x = a[b:c]", {"[b:c] → [b + 1:c]", "[b:c] → [b:c - 1]"}),
        ("x = seeds.generator(s, 'a', e)", {"seeds.generator(s, 'a', e) → seeds.generator(s, e)", "seeds.generator(s, 'a', e) → seeds.generator(s, 'a')"}),
        ("x = [a for a in b if c]", {"for a in b if c → for a in b", "for a in b if c → for a in b if not c"}),
        ("x = a if b else c", {"a if b else c → a if not b else c"}),
    ],
)  # fmt: skip
def test_every_small_fault_is_planted(mutants_of: Any, line: str, changes: set[str]) -> None:
    mutants = mutants_of(f"def f(a, b, c):\n    {line}\n")
    assert {mutant.change for mutant in mutants} == changes
    for mutant in mutants:
        compile(mutant.tree(), "a.py", "exec")


@pytest.fixture
def ledger(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(DRIVER.parent))
    import ledger

    return ledger


def test_a_mutant_meets_the_tests_of_the_first_area_that_names_its_file(project: Path, ledger: Any) -> None:
    (project / "src/other.py").write_text("A = 1\n")
    (project / "tests/test_other.py").write_text("")
    first = '[[area]]\nname = "other"\nsources = ["src/other.py"]\ntests = ["tests/test_other.py"]\n\n[[area]]'
    path = project / "mutants.toml"
    path.write_text(path.read_text().replace("[[area]]", first))
    read = ledger.Project.read(path)
    assert [(area.name, area.sources) for area in read.areas] == [
        ("other", ["src/other.py"]),
        ("sums", ["src/sums.py"]),
    ]
    assert read.tests_of("src/other.py") == ["tests/test_other.py"]
    assert read.tests_of("src/sums.py") == ["tests/conftest.py", "tests/test_other.py", "tests/test_sums.py"]


def test_a_long_test_leaves_room_for_shorter_ones_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DRIVER.parent))
    run, warm = importlib.import_module("run"), importlib.import_module("warm")
    seen = {name: warm.Seen(seconds, {"a.py": [1]}) for name, seconds in (("short", 1), ("long", 9), ("middle", 2))}
    mutant = SimpleNamespace(file="a.py", function="f", lines=[1])
    of = "a.py:f"
    select = run.Selection(seen, run.counted({of: ["middle", "long"]}), budget=5.0)
    assert select(mutant) == ["middle", "short"]


def test_hints_stay_for_functions_that_a_run_left_out_and_go_with_their_functions(tmp_path: Path, ledger: Any) -> None:
    path = tmp_path / "killers.json"
    ledger.write_killers(path, {"b:g": Counter(old=1), "a:f": Counter(old=1), "c:gone": Counter(old=1)}, {"c:gone"})
    ledger.write_killers(path, {"b:g": Counter(new=2, newer=1)}, {"a:f", "b:g"})
    assert list(ledger.read_killers(path).items()) == [("a:f", ["old"]), ("b:g", ["new", "newer"])]


def test_functions_are_found_that_the_garbage_collector_has_frozen(
    project: Path, mutants_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(project / "src"))
    mutants_of("x = 1\n")  # puts the driver's folder on the path
    import planting
    import sums
    from mutation import Source

    mutant = next(one for one in Source(project, "src/sums.py").mutants if one.change == "return steps → return None")
    gc.freeze()
    functions = planting.Functions([str(project / "src/sums.py")])
    gc.freeze()  # as it was
    assert functions.plant(mutant)
    assert sums.countdown(3) is None
    del sys.modules["sums"]


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(DRIVER.parent))
    import warm

    before = sys.gettrace()
    yield warm.Traces
    sys.settrace(before)


def test_lines_are_seen_that_a_test_runs_after_seconds_of_other_work(
    tmp_path: Path, traces: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr("time.process_time", lambda: now)

    def read_a_part() -> None:
        nonlocal now
        now += 1.0

    def load_a_model() -> None:
        for _ in range(6):
            read_a_part()

    path = tmp_path / "late.py"
    text = "def late(load):\n    load()\n    return after()\n\n\ndef after():\n    return 1\n"
    module: dict[str, Any] = {}
    exec(compile(text, str(path), "exec"), module)
    found = traces({str(path): "late.py"})
    with found:
        module["late"](load_a_model)
    assert found.lines() == {"late.py": [1, 2, 3, 6, 7]}


def test_an_area_that_is_not_there_is_refused(project: Path) -> None:
    assert "mutants.toml has no area differences: sums" in run(project, "--area", "differences")[1]


def test_break_and_continue_change_places(mutants_of: Any) -> None:
    changes = {m.change for m in mutants_of("for a in b:\n    if c:\n        break\n    continue\n")}
    assert changes == {"if c → if not c", "break → continue", "continue → break"}


def test_what_cannot_change_behaviour_is_left_alone(mutants_of: Any) -> None:
    assert not mutants_of(
        '''
        """Text - with 2 numbers."""
        from typing import TYPE_CHECKING, Annotated
        if TYPE_CHECKING:
            x = 1
        Limit = Annotated[int, Field(ge=1)]
        @dataclass(slots=True)
        class A(Base, frozen=True):
            __slots__ = ("a", 1)
            x: Annotated[int, Field(ge=1)]
            def f(self, a: Literal[1, 2]) -> Literal[3]:
                """More text."""
                assert a > 1, f"{a + 1}"
                b = f"metric/{a + 1}"
                c = zip(b, strict=True)
                d = Field(description="1 to 2")
        '''
    )


def test_names_of_mutants_outlive_edits_elsewhere(mutants_of: Any) -> None:
    before = {m.name for m in mutants_of("def f(a):\n    return a + 1\n")}
    after = {
        m.name
        for m in mutants_of(
            "import b\n\nX = 5\n\n\ndef g(a):\n    return a + 1\n\n\ndef f(a):\n    b.c = 7\n    return a + 1\n"
        )
    }
    assert before < after
    twice = [m.name for m in mutants_of("def f(a):\n    g(a + 1, a + 1)\n")]
    assert len(set(twice)) == len(twice)
