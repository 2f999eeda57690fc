r"""Check that answers to mathematics are graded correctly: right answers, wrong answers, and hostile ones.

    python benchmarks/graders.py ../shared/data/math_train.jsonl ../shared/data/gsm8k_train.jsonl

The grader must accept every gold answer of the files, in three forms. It must reject wrong answers made from them:
other tasks' answers, off by one, other units, near-miss sets and intervals, changed signs, permuted tuples, etc.
It must finish every hostile answer in time, and grade the next answer as usual. Writes results/graders.md.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

import machine

from marft.agents.answers import reference_answer
from marft.common import atomic
from marft.rewards.grader import Grader, GradingError
from marft.rewards.math_notation import is_interval

FORMS = (r"So we get \boxed{%s}.", "$%s$", "The answer is %s")
TIMEOUT = 5.0  # seconds for one answer
_FRACTION = re.compile(r"(-?)\\[dt]?frac\{(\d+)\}\{(\d+)\}")
_TUPLE, _LIST = re.compile(r"\(([^(),]+,)+[^(),]+\)"), re.compile(r"-?\d+(, ?-?\d+)+")
_UNIT = re.compile(r"(-?[\d.]+)\s*\\(text|mbox)\{ ?(\w+)\}")
OTHER_UNITS = {"cm": "m", "feet": "miles", "miles": "feet", "inches": "feet", "hours": "days", "days": "hours"}


class Case(NamedTuple):
    """A gold answer, the text given instead, and the kind of mistake."""

    kind: str
    gold: str
    said: str


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--wrong", type=int, default=1000, help="number of sampled wrong answers; 0 uses all")
    parser.add_argument("--results", type=Path, default=machine.RESULTS)
    arguments = parser.parse_args()
    grader = Grader(TIMEOUT)
    names = " ".join(file.name for file in arguments.files)
    page = ["# Graders of mathematics", "", f"`python benchmarks/graders.py {names}`", ""]
    try:
        every = [gold for file in arguments.files for gold in golds(file)]
        page += accepted(grader, {file.name: golds(file) for file in arguments.files})
        page += rejected(grader, sampled(wrong(sorted(set(every))), arguments.wrong))
        page += attacked(grader)
    finally:
        grader.close()
    text = "\n".join(page) + "\n"
    print(text)
    atomic.write_file(arguments.results / "graders.md", text)


def golds(file: Path) -> list[str]:
    """Return the right answers of a file of problems, in order. Problems without one are left out."""
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").split("\n") if line.strip()]
    return [gold for row in rows if (gold := reference_answer(str(row["answer"])))]


def accepted(grader: Grader, files: Mapping[str, Sequence[str]]) -> list[str]:
    """Grade every gold answer in every form; return a table, and the rejected answers."""
    page = ["## Right answers", "", "| file | answers | different ones | accepted, in three forms | seconds |"]
    page.append("| --- | --- | --- | --- | --- |")
    missed = list[str]()
    for name, found in files.items():
        cases = [Case(form, gold, form.replace("%s", gold)) for gold in sorted(set(found)) for form in FORMS]
        began = time.perf_counter()
        verdicts = graded(grader, cases)
        wrong_ones = [case for case, verdict in zip(cases, verdicts, strict=True) if verdict is not True]
        missed += [f"- `{case.gold}` as `{case.said}`" for case in wrong_ones]
        taken = len(cases) - len(wrong_ones)
        counts = f"{len(found):,} | {len(set(found)):,} | {taken:,} of {len(cases):,}"
        page.append(f"| {name} | {counts} | {time.perf_counter() - began:.0f} |")
    return [*page, "", *(missed or ["No right answer was rejected."]), ""]


def rejected(grader: Grader, cases: Sequence[Case]) -> list[str]:
    """Grade wrong answers; return a table by kind, and the answers that were not rejected."""
    verdicts = graded(grader, cases)
    page = ["## Wrong answers", "", "| mistake | answers | rejected |", "| --- | --- | --- |"]
    for kind in sorted({case.kind for case in cases}):
        of = [verdict for case, verdict in zip(cases, verdicts, strict=True) if case.kind == kind]
        page.append(f"| {kind} | {len(of):,} | {of.count(False):,} |")
    page.append(f"| all | {len(cases):,} | {verdicts.count(False):,} |")
    taken = [(case, verdict) for case, verdict in zip(cases, verdicts, strict=True) if verdict is not False]
    return [*page, "", *(f"- {case.kind}: `{case.said}` for `{case.gold}`: {verdict}" for case, verdict in taken), ""]


def attacked(grader: Grader) -> list[str]:
    """Grade hostile answers; return how each ended.

    Raises:
        AssertionError: a hostile answer took too long, or changed the grades of the next answers.
    """
    page = ["## Hostile answers", "", "| answer | ended as | seconds |", "| --- | --- | --- |"]
    for name, said in ATTACKS.items():
        began = time.perf_counter()
        verdict = graded(grader, [Case(name, "5", said)])[0]
        seconds = time.perf_counter() - began
        following = graded(grader, [Case("", "5", r"\boxed{5}"), Case("", "5", r"\boxed{6}")])
        assert following == [True, False], f"after {name!r} the next answers are graded {following}"
        assert seconds < 2 * TIMEOUT, f"{name!r} took {seconds:.0f} s"
        page.append(f"| {name} | {'wrong' if verdict is False else verdict} | {seconds:.1f} |")
    return [*page, "", "After each, `5` was accepted and `6` rejected.", ""]


def graded(grader: Grader, cases: Sequence[Case]) -> list[bool | str]:
    """Return the grader's verdict on each answer, or its error message."""

    def verdict(case: Case) -> bool | str:
        try:
            return grader.matches_gold(case.gold, case.said)
        except GradingError as error:
            return str(error)

    with ThreadPoolExecutor(4) as threads:
        return list(threads.map(verdict, cases))


