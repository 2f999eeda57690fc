"""Python environments for engines with separate library versions, and commands for their programs."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from marft.common.processes.child import show
from marft.common.processes.python_here import python_here

LOOK_SECONDS = 60.0  # timeout for a Python's answer
SAY_SECONDS = 5.0  # delay before a progress message
PACKAGE = Path(__file__).parents[2]  # folder of the marft package
# removes the working folder, which must not shadow modules
WITHOUT_HERE = "import sys; sys.path[:] = filter(None, sys.path)"
START = """\
{without_here}
import types
marft = types.ModuleType("marft")
marft.__path__ = [sys.argv[1]]
sys.modules["marft"] = marft
from marft.inference.apart.{program} import main
main(int(sys.argv[2]))
"""  # makes MARFT modules with only numpy dependencies importable, without the rest of MARFT's environment


def place(engine: str) -> Path:
    """Return the folder for an engine's environment."""
    data = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(data) / "marft" / "engines" / engine


def python_of(engine: str, given: str) -> str:
    """Return the Python executable for an engine.

    Args:
        given: path from the recipe; "": the installed environment.

    Raises:
        ValueError: the Python is missing or does not run, or the engine is not installed in it.
    """
    python = Path(given).expanduser() if given else place(engine) / "bin" / "python"
    remedy = (
        f"install it:  marft engine install {engine}  or give the Python of an environment that has it, or sample in "
        "process:  --engine.kind local"
    )
    if python.is_dir():
        raise ValueError(f"engine.python: {python} is a folder; give the Python in it, as bin/python of an environment")
    if not python.is_file():
        raise ValueError(f"engine.python: there is no {python}; {remedy}")
    look = f"{WITHOUT_HERE}; import importlib.util as u; print(u.find_spec('{engine}') is not None)"
    try:
        found = _answer([str(python), "-c", look], f"{python} is asked whether it has {engine}")
    except subprocess.TimeoutExpired as error:
        raise ValueError(f"engine.python: {python} has not answered in {LOOK_SECONDS:g} seconds; {remedy}") from error
    except OSError as error:
        raise ValueError(f"engine.python: {python} is no Python that can be run ({error}); {remedy}") from error
    if found.strip() != b"True":
        raise ValueError(f"engine.python: {python} has no {engine}; {remedy}")
    return str(python)


def _answer(words: Sequence[str], why: str) -> bytes:
    """Run a program and return its output, with a progress message after ``SAY_SECONDS``.

    Raises:
        OSError: the program cannot run.
        subprocess.TimeoutExpired: the program has not exited in time.
    """
    with subprocess.Popen(
        words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as program:  # fmt: skip
        with suppress(subprocess.TimeoutExpired):
            return program.communicate(timeout=SAY_SECONDS)[0]
        show("engine.python", f"{why}, and has not answered in {SAY_SECONDS:g} seconds; it has {LOOK_SECONDS:g}")
        try:
            return program.communicate(timeout=LOOK_SECONDS - SAY_SECONDS)[0]
        except subprocess.TimeoutExpired:
            program.kill()
            raise


def command(python: str, program: str, descriptor: int) -> Sequence[str]:
    """Return the command for a MARFT program on another Python.

    Args:
        program: module name.
        descriptor: file descriptor of its socket.
    """
    start = START.format(program=program, without_here=WITHOUT_HERE)
    return [python, "-u", "-X", "faulthandler", "-c", start, str(PACKAGE), str(descriptor)]


def own_command(descriptor: int) -> Sequence[str]:
    """Return the command for MARFT's own engine on the current Python, with the same importable modules.

    Args:
        descriptor: file descriptor of its socket.
    """
    return python_here("marft.inference.apart.local_server", descriptor)
