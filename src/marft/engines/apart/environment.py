"""Where Python environments of engines are, which want other versions of libraries than MARFT, and how programs run."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from marft.processes.python_here import python_here

LOOK_SECONDS = 60.0
PACKAGE = Path(__file__).parents[2]  # of MARFT
START = """\
import sys, types
marft = types.ModuleType("marft")
marft.__path__ = [sys.argv[1]]
sys.modules["marft"] = marft
from marft.engines.apart.{program} import main
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
    look = f"import importlib.util as u; print(u.find_spec('{engine}') is not None)"
    try:
        found = subprocess.run([str(python), "-c", look], check=False, capture_output=True, timeout=LOOK_SECONDS).stdout
    except subprocess.TimeoutExpired as error:
        raise ValueError(f"engine.python: {python} has not answered in {LOOK_SECONDS:.0f} seconds; {remedy}") from error
    except OSError as error:
        raise ValueError(f"engine.python: {python} is no Python that can be run ({error}); {remedy}") from error
    if found.strip() != b"True":
        raise ValueError(f"engine.python: {python} has no {engine}; {remedy}")
    return str(python)


def command(python: str, program: str, descriptor: int) -> Sequence[str]:
    """A program of ours on another Python.

    Args:
        program: the module's name.
        descriptor: its end of the connection.
    """
    start = START.format(program=program)
    return [python, "-u", "-X", "faulthandler", "-c", start, str(PACKAGE), str(descriptor)]


def own_command(descriptor: int) -> Sequence[str]:
    """Our own engine on Python as here, with the modules that can be found here.

    Args:
        descriptor: its end of the connection.
    """
    return python_here("marft.engines.apart.local_server", descriptor)
