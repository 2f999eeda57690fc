"""Fixed date for chat templates, taken from the recipe: prompts do not depend on the current day."""

from __future__ import annotations

from datetime import datetime

CLOCK = "strftime_now"  # function name in templates
DIRECTIVES = ("a", "A", "b", "B", "d", "-d", "e", "m", "-m", "y", "Y", "j", "H", "I", "M", "S", "p", "F", "T", "x", "c")


def dated(template: str, day: str) -> str:
    """Return a chat template with a fixed date, at midnight; unchanged if the template does not use a date.

    The date function is a macro inside the template, because a template can receive only plain data from outside.

    >>> dated("{{ strftime_now('%Y') }}", "2024-07-26").endswith("{{ '' }}{{ strftime_now('%Y') }}")
    True

    Args:
        day: date as YYYY-MM-DD.
    """
    if CLOCK not in template:
        return template
    then = datetime.fromisoformat(day)
    shown = "".join(f".replace('%{what}', '{then.strftime(f'%{what}')}')" for what in DIRECTIVES)
    macro = f"{{% macro {CLOCK}(format) %}}{{{{ format{shown}.replace('%%', '%') }}}}{{% endmacro %}}"
    return macro + "{{ '' }}" + template  # keeps a leading newline of the template, which Jinja would drop after a tag
