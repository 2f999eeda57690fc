"""The viewer's page by its files: nothing from outside, no way from a text to markup or code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import marft_serve

STATIC = Path(marft_serve.__file__).parent / "viewer" / "static"
MODULES = sorted(STATIC.glob("*.js"))
WAYS_TO_MARKUP = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|srcdoc|\beval\(|new Function|DOMParser|setAttribute\(\"(on|style)"


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.name)
def test_a_module_is_short_and_makes_no_markup_of_texts(module: Path) -> None:
    text = module.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 400
    assert text.startswith("// "), "its first line says what it is for"
    assert not re.search(WAYS_TO_MARKUP, text)
    assert set(re.findall(r"https?://[^\"\s]+", text)) <= {"http://www.w3.org/2000/svg"}


def test_all_that_is_loaded_is_here() -> None:
    page = (STATIC / "index.html").read_text(encoding="utf-8")
    names = re.findall(r'(?:src|href)="(/[^"]*)"', page)
    assert names
    assert all((STATIC / name.removeprefix("/static/")).is_file() for name in names)
    imports = {name for module in MODULES for name in re.findall(r'from "(.*?)"', module.read_text(encoding="utf-8"))}
    assert imports <= {f"./{module.name}" for module in MODULES}
    assert "style=" not in page
    assert not re.search(r"<script(?![^>]*src=)", page)
    assert not re.search(r"url\(|@import", (STATIC / "viewer.css").read_text(encoding="utf-8"))


def test_every_module_is_used() -> None:
    texts = [path.read_text(encoding="utf-8") for path in MODULES] + [
        (STATIC / "index.html").read_text(encoding="utf-8")
    ]
    assert not [module.name for module in MODULES if not any(f"/{module.name}" in text for text in texts)]


def test_what_a_module_imports_is_exported_and_used() -> None:
    exports = {
        module.name: set(
            re.findall(r"^export (?:async )?(?:function|const|class) (\w+)", module.read_text("utf-8"), re.M)
        )
        for module in MODULES
    }
    for module in MODULES:
        text = module.read_text(encoding="utf-8")
        for names, source in re.findall(r'^import \{ (.*?) \} from "\./(.*?)";', text, re.M):
            for name in names.split(", "):
                assert name in exports[source], f"{module.name} imports {name} of {source}"
                assert len(re.findall(rf"\b{name}\b", text)) > 1, f"{module.name} does not use {name}"
