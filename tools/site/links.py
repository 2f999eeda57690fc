"""What links of the repository's pages lead to on the site: pages that move, and files that get a page of their own.

Paths are the repository's (``docs/training.md``); an URI is the source of a page of the site (``training.md``).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath

ROOT = Path(__file__).parents[2]
MOVED = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
LINK = re.compile(r"(\]\()(?!\w+:)([^)#\s]+)((?:#[^)\s]*)?\))")
LANGUAGES = {".py": "python", ".toml": "toml", ".md": "markdown", ".json": "json", ".txt": "text", ".jinja": "jinja"}
PICTURES = (".svg", ".png")
FENCE = "`" * 8


def path_of(uri: str) -> str:
    """Where a page of the site lies in the repository.

    >>> path_of("index.md"), path_of("training.md"), path_of("source/packages/marft/src/marft/common/types.py.md")
    ('README.md', 'docs/training.md', 'packages/marft/src/marft/common/types.py')
    """
    for path, moved in MOVED.items():
        if uri == moved:
            return path
    return uri.removeprefix("source/").removesuffix(".md") if uri.startswith("source/") else f"docs/{uri}"


def uri_of(path: str) -> str:
    """Where the site has a file of the repository.

    >>> uri_of("README.md"), uri_of("docs/training.md"), uri_of("src/a.py"), uri_of("curve.svg")
    ('index.md', 'training.md', 'source/src/a.py.md', 'source/curve.svg')
    """
    if path in MOVED:
        return MOVED[path]
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return f"source/{path}" if path.endswith(PICTURES) else f"source/{path}.md"


def target_of(path: str, link: str) -> str:
    """The file of the repository that a link on a page means.

    >>> target_of("docs/training.md", "../packages/marft/src/marft/common/types.py")
    'packages/marft/src/marft/common/types.py'
    """
    return normpath(PurePosixPath(path).parent / link)


def linked_files(path: str, text: str) -> Iterator[str]:
    """Files that a page links to, of which the site has no page yet."""
    for found in LINK.finditer(text):
        target = target_of(path, found[2])
        if not target.startswith("docs/") and target not in MOVED:
            yield target


def with_links(markdown: str, uri: str) -> str:
    """A page whose links lead to where the site has what they mean. What is not there stays: mkdocs will say so."""
    if uri.startswith("source/") and FENCE in markdown:
        return markdown
    path = path_of(uri)

    def moved(found: re.Match[str]) -> str:
        target = target_of(path, found[2])
        if not (ROOT / target).exists():
            return found[0]
        return found[1] + relpath(uri_of(target), PurePosixPath(uri).parent) + found[3]

    return LINK.sub(moved, markdown)


def page_of(path: str) -> str:
    """The page of a file of the repository, or of a folder."""
    return _folder_page(path) if (ROOT / path).is_dir() else _source_page(path)


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