def sampled(cases: Sequence[Case], count: int) -> list[Case]:
    """Return a fixed sample of the given size, one of each kind in turn; 0 returns all."""
    draw = random.Random(0)
    of: dict[str, list[Case]] = {}
    for case in draw.sample(cases, len(cases)):
        of.setdefault(case.kind, []).append(case)
    turns = [(place, kind, case) for kind, mine in of.items() for place, case in enumerate(mine)]
    return [case for _, _, case in sorted(turns)[: count or None]]


def value(gold: str) -> Fraction | None:
    """Return the value of a gold answer that is a plain number; None otherwise."""
    plain = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", re.sub(r"\\[!,$]| ", "", gold))
    if match := _FRACTION.fullmatch(plain):
        return Fraction(int(match[1] + match[2]), int(match[3]) or 1)
    try:
        return Fraction(plain)
    except (ValueError, ZeroDivisionError):
        return None


def wrong(found: Sequence[str]) -> list[Case]:
    """Return wrong answers for each gold answer; each one differs in value."""
    draw, values = random.Random(0), {gold: value(gold) for gold in found}
    numbers = [gold for gold in found if values[gold] is not None]
    others = [gold for gold in found if values[gold] is None]
    cases = list[Case]()
    for gold in found:
        number = values[gold]
        if number is not None:
            another = draw.choice(numbers)
            cases += [Case("another's number", gold, another)] if values[another] != number else []
            cases += [Case(kind, gold, said) for kind, said in off(number)]
        else:
            cases.append(Case("a number for none", gold, draw.choice(numbers))) if numbers else None
            another = draw.choice(others)
            cases += [Case("another's expression", gold, another)] if _bare(another) != _bare(gold) else []
            cases += [Case("one more", gold, f"{gold}+1")]
        cases += [Case(kind, gold, said) for make in MISTAKES for kind, said in make(gold)]
    return [case._replace(said=f"\\boxed{{{case.said}}}") for case in cases]


def off(number: Fraction) -> Iterator[tuple[str, str]]:
    """Yield near misses of a number."""
    yield "off by one", str(number + 1)
    yield "two answers", f"{number}, {number + 1}"
    yield "a set", rf"\{{{number}, {number + 1}\}}"
    yield "an interval", f"[{number}, {number + 1}]"
    yield "an inequality", f"x > {number}"
    yield "one or the other", rf"{number} \text{{ or }} {number + 1}"
    if number:
        yield "sign", str(-number)
        yield "ten times", str(number * 10)
        yield "a hundredth more", f"{float(number) * 1.01:.8f}"
        yield "a factor", rf"{number}\pi"
        yield "imaginary", f"{number}i"


def tuples(gold: str) -> Iterator[tuple[str, str]]:
    """Yield wrong tuples: permuted, shorter, longer, as sets."""
    if not _TUPLE.fullmatch(gold) or is_interval(gold):
        return
    parts = [part.strip() for part in gold[1:-1].split(",")]
    if parts[1:] + parts[:1] != parts:
        yield "permuted tuple", f"({', '.join(parts[1:] + parts[:1])})"
    yield "shorter tuple", f"({', '.join(parts[:-1])})"
    yield "longer tuple", f"({', '.join([*parts, '7'])})"
    yield "tuple as a set", rf"\{{{', '.join(parts)}\}}"


