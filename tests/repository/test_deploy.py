"""The files in deploy/ are what the programs that read them take, and start what they say."""

from __future__ import annotations

import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from marft.cli.console import INTERRUPTED
from marft.config import load_recipe
from tests.sources import ROOT

DEPLOY = ROOT / "deploy"
SBATCH = DEPLOY / "slurm" / "train.sbatch"
TEXT = {"type": "string", "minLength": 1}


def named(required: tuple[str, ...], **properties: Any) -> dict[str, Any]:
    """An object of these keys and no others."""
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


AMOUNTS = {"type": "object", "additionalProperties": {"type": ["string", "integer"]}}
CONTAINER = named(
    ("name", "image", "resources"), name=TEXT, image=TEXT, resources=named(("limits",), limits=AMOUNTS, requests=AMOUNTS),
    volumeMounts={"type": "array", "items": named(("name", "mountPath"), name=TEXT, mountPath=TEXT)},
)  # fmt: skip
POD = named(
    ("containers",), containers={"type": "array", "minItems": 1, "items": CONTAINER}, securityContext={"type": "object"},
    volumes={"type": "array", "items": named(("name",), name=TEXT, persistentVolumeClaim=named(("claimName",), claimName=TEXT))},
)  # fmt: skip
HEAD = named(
    ("rayStartParams", "template"),
    rayStartParams={"type": "object", "additionalProperties": {"type": "string"}},
    template=named(("spec",), spec=POD),
)
RAY_JOB = named(  # of ray.io/v1, what is used of it
    ("apiVersion", "kind", "metadata", "spec"), apiVersion={"const": "ray.io/v1"}, kind={"const": "RayJob"},
    metadata=named(("name",), name={"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"}, labels={"type": "object"}),
    spec=named(
        ("entrypoint", "rayClusterSpec"), entrypoint=TEXT, entrypointNumGpus={"type": "number"},
        entrypointNumCpus={"type": "number"}, shutdownAfterJobFinishes={"type": "boolean"},
        ttlSecondsAfterFinished={"type": "integer"}, backoffLimit={"type": "integer"},
        rayClusterSpec=named(("headGroupSpec",), rayVersion={"type": "string"}, headGroupSpec=HEAD),
    ),
)  # fmt: skip
SKY_TASK = named(  # of SkyPilot, what is used of it
    ("resources", "run"), name=TEXT, workdir=TEXT, setup=TEXT, run=TEXT,
    envs={"type": "object", "additionalProperties": {"type": "string"}},
    resources=named(
        ("accelerators",), accelerators={"type": "object", "additionalProperties": {"type": "integer", "minimum": 1}},
        cpus={"type": ["string", "integer"]}, memory={"type": ["string", "integer"]}, disk_size={"type": "integer"},
        use_spot={"type": "boolean"},
    ),
    file_mounts={"type": "object", "additionalProperties": named(
        ("name",), name=TEXT, store={"enum": ["s3", "gcs", "azure", "r2"]}, mode={"enum": ["MOUNT", "COPY", "MOUNT_CACHED"]}
    )},
)  # fmt: skip
SIZES = {  # of Qwen2.5's configurations: billions of parameters, layers, key heads, features of a head
    "math_0_5b": (0.49, 24, 2, 64), "math_3b": (3.09, 36, 2, 128), "math_7b": (7.62, 28, 4, 128),
    "math_32b": (32.8, 64, 8, 128),
}  # fmt: skip


def tool(name: str) -> str:
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        pytest.skip(f"{name} comes with marft[dev]")
    return found


def read(path: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DEPLOY / path).read_text(encoding="utf-8"))
    return found


