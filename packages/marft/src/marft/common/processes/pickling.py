"""Pickled objects of the user's own classes, in ``bytes`` fields of messages.

Recipes with plugins, teams and tasks hold objects that only their classes can rebuild. Use these functions only between
a run and its own child processes: unpickling runs code. Everything else is encoded without pickle.
"""

from __future__ import annotations

import pickle
from typing import Any

from marft.common.error_origin import describe_error
from marft.common.errors import UserError


def pickle_value(value: object, description: str, setting: str = "rollout.workers", fallback: int = 0) -> bytes:
    """Pickle a value for a child process.

    Args:
        value: value to pickle.
        description: description of the value for the error message.
        setting: setting that starts the child processes.
        fallback: value of the setting without child processes.

    Raises:
        UserError: the value cannot be pickled.
    """
    try:
        return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        raise UserError(
            f"{setting}: {description} cannot be sent to another process ({describe_error(error)}); keep to "
            f"plain values and to classes that can be imported, or set {setting.rpartition('.')[2]} = {fallback}"
        ) from error


def unpickle_value(data: bytes) -> Any:
    """Return the value from :func:`pickle_value`; raises any error of the classes in it."""
    return pickle.loads(data)