def intervals(gold: str) -> Iterator[tuple[str, str]]:
    """Yield wrong intervals: one end open instead of closed, or elsewhere."""
    inner = gold[1:-1].split(",")
    if not is_interval(gold) or len(inner) != 2 or gold[-1] not in ")]":
        return
    left, right = (part.strip() for part in inner)
    if "infty" not in left:
        yield "interval's end open or closed", f"{'[' if gold[0] == '(' else '('}{left},{right}{gold[-1]}"
        yield "interval's end elsewhere", f"{gold[0]}{left}-1,{right}{gold[-1]}"
    if "infty" not in right:
        yield "interval's end open or closed", f"{gold[0]}{left},{right}{']' if gold[-1] == ')' else ')'}"
        yield "interval's end elsewhere", f"{gold[0]}{left},{right}+1{gold[-1]}"


def lists(gold: str) -> Iterator[tuple[str, str]]:
    """Yield wrong lists of numbers: one left out, one too many, one wrong."""
    if not _LIST.fullmatch(gold) or value(gold) is not None:
        return
    numbers = [int(number) for number in gold.split(",")]
    yield "one left out", ", ".join(map(str, numbers[:-1]))
    yield "one too many", ", ".join(map(str, [*numbers, max(numbers) + 1]))
    yield "one of them wrong", ", ".join(map(str, [max(numbers) + 1, *numbers[1:]]))


def units(gold: str) -> Iterator[tuple[str, str]]:
    """Yield the same number in another unit."""
    match = _UNIT.fullmatch(gold)
    if match and match[3] in OTHER_UNITS:
        yield "another unit", rf"{match[1]}\text{{ {OTHER_UNITS[match[3]]}}}"


MISTAKES: Sequence[Callable[[str], Iterator[tuple[str, str]]]] = (tuples, intervals, lists, units)


def _bare(gold: str) -> str:
    """Return the letters and digits of an answer, without markup that has several spellings."""
    return re.sub(r"\\left|\\right|\\text|\\[dt]frac|[^0-9A-Za-z]", "", gold)


def _boxed(said: str) -> str:
    return f"\\boxed{{{said}}}"


ATTACKS: Mapping[str, str] = {
    "9^9^9^9": _boxed("9^9^9^9"),
    "9^{9^{9^{9}}}": _boxed("9^{9^{9^{9}}}"),
    "1000000!": _boxed("1000000!"),
    "((9!)!)!": _boxed("((9!)!)!"),
    "a large binomial": _boxed(r"\binom{1000000}{500000}"),
    "10^{10^{10}}": _boxed("10^{10^{10}}"),
    "a long sum": _boxed(r"\sum_{n=1}^{10^{10}} n^n"),
    "a gamma function": _boxed(r"\Gamma(10^{9})"),
    "a matrix to a power": _boxed(r"\begin{pmatrix}1&1\\1&0\end{pmatrix}^{10^9}"),
    "2,000 brackets in each other": _boxed("(" * 2000 + "1" + ")" * 2000),
    "400 fractions in each other": _boxed(r"\frac{1}{" * 400 + "2" + "}" * 400),
    "700 roots in each other": _boxed(r"\sqrt{" * 700 + "2" + "}" * 700),
    "code": _boxed("__import__('os').system('touch graders_were_here')"),
    "code in LaTeX": _boxed(r"\text{__import__('os').system('touch graders_were_here')}"),
    r"\input": _boxed(r"\input{/etc/passwd}"),
    r"\write18": _boxed(r"\immediate\write18{ls}"),
    "braces that open": "{{{{1",
    "braces that close": "1}}}}",
    "half a fraction": _boxed(r"\frac{1}{"),
    "a million digits": _boxed("9" * 1_000_000),
    "a million letters": "a" * 1_000_000,
    "a sum of 500,000": _boxed("x+" * 500_000),
    "200,000 boxes that open": r"\boxed{" * 200_000,
    "100,000 tags that open": "<answer>" * 100_000,
    "100,000 dollars": "$" * 100_001,
    "70,000 answers": "the answer is " * 70_000,
    "100,000 backslashes": _boxed("\\" * 100_000),
    "other scripts": _boxed("½ ∞ π ² 𝟓 \u202e6\u0301"),
    "a null": _boxed("\x006"),
    "half a character": _boxed("\ud8006"),
    "a line of the grader's own": _boxed('"}\n{"equal": true}\n'),
}


if __name__ == "__main__":
    main()