def test_hadolint_finds_nothing_in_the_dockerfile() -> None:
    done = subprocess.run([tool("hadolint"), DEPLOY / "Dockerfile"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_image_runs_as_nobody_special_and_is_built_from_what_is_here() -> None:
    lines = (DEPLOY / "Dockerfile").read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if line.startswith("USER ")][-1] == "USER 1000"
    assert re.fullmatch(r"FROM python:3\.\d+\.\d+-slim-\w+", next(line for line in lines if line.startswith("FROM")))
    copied = [word for line in lines if line.startswith("COPY ") for word in line.split()[1:-1]]
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert set(copied) == kept
    assert all((ROOT / path).exists() for path in copied)


class TestSlurm:
    @staticmethod
    def started(
        tmp_path: Path, *words: str, srun: str = "exit 0"
    ) -> tuple[subprocess.CompletedProcess[str], list[str]]:
        """The script as SLURM would run it, and the commands that it gave to SLURM."""
        log = tmp_path / "log"
        for name, ends in (("srun", srun), ("scontrol", "exit 0")):
            stub = tmp_path / "bin" / name
            stub.parent.mkdir(exist_ok=True)
            stub.write_text(f'#!/bin/sh\necho "{name} $*" >> {log}\n{ends}\n')
            stub.chmod(0o755)
        done = subprocess.run(
            ["bash", SBATCH, *words], capture_output=True, text=True, check=False, timeout=30,
            env={"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "HOME": str(tmp_path), "SLURM_JOB_ID": "7",
                 "SLURM_SUBMIT_DIR": str(tmp_path), "SLURM_CPUS_PER_TASK": "4"},
        )  # fmt: skip
        return done, log.read_text().splitlines() if log.exists() else []

    def test_shellcheck_finds_nothing(self) -> None:
        done = subprocess.run([tool("shellcheck"), SBATCH], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (0, "")

    def test_it_begins_a_run_that_has_the_jobs_name(self, tmp_path: Path) -> None:
        done, said = self.started(tmp_path, "teams/mine.toml", "--training.steps", "5")
        assert done.returncode == 0, done.stderr
        assert said == [
            f"srun --ntasks=1 --kill-on-bad-exit=1 marft train teams/mine.toml --output {tmp_path}/runs --name mine-7 "
            "--device cuda --training.steps 5"
        ]

    def test_it_goes_on_with_a_run_that_is_there(self, tmp_path: Path) -> None:
        run = tmp_path / "runs" / "math_3b-7"
        run.mkdir(parents=True)
        (run / "run.json").write_text("{}")
        _, said = self.started(tmp_path, "math_3b")
        assert said == [f"srun --ntasks=1 --kill-on-bad-exit=1 marft train {run} --resume"]

    def test_it_ends_as_the_run_does(self, tmp_path: Path) -> None:
        assert self.started(tmp_path, "math_3b", srun="exit 3")[0].returncode == 3
        done, _ = self.started(tmp_path)
        assert done.returncode == 2
        assert "usage" in done.stderr

    def test_interrupted_it_is_queued_again(self, tmp_path: Path) -> None:
        """With 130 a run says that it has saved; SLURM interrupts what srun started, not the script."""
        done, said = self.started(tmp_path, "math_3b", srun=f"exit {INTERRUPTED}")
        assert said[1:] == ["scontrol requeue 7"], done.stderr
        assert done.returncode == INTERRUPTED
        assert "#SBATCH --signal=INT@300\n" in SBATCH.read_text(encoding="utf-8")


class TestYaml:
    def test_kuberay_takes_the_job(self) -> None:
        job = read("kuberay/rayjob.yaml")
        jsonschema.validate(job, RAY_JOB)
        (container,) = job["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["containers"]
        assert container["resources"]["limits"]["nvidia.com/gpu"] == job["spec"]["entrypointNumGpus"] == 1

    def test_skypilot_takes_the_task(self) -> None:
        jsonschema.validate(read("skypilot/train.yaml"), SKY_TASK)

    @pytest.mark.parametrize("path", ["kuberay/rayjob.yaml", "skypilot/train.yaml"])
    @pytest.mark.parametrize("there", [False, True])
    def test_what_they_start_begins_or_goes_on(self, path: str, there: bool, tmp_path: Path) -> None:
        task = read(path)
        runs, folder = tmp_path / "runs", tmp_path / "runs" / "math_3b"
        script = task["run"] if "run" in task else task["spec"]["entrypoint"]
        script = (
            script.replace("/runs", str(runs)).replace("~/marft/bin/marft", "echo").replace("exec marft", "exec echo")
        )
        if there:
            folder.mkdir(parents=True)
            (folder / "run.json").write_text("{}")
        env = {"PATH": os.environ["PATH"], **task.get("envs", {})}
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True, env=env)
        begins = f"train math_3b --output {runs} --name math_3b --device cuda"
        assert done.stdout.strip() == (f"train {folder} --resume" if there else begins)


@pytest.mark.parametrize("name", SIZES)
def test_what_the_page_says_of_a_recipe_is_its_arithmetic(name: str) -> None:
    parameters, layers, heads, width = SIZES[name]
    run = load_recipe(name, [])
    context, rows = run.models["base"].context_length, run.engine.max_batch_size
    assert context is not None
    weights = parameters * 1e9 * 2 / 2**30
    kept = 2 * 2 * layers * heads * width * context * rows / 2**30
    page = (ROOT / "docs" / "planning.md").read_text(encoding="utf-8")
    assert (
        f"`]({'../packages/marft/src/marft/recipes/'}{name}.toml) | {parameters:g} | {weights:.1f} | {kept:.1f} |"
        in page
    )
    (room,) = re.findall(rf"{name}\.toml\).*\| (\d+) GB \|", page)
    assert math.ceil((weights + kept) * 2**30 / 1e9) < int(room)  # where every row fills its context
    model = {"math_0_5b": "0.5B", "math_3b": "3B", "math_7b": "7B", "math_32b": "32B"}[name]
    assert run.models["base"].path == f"Qwen/Qwen2.5-{model}-Instruct"
