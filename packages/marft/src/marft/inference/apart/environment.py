"""Where Python environments of engines are, which want other versions of libraries than MARFT, and how programs run."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from marft.common.processes.child import show
from marft.common.processes.python_here import python_here

LOOK_SECONDS = 60.0  # that a Python has to answer in
SAY_SECONDS = 5.0  # before it is said that it is waited for
PACKAGE = Path(__file__).parents[2]  # of MARFT
WITHOUT_HERE = "import sys; sys.path[:] = filter(None, sys.path)"  # the working folder, where nobody's modules are
START = """\
{without_here}
import types
marft = types.ModuleType("marft")
marft.__path__ = [sys.argv[1]]
sys.modules["marft"] = marft
from marft.inference.apart.{program} import main
main(int(sys.argv[2]))
"""  # modules of ours that need numpy alone, and nothing else of this environment


def place(engine: str) -> Path:
    """The folder of an engine's environment."""
    data = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(data) / "marft" / "engines" / engine


def python_of(engine: str, given: str) -> str:
    """The Python that an engine runs on.

    Args:
        given: by the recipe; "": the one that was installed.

    Raises:
        ValueError: it is not there, or the engine is not there.
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
    """What a program prints; where that takes long, it is said what is waited for.

    Raises:
        OSError: it cannot be run.
        subprocess.TimeoutExpired: it has not ended in time.
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
    """A program of ours on another Python.

    Args:
        program: the module's name.
        descriptor: its end of the connection.
    """
    start = START.format(program=program, without_here=WITHOUT_HERE)
    return [python, "-u", "-X", "faulthandler", "-c", start, str(PACKAGE), str(descriptor)]


def own_command(descriptor: int) -> Sequence[str]:
    """Our own engine on Python as here, with the modules that can be found here.

    Args:
        descriptor: its end of the connection.
    """
    return python_here("marft.inference.apart.local_server", descriptor)
