"""``make gpu``: stages in processes of their own, from source; rehearsed on the CPU."""

from __future__ import annotations

import importlib
import json
import math
import subprocess
import sys
import time
import zipfile
from collections.abc import Mapping, Sequence
from importlib.metadata import EntryPoints, PathDistribution
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from tests.sources import ROOT

BENCHMARKS = ROOT / "benchmarks"
REPORTS = "import pathlib, sys; pathlib.Path(sys.argv[1]).write_text('{\"found\": 1}'); "


@pytest.fixture(autouse=True)
def on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.delenv("OUT", raising=False)


def module(name: str) -> ModuleType:
    return importlib.import_module(name)


def run_stages(
    folder: Path, programs: Mapping[str, str], budget: float = 60.0, seconds: float = 30.0, alone: Sequence[str] = ()
) -> dict[str, dict[str, Any]]:
    """Run programs as stages; each gets the path of its report."""
    runner = module("accelerator.runner")
    seen: list[str] = []
    run = runner.Runner(
        lambda name, report: [sys.executable, "-c", programs[name], str(report)], {}, folder, time.monotonic() + budget, 2,
        lambda results: seen.append(json.dumps(results)),
    )  # fmt: skip
    results: dict[str, dict[str, Any]] = run.run([runner.Stage(name, seconds, name in alone) for name in programs])
    assert json.loads(seen[-1]) == results
    return results


def test_a_stage_that_fails_stops_no_other_and_keeps_its_report(tmp_path: Path) -> None:
    found = run_stages(tmp_path, {"bad": REPORTS + "sys.exit('a cause')", "good": REPORTS}, alone=["good"])
    assert found["bad"]["status"] == "failed with status 1"
    assert (found["bad"]["found"], found["bad"]["output"]) == (1, "a cause\n")
    assert (found["good"]["status"], found["good"]["found"]) == ("done", 1)


def test_a_stage_that_hangs_is_killed_with_its_children_and_keeps_its_report(tmp_path: Path) -> None:
    child = "import subprocess; subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)'])"
    found = run_stages(tmp_path, {"hangs": REPORTS + child, "after": REPORTS}, seconds=1.0, alone=["after"])
    assert found["hangs"]["status"].startswith("stopped after 1")
    assert found["hangs"]["found"] == found["after"]["found"] == 1


def test_without_time_no_stage_starts(tmp_path: Path) -> None:
    assert run_stages(tmp_path, {"late": REPORTS}, budget=0.5) == {"late": {"status": "not run: no time left"}}


def test_an_interrupted_run_keeps_what_was_reported(tmp_path: Path) -> None:
    runner = module("accelerator.runner")
    saved: list[str] = []

    def interrupt(results: Mapping[str, Any]) -> None:
        saved.append(json.dumps(results))
        if len(saved) == 1:  # the first report, while the stage runs
            raise KeyboardInterrupt

    run = runner.Runner(
        lambda _, report: [sys.executable, "-c", f"{REPORTS}import time; time.sleep(60)", str(report)], {}, tmp_path,
        math.inf, 1, interrupt,
    )  # fmt: skip
    with pytest.raises(KeyboardInterrupt):
        run.run([runner.Stage("long", 60.0)])
    assert json.loads(saved[-1])["long"]["status"] == "interrupted"
    assert json.loads(saved[-1])["long"]["found"] == 1


def test_from_source_missing_packages_come_from_wheels_and_entry_points_from_the_projects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = module("accelerator.source")
    monkeypatch.setattr(source, "_is_installed", lambda: False)
    for wheel, file in (("no_such_package-1-py3-none-any.whl", "no_such_package.py"), ("torch-1-py3-none-any.whl", "torch/x.py"),
                        ("other_python-1-cp27-cp27m-linux_x86_64.whl", "other_python.py")):  # fmt: skip
        with zipfile.ZipFile(tmp_path / wheel, "w") as archive:
            archive.writestr(file, "")
    paths = source.prepare(tmp_path / "scratch", tmp_path)["PYTHONPATH"].split(":")
    site = Path(paths[0])
    assert {path.name for path in site.iterdir() if path.suffix != ".dist-info"} == {"no_such_package.py"}
    assert str(ROOT / "packages" / "marft" / "src") in paths
    points = EntryPoints(
        point for folder in site.glob("*.dist-info") for point in PathDistribution(folder).entry_points
    )
    assert points.select(group="marft.credits")["gae"].value == "marft.trainer.credit.gae:GAE"
    assert points.select(group="marft.commands")["plan"].value == "marft_lab.cli.commands.planning:app"


