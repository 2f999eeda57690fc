"""What the site has beyond docs/: the README as its entrance, and every file of the repository that a page links to."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path

from links import MOVED, PICTURES, ROOT, linked_files, page_of, path_of, uri_of, with_links
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure import StructureItem
from mkdocs.structure.files import File, Files
from mkdocs.structure.nav import Navigation
from mkdocs.structure.pages import Page
from pages import stale
from readability import sentences_of

SECTIONS: list[tuple[str, list[Page]]] = []  # titles of the navigation, with all pages below
CODE = r"`\1`"  # inline code stays
SEARCH = tomllib.loads((Path(__file__).parent / "search.toml").read_text(encoding="utf-8"))


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
    texts = [(path_of(file.src_uri), file.content_string) for file in files.documentation_pages()]
    waiting = sorted({target for path, text in texts for target in linked_files(path, text)})
    while waiting:
        target = waiting.pop(0)
        uri = uri_of(target)
        if files.get_file_from_path(uri) is None and (ROOT / target).exists():
            if target.endswith(PICTURES):
                files.append(File.generated(config, uri, abs_src_path=str(ROOT / target)))
                continue
            text = page_of(target)
            files.append(File.generated(config, uri, content=text))
            waiting += linked_files(target, text) if (ROOT / target).is_dir() else []
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Let links lead to where the site has what they mean, and give the page its words and its weight in the search."""
    uri = page.file.src_uri
    if words := SEARCH["words"].get(uri):
        page.meta["tags"] = words.split(", ")
    boosts = SEARCH["boost"]
    page.meta["search"] = {"boost": boosts.get(uri) or next((boosts[key] for key in boosts if uri.startswith(key)), 1)}
    return with_links(markdown, page.file.src_uri)


def on_nav(nav: Navigation, **_: object) -> None:
    """Remember the order of the pages for llms.txt."""
    SECTIONS.clear()
    SECTIONS.extend((item.title or "", list(_pages_of(item))) for item in nav.items)


def _pages_of(item: StructureItem) -> Iterator[Page]:
    if isinstance(item, Page):
        yield item
    for child in getattr(item, "children", None) or ():
        yield from _pages_of(child)


def on_post_build(config: MkDocsConfig) -> None:
    """Write llms.txt, and the Markdown of every page beside it, for programs that read the docs."""
    site = Path(config.site_dir)
    lines = [f"# {config.site_name}", "", f"> {config.site_description}", ""]
    for title, pages in SECTIONS:
        lines += [f"## {title}", ""]
        for page in pages:
            text = page.markdown or ""
            target = site / page.file.src_uri
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
            lines.append(
                f"- [{page.title}]({page.file.src_uri}): {next(iter(sentences_of(text, code=CODE)), '')}".rstrip(": ")
            )
        lines.append("")
    (site / "llms.txt").write_text("\n".join(lines), encoding="utf-8")
