"""Python environments for engines with separate library versions, and commands for their programs."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from marft.common.processes.child_process import print_line
from marft.common.processes.python_command import python_command

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


def environment_folder(engine: str) -> Path:
    """Return the folder for an engine's environment."""
    data = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(data) / "marft" / "engines" / engine


def find_python(engine: str, path: str) -> str:
    """Return the Python executable for an engine.

    Args:
        path: path from the recipe; "": the installed environment.

    Raises:
        ValueError: the Python is missing or does not run, or the engine is not installed in it.
    """
    python = Path(path).expanduser() if path else environment_folder(engine) / "bin" / "python"
    hint = (
        f"install it:  marft engine install {engine}  or give the Python of an environment that has it, or sample in "
        "process:  --engine.kind local"
    )
    if python.is_dir():
        raise ValueError(f"engine.python: {python} is a folder; give the Python in it, as bin/python of an environment")
    if not python.is_file():
        raise ValueError(f"engine.python: there is no {python}; {hint}")
    check_script = f"{REMOVE_WORKING_FOLDER}; import importlib.util as u; print(u.find_spec('{engine}') is not None)"
    try:
        output = _run_program([str(python), "-c", check_script], f"{python} is asked whether it has {engine}")
    except subprocess.TimeoutExpired as error:
        raise ValueError(f"engine.python: {python} has not answered in {CHECK_TIMEOUT:g} seconds; {hint}") from error
    except OSError as error:
        raise ValueError(f"engine.python: {python} is no Python that can be run ({error}); {hint}") from error
    if output.strip() != b"True":
        raise ValueError(f"engine.python: {python} has no {engine}; {hint}")
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


def local_server_command(descriptor: int) -> Sequence[str]:
    """Return the command for MARFT's own engine on the current Python, with the same importable modules.

    Args:
        descriptor: file descriptor of its socket.
    """
    return python_command("marft.inference.subprocess_engine.local_server", descriptor)
