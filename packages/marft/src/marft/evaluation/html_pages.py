"""HTML pages with untrusted text."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager

import matplotlib as mpl
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure

from marft.common.texts import sanitize, truncate

MAX_TEXT_LENGTH = 200_000  # maximum length of a text on a page, in characters


def render_page(package: str, template: str, **values: object) -> str:
    """Render a template of a package.

    Values are inserted as text: escaped, cleaned of control characters, and cut to ``MAX_TEXT_LENGTH`` characters.
    Values of type ``Markup`` are inserted as they are.
    """
    environment = Environment(
        loader=PackageLoader(package, "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        finalize=_clean_text,
    )
    return environment.get_template(template).render(values)


@contextmanager
def disable_math_text() -> Iterator[None]:
    """Disable math text in figures to show dollar signs in names literally."""
    with mpl.rc_context({"text.parse_math": False}):
        yield


@disable_math_text()
def to_svg(figure: Figure) -> Markup:
    """Return a figure as inline SVG."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    return Markup(buffer.getvalue()[buffer.getvalue().index("<svg") :])


def _clean_text(value: object) -> object:
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    return truncate(sanitize(value), MAX_TEXT_LENGTH)
