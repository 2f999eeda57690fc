"""Pages that show what others wrote."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager

import matplotlib as mpl
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure

from marft.common.texts import cut, visible

LONGEST = 200_000  # characters of a text on a page


def page(package: str, template: str, **values: object) -> str:
    """Return a template of a package, filled in. Whatever is put into it is text: escaped, without what a page would
    obey, and not too long."""
    environment = Environment(
        loader=PackageLoader(package, "."), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        finalize=_as_text,
    )  # fmt: skip
    return environment.get_template(template).render(values)


@contextmanager
def plain_labels() -> Iterator[None]:
    """In pictures, a dollar sign is one: names are no formulas, which could also be wrong."""
    with mpl.rc_context({"text.parse_math": False}):
        yield


@plain_labels()
def svg(figure: Figure) -> Markup:
    """A picture of ours, to stand in a page."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    return Markup(buffer.getvalue()[buffer.getvalue().index("<svg") :])


def _as_text(value: object) -> object:
    return value if isinstance(value, Markup) or not isinstance(value, str) else cut(visible(value), LONGEST)
