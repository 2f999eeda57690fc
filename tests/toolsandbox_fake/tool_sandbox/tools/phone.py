from __future__ import annotations

import datetime
import os
import signal
import sys
import time
from uuid import uuid4

from tool_sandbox.common.execution_context import get_current_context


def set_lamp(on: bool) -> None:
    """Turn the lamp on or off."""
    if not isinstance(on, bool):
        raise TypeError("on is no bool")
    get_current_context().lamp = on


def add_person(name: str) -> str:
    """Add somebody to the book."""
    get_current_context().book[name] = number = str(uuid4())
    return number


def what_time() -> tuple[str, float]:
    """Tell the time."""
    now = datetime.datetime.now()
    return now.isoformat(), now.timestamp()


def misbehave(how: str) -> None:
    """Do what no tool should."""
    if how == "tell":
        raise ValueError(f"no <Expr at 0x{id(object()):X}>")
    if how == "panic":
        raise SyntaxError("\ud800")
    if how == "think":
        time.sleep(3600)
    if how == "hang":
        os.kill(os.getpid(), signal.SIGSTOP)
    if how == "die":
        sys.__stderr__.write("going down\n")
        os._exit(3)


def end_conversation() -> None:
    """End it."""
    get_current_context().active = False
