"""Fixed date for chat templates, taken from the recipe: prompts do not depend on the current day."""

from __future__ import annotations

from datetime import datetime

DATE_FUNCTION = "strftime_now"  # function name in templates
DATE_FORMATS = (
    "a",
    "A",
    "b",
    "B",
    "d",
    "-d",
    "e",
    "m",
    "-m",
    "y",
    "Y",
    "j",
    "H",
    "I",
    "M",
    "S",
    "p",
    "F",
    "T",
    "x",
    "c",
)


def fix_date(template: str, day: str) -> str:
    """Return a chat template with a fixed date, at midnight; unchanged if the template does not use a date.

    The date function is a macro inside the template, because a template can receive only plain data from outside.

    >>> fix_date("{{ strftime_now('%Y') }}", "2024-07-26").endswith("{{ '' }}{{ strftime_now('%Y') }}")
    True

    Args:
        day: date as YYYY-MM-DD.
    """
    if DATE_FUNCTION not in template:
        return template
    date = datetime.fromisoformat(day)
    replacements = "".join(f".replace('%{code}', '{date.strftime(f'%{code}')}')" for code in DATE_FORMATS)
    macro = f"{{% macro {DATE_FUNCTION}(format) %}}{{{{ format{replacements}.replace('%%', '%') }}}}{{% endmacro %}}"
    return macro + "{{ '' }}" + template  # keeps a leading newline of the template, which Jinja would drop after a tag
