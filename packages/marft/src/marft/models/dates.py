"""The date that chat templates show: the recipe's, so that prompts are the same on whatever day they are rendered."""

from __future__ import annotations

from datetime import datetime

CLOCK = "strftime_now"  # what templates call
DIRECTIVES = ("a", "A", "b", "B", "d", "-d", "e", "m", "-m", "y", "Y", "j", "H", "I", "M", "S", "p", "F", "T", "x", "c")


def dated(template: str, day: str) -> str:
    """A chat template to which it is always the same day, at midnight; as it is where it asks for none.

    The clock is a macro of the template's own: what a template is given from outside is plain data alone.

    >>> dated("{{ strftime_now('%Y') }}", "2024-07-26").endswith("{{ '' }}{{ strftime_now('%Y') }}")
    True

    Args:
        day: as YYYY-MM-DD.
    """
    if CLOCK not in template:
        return template
    then = datetime.fromisoformat(day)
    shown = "".join(f".replace('%{what}', '{then.strftime(f'%{what}')}')" for what in DIRECTIVES)
    macro = f"{{% macro {CLOCK}(format) %}}{{{{ format{shown}.replace('%%', '%') }}}}{{% endmacro %}}"
    return macro + "{{ '' }}" + template  # which keeps what a template begins with: a newline after a tag is none