def test_a_machine_without_a_gpu_is_described_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    stage, stages = module("accelerator.stage"), module("accelerator.stages")
    setting = stage.Setting("cuda", tmp_path / "report.json", tmp_path, small=True)
    stages.run_stage("machine", setting)
    assert "torch finds none" in json.loads(setting.report.read_text())["no_gpu"]


def test_the_demo_is_compared_with_a_cpus_runs() -> None:
    demo = module("accelerator.demo")
    reference = [row["success"] for row in json.loads(demo.REFERENCE.read_text())["rows"]]
    assert len(reference) == len(demo.SEEDS)
    rows = [{"tasks": demo.TASKS, "success": success} for success in reference]
    assert demo.compare(rows)["inside"]
    assert not demo.compare([{"tasks": demo.TASKS, "success": 0.8}])["inside"]
    assert demo.compare([{"tasks": 20, "success": 0.8}]) == {}  # a rehearsal


def test_a_batch_that_is_too_large_is_halved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage, speed = module("accelerator.stage"), module("accelerator.speed")
    tried: list[tuple[int, int]] = []

    def step(team: Any, *_: object) -> dict[str, float]:
        tried.append((team.tasks, team.batch))
        if team.tasks > 16:
            raise RuntimeError("3 of 64 episodes failed: CUDA out of memory. Tried to allocate 2.00 GiB")
        return {"sampling_seconds": 1.0}

    monkeypatch.setattr(speed, "_step", step)
    setting = stage.Setting("cpu", tmp_path / "report.json", tmp_path, small=True)
    team = speed.Team("qwen2.5-3b", "qwen2", "float32", 8, 2, 64, 4096, small=True)
    with speed.opened(team.recipe(team.checkpoint(setting), "cpu"), team.sizes.vocab_size) as rollouts:
        speed._measure_steps(setting, team, rollouts)
    assert tried == [(64, 4096), (32, 2048), (16, 1024), (16, 1024)]
    assert setting.results["out_of_memory"] == [64, 32]
    assert setting.results["step"]["episodes"] == 16


def test_the_table_shows_results_also_of_a_run_that_was_killed() -> None:
    tables = module("accelerator.tables")
    speed = {"status": "running", "decode_16_eager": {"mode": "eager", "rows": 16, "seconds_per_step": 0.025, "tokens_per_second": 640.0},
             "decode_256_eager": {"error": "OutOfMemoryError: CUDA out of memory"}}  # fmt: skip
    shown = tables.table(
        {"machine": {"status": "done"}, "speed": speed, "tests": {"status": "failed", "output": "a\nb"}}, {}
    )
    assert "| 16 | eager | 25.00 | 640 |" in shown
    assert "speed, decode_256_eager: OutOfMemoryError: CUDA out of memory" in shown
    assert "```text\na\nb\n```" in shown


def test_results_are_kept_by_the_machines_name() -> None:
    stages = module("accelerator.stages")
    assert stages.name_of({"device": "NVIDIA H200", "processor": "Xeon"}) == "nvidia-h200"


@pytest.mark.slow
def test_every_stage_is_rehearsed_on_a_cpu(tmp_path: Path) -> None:
    words = ["--device", "cpu", "--results", str(tmp_path), "--stages", "parity,speed,launches"]
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / "gpu.py"), *words], capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = tmp_path.glob("*.json")
    found = json.loads(path.read_text())
    assert found["parity"]["float32"]["inside"]
    assert found["speed"]["step"]["gradient_norm"] > 0
    assert found["launches"]["learn"]["operations"] > found["launches"]["decode_eager"]["operations"] > 0
    assert not [
        part for stage in found.values() for part in stage.values() if isinstance(part, dict) and "error" in part
    ]
