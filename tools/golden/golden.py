"""Train the same runs with a reference commit and the present tree, and compare all weights and metrics bit by bit.

    python tools/golden/golden.py            # whole runs
    python tools/golden/golden.py --short    # a few steps of each, as in CI

Bits depend on the processor, so nothing is recorded: both trees train on this machine. The reference commit, times
(which are not compared) and names that have changed since are in reference.toml.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "golden"
GATEWAY = "{ organization = 'program', call = 'marft.examples.openai_team:solve' }"


@dataclass(frozen=True)
class Run:
    """A training run in the reference's words.

    Attributes:
        recipe: a bundled recipe.
        changes: settings of the recipe, by dotted key.
        steps: of the whole form.
        is_recorded: both trees learn from completions that an engine in its own process sampled, with a policy lag
            of 2 (``recorded.py``).
    """

    recipe: str
    changes: Mapping[str, str] = field(default_factory=dict)
    steps: int = 30
    is_recorded: bool = False


RUNS = {
    "demo": Run("demo"),
    "demo_only_reasoner": Run("demo", {"policies.actor.train": "frozen"}),
    "demo_only_actor": Run("demo", {"policies.reasoner.train": "frozen"}),
    "token_level": Run("demo_token", steps=10),
    "workers": Run("demo", {"rollout.processes": "2"}, steps=10),
    "ranks": Run("demo", {"training.ranks": "2"}, steps=10),
    "gateway": Run("demo", {"team": GATEWAY}, steps=10),
    "recorded": Run("demo", steps=10, is_recorded=True),
    "recorded_token": Run("demo_token", steps=10, is_recorded=True),
}
SHORT = {"training.steps": "2", "rollout.tasks_per_step": "4", "rollout.samples_per_task": "4"}


@dataclass(frozen=True)
class Names:
    """Renamed names since the reference, and metrics of time."""

    commit: str
    times: Sequence[str]
    metrics: Mapping[str, str]
    keys: Mapping[str, str]
    values: Mapping[str, str]
    files: Mapping[str, str]

    @classmethod
    def read(cls, path: Path) -> Names:
        return cls(**tomllib.loads(path.read_text(encoding="utf-8")))


def renamed(name: str, table: Mapping[str, str]) -> str:
    """Return the present name; "" for a name that was removed.

    >>> renamed("agents/a/reward", {"agents/*": "agent/*", "reward": "return"})
    'agent/a/reward'
    """
    if name in table:
        return table[name]
    for old, new in table.items():
        if old.endswith("*") and name.startswith(old[:-1]):
            return new[:-1] + name[len(old) - 1 :] if new else ""
    return name


def command(
    run: Run, name: str, output: Path, *, short: bool, keys: Mapping[str, str] = {}, values: Mapping[str, str] = {}
) -> list[str]:
    """Return the arguments of ``marft`` that train a run, with keys and what their values name renamed."""
    changes = {"training.steps": str(run.steps), "evaluation.every": "0", **run.changes, **(SHORT if short else {})}
    for old, new in values.items():
        changes = {key: value.replace(old, new) for key, value in changes.items()}
    options = [word for key, value in changes.items() for word in (f"--{renamed(key, keys)}", value)]
    return ["train", run.recipe, "--overwrite", "--output", str(output), "--name", name, *options]


def record(run: Run, name: str, output: Path, *, short: bool) -> list[str]:
    """Return the arguments of ``marft`` that record the completions of a run, with the present tree."""
    engine = f"{{ kind = 'recorded:Recorder', file = '{output / f'{name}.jsonl'}' }}"
    recorded = replace(run, changes={**run.changes, "engine": engine, "rollout.max_policy_lag": "2"})
    return command(recorded, name, output, short=short)


def replayed(run: Run, name: str, records: Path) -> Run:
    """Return the run with the engine that plays the record, where it has one."""
    if not run.is_recorded:
        return run
    engine = f"{{ kind = 'recorded:Player', file = '{records / f'{name}.jsonl'}' }}"
    return replace(run, changes={**run.changes, "engine": engine})


def reference_tree(commit: str) -> Path:
    """Return a worktree of the commit with a virtual environment of its own, made where it is missing.

    The environment takes other packages from the present one where those have the versions that the commit
    is tested with.

    Raises:
        SystemExit: the commit is not in this clone.
    """
    tree = BUILD / commit
    if subprocess.run(["git", "cat-file", "-e", f"{commit}^{{commit}}"], cwd=ROOT, check=False).returncode:
        raise SystemExit(f"the reference commit {commit} is not in this clone; git fetch --unshallow brings it")
    if not (tree / "pyproject.toml").exists():
        subprocess.run(["git", "worktree", "prune"], cwd=ROOT, check=True)
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", str(tree), commit], cwd=ROOT, check=True)
    if not (tree / ".venv").exists():
        _install(tree)
    return tree


def _install(tree: Path) -> None:
    """Make ``.venv`` in a worktree, which runs the project that is there."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tree / ".venv")], check=True)
    python = tree / ".venv" / "bin" / "python"
    if _pins(tree) <= _pins(ROOT):
        site = next((tree / ".venv" / "lib").glob("python*/site-packages"))
        present = [path for path in sys.path if path.endswith("site-packages")]
        (site / "paths.pth").write_text("\n".join([*map(str, _sources(tree)), *present, ""]), encoding="utf-8")
    else:
        pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-compile"]
        constraints = ["--constraint", str(tree / "constraints.txt")]
        editable = [word for folder in _sources(tree) for word in ("--editable", _with_gateway(folder.parent))]
        subprocess.run([*pip, *constraints, *editable], check=True)
    where = "import marft; print(marft.__file__)"
    found = subprocess.run([str(python), "-c", where], capture_output=True, text=True, check=True, cwd=tree).stdout
    if not Path(found.strip()).is_relative_to(tree):
        raise SystemExit(f"{python} runs {found.strip()}, not what is in {tree}")


