"""What the site has beyond docs/: the README as its entrance, and every file of the repository that a page links to."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pages import stale

ROOT = Path(__file__).parents[2]
MOVED = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
LINK = re.compile(r"(\]\()(?!\w+:)([^)#\s]+)((?:#[^)\s]*)?\))")
LANGUAGES = {".py": "python", ".toml": "toml", ".md": "markdown", ".json": "json", ".txt": "text", ".jinja": "jinja"}
PICTURES = (".svg", ".png")
FENCE = "`" * 8


def on_config(_: MkDocsConfig) -> None:
    """Refuse pages that are not what the code says."""
    try:
        old = stale()
    except ValueError as error:  # a key without a meaning
        raise PluginError(str(error)) from error
    if old:
        raise PluginError(f"docs/{old[0]} is not what the code says; run: python tools/site/pages.py")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that lie outside docs/, and the files that pages link to."""
    for name, uri in MOVED.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        files.append(File.generated(config, uri, content=text))
    texts = [(_place(file.src_uri), file.content_string) for file in files.documentation_pages()]
    waiting = sorted({target for place, text in texts for target in _outside(place, text)})
    while waiting:
        target = waiting.pop(0)
        uri = _uri(target)
        if files.get_file_from_path(uri) is None and (ROOT / target).exists():
            if target.endswith(PICTURES):
                files.append(File.generated(config, uri, abs_src_path=str(ROOT / target)))
                continue
            text = _folder_page(target) if (ROOT / target).is_dir() else _source_page(target)
            files.append(File.generated(config, uri, content=text))
            waiting += _outside(target, text) if (ROOT / target).is_dir() else []
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Let links lead to where the site has what they mean."""
    if page.file.src_uri.startswith("source/") and FENCE in markdown:
        return markdown
    place = _place(page.file.src_uri)

    def moved(found: re.Match[str]) -> str:
        target = _target(place, found[2])
        if not (ROOT / target).exists():  # which mkdocs will say
            return found[0]
        return found[1] + relpath(_uri(target), PurePosixPath(page.file.src_uri).parent) + found[3]

    return LINK.sub(moved, markdown)


def _place(uri: str) -> str:
    """Where a page of the site lies in the repository."""
    for name, moved in MOVED.items():
        if uri == moved:
            return name
    return uri.removeprefix("source/").removesuffix(".md") if uri.startswith("source/") else f"docs/{uri}"


def _uri(target: str) -> str:
    """Where the site has a file of the repository."""
    if target in MOVED:
        return MOVED[target]
    if target.startswith("docs/"):
        return target.removeprefix("docs/")
    return f"source/{target}" if target.endswith(PICTURES) else f"source/{target}.md"


def _target(place: str, link: str) -> str:
    """The file of the repository that a link means."""
    return normpath(PurePosixPath(place).parent / link)


def _outside(place: str, text: str) -> Iterator[str]:
    for found in LINK.finditer(text):
        target = _target(place, found[2])
        if not target.startswith("docs/") and target not in MOVED:
            yield target


def _source_page(target: str) -> str:
    text = (ROOT / target).read_text(encoding="utf-8").rstrip("\n")
    language = LANGUAGES.get(Path(target).suffix, "text")
    return f"{_head(target)}\n{FENCE}{language}\n{text}\n{FENCE}\n"


def _folder_page(target: str) -> str:
    lines = [_head(target), "| file | |", "| --- | --- |"]
    for file in sorted((ROOT / target).iterdir()):
        if file.suffix in LANGUAGES and file.suffix != ".json":
            lines.append(f"| [`{file.name}`]({file.parent.name}/{file.name}) | {_about(file)} |")
    return "\n".join(lines) + "\n"


def _head(target: str) -> str:
    return f"---\ntitle: {target}\nsearch:\n  exclude: true\nhide: [toc]\n---\n\n# `{target}`\n"


def _about(file: Path) -> str:
    """The first paragraph of what a module says of itself."""
    if file.suffix != ".py":
        return ""
    about = (ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or "").partition("\n\n")[0]
    return " ".join(about.split()).replace("``", "`").replace("|", "\\|")
