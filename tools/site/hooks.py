"""What the site has beyond docs/: the README as its entrance, and every file of the repository that a page links to."""

from __future__ import annotations

from links import MOVED, PICTURES, ROOT, linked_files, page_of, path_of, uri_of, with_links
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pages import stale


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
    """Let links lead to where the site has what they mean."""
    return with_links(markdown, page.file.src_uri)