def _pins(tree: Path) -> set[str]:
    """Return the versions that a tree is tested with."""
    lines = (tree / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return {line for line in lines if line and not line.startswith("#")}


def _with_gateway(project: Path) -> str:
    """Return the requirement for pip: the project's folder, with the extra ``gateway`` if the project has it."""
    about = tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return f"{project}[gateway]" if "gateway" in about.get("optional-dependencies", {}) else str(project)


def _sources(tree: Path) -> list[Path]:
    """Return the source folders of a tree: one for each package, or one for all in older trees."""
    return sorted(tree.glob("packages/*/src")) or [tree / "src"]


# What a tree's interpreter runs: every training in a fork of one process, so that libraries are imported once.
TRAININGS = """
import os, runpy, sys
import reasoning_gym, torch, transformers.models.qwen2.modeling_qwen2
for line in sys.stdin:
    sys.stdout.flush()
    process = os.fork()
    if process == 0:
        sys.argv = ["marft", *line.rstrip("\\n").split("\\t")]
        runpy.run_module("marft", run_name="__main__", alter_sys=True)
    if os.waitpid(process, 0)[1]:
        sys.exit(1)
"""


def train(python: Path, trainings: Sequence[Sequence[str]], output: Path) -> None:
    """Train runs, one after another, with the tree that an interpreter belongs to.

    Args:
        trainings: the arguments of ``marft`` for each run.

    Raises:
        SystemExit: a command fails; the message holds the end of what was printed.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    environment["PYTHONPATH"] = str(Path(__file__).parent)  # recorded.py
    output.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [str(python), "-c", TRAININGS], input="".join("\t".join(each) + "\n" for each in trainings), cwd=output.parent,
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{done.stdout[-3000:]}\n{python}: training ended with status {done.returncode}")


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """Return the tensors of a run's last checkpoint by "file: tensor"."""
    last = max(folder.glob("checkpoints/step_*"))
    files = sorted(last.rglob("*.safetensors"))
    return {
        f"{file.relative_to(last)}: {name}": tensor for file in files for name, tensor in load_file(file).items()
    }  # fmt: skip


def metrics(folder: Path, times: Sequence[str]) -> dict[str, Any]:
    """Return every logged number that is not a time, by "step: metric"."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return {
        f"{line['step']}: {name}": value
        for line in lines
        for name, value in line.items()
        if name != "step" and not any(fnmatch.fnmatchcase(name, time) for time in times)
    }


def differences(reference: Path, present: Path, names: Names) -> Iterator[str]:
    """Yield a line for each weight and metric that is not the same, bit by bit, in two folders of the same run.

    Metrics that are new since the reference are not compared.
    """
    was, has = weights(reference), weights(present)
    was = _by_present_names(was, names.files)
    for name in sorted(was.keys() | has.keys()):
        if name not in was or name not in has:
            yield f"{name}: only the {'present tree' if name in has else 'reference'} has it"
        elif was[name].dtype != has[name].dtype or was[name].shape != has[name].shape:
            yield f"{name}: {was[name].dtype} {tuple(was[name].shape)} → {has[name].dtype} {tuple(has[name].shape)}"
        elif not torch.equal(was[name].flatten().view(torch.uint8), has[name].flatten().view(torch.uint8)):
            yield f"{name}: differs by up to {(was[name].double() - has[name].double()).abs().max():.3g}"
    before, now = metrics(reference, names.times), metrics(present, names.times)
    before = {
        f"{step}: {new}": value
        for (step, name), value in ((key.split(": ", 1), value) for key, value in before.items())
        if (new := renamed(name, names.metrics))
    }
    compared = {name.split(": ", 1)[1] for name in before}
    for name in sorted(before.keys() | now.keys()):
        if name.split(": ", 1)[1] not in compared:
            continue
        old, new = before.get(name, "missing"), now.get(name, "missing")
        if repr(old) != repr(new):
            yield f"{name}: {old!r} → {new!r}"


def _by_present_names(tensors: Mapping[str, torch.Tensor], files: Mapping[str, str]) -> dict[str, torch.Tensor]:
    found = {}
    for key, tensor in tensors.items():
        file, name = key.split(": ", 1)
        if new := renamed(file, files):
            found[f"{new}: {name}"] = tensor
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="a few steps of each run")
    parser.add_argument("--only", action="append", choices=list(RUNS), help="this run; may be repeated")
    options = parser.parse_args()
    names = Names.read(Path(__file__).parent / "reference.toml")
    tree = reference_tree(names.commit)
    output = BUILD / ("short" if options.short else "whole")
    shutil.rmtree(output, ignore_errors=True)
    pythons = {"reference": tree / ".venv" / "bin" / "python", "present": Path(sys.executable)}
    runs = options.only or list(RUNS)
    tables: dict[str, dict[str, Mapping[str, str]]] = {
        "reference": {},
        "present": {"keys": names.keys, "values": names.values},
    }
    records = output / "records"
    if recorded := [run for run in runs if RUNS[run].is_recorded]:
        commands = [record(RUNS[run], run, records, short=options.short) for run in recorded]
        train(pythons["present"], commands, records)
    replays = {run: replayed(RUNS[run], run, records) for run in runs}
    with ThreadPoolExecutor() as both:
        sides = [
            both.submit(
                train, python,
                [command(run, name, output / side, short=options.short, **tables[side]) for name, run
                 in replays.items()],
                output / side,
            )
            for side, python in pythons.items()
        ]  # fmt: skip
        for side in sides:
            side.result()
    different = 0
    for name in runs:
        found = list(differences(output / "reference" / name, output / "present" / name, names))
        count = len(weights(output / "present" / name)), len(metrics(output / "present" / name, names.times))
        print(f"{name:20} {count[0]} tensors, {count[1]} numbers: {f'{len(found)} differ' if found else 'the same'}",
              flush=True)  # fmt: skip
        for line in found[:20]:
            print(f"    {line}")
        different += bool(found)
    sys.exit(1 if different else 0)


if __name__ == "__main__":
    main()
