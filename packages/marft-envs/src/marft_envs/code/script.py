"""Scripted policy for generated problems, with every role in the recommended teams."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from marft.envs.scripts import Cue
from marft_envs.code.drawing import ENTRY, NAMES, WORDS, program_of
from marft_envs.code.phrases import Kind, Step, in_code, mistakes, steps_in, value_of
from marft_envs.code.session import REFLECTOR, TESTER

ASKED = re.compile(r"Write f\(x\), where x is ([a-z ]+): (.+)\.")
ADVICE = re.compile(r"Return (.+)\.$", re.MULTILINE)
PROGRAM = re.compile(r"^def f\(x\): return .*$", re.MULTILINE)
TESTS = 2  # number of tests written by the tester
KIND_OF = {name: kind for kind, name in NAMES.items()}


@dataclass(frozen=True, slots=True)
class Programmer:
    """Scripted coder, tester and reflector. With ``skill`` 1 it is always right; else it makes typical mistakes."""

    skill: float = 1.0

    def __call__(self, cue: Cue) -> str:
        text = "\n".join(str(message["content"]) for message in cue.chat)
        asked = ASKED.search(text)
        steps = steps_in(asked[2]) if asked else None
        if asked is None or steps is None:
            return "I do not see what to write."
        well = cue.random.random() < self.skill
        if cue.role == TESTER:
            return self._tests(cue, KIND_OF[asked[1]], steps, well)
        if cue.role == REFLECTOR:
            return f"Return {in_code(steps)}." if well else "Look at the tests again."
        advice, last = ADVICE.search(cue.shown), PROGRAM.search(cue.shown)
        if advice and well:
            return program_of(advice[1])
        if last and not well:  # a weak model repeats its previous program
            return last[0]
        return program_of(in_code(steps) if well else cue.random.choice(mistakes(steps)))

    def _tests(self, cue: Cue, kind: Kind, steps: list[Step], well: bool) -> str:
        code = in_code(steps) if well else cue.random.choice(mistakes(steps))
        found: dict[str, str] = {}
        while len(found) < TESTS:
            x = _small(cue, kind)
            found[repr(x)] = f"{ENTRY}({x!r}) == {value_of(code, x)!r}"
        return "\n".join(found.values())


def _small(cue: Cue, kind: Kind) -> Any:
    """Draw an input that is easy to compute."""
    if kind == "number":
        return cue.random.randint(0, 2)
    if kind == "text":
        return cue.random.choice(WORDS)
    return [cue.random.randint(0, 9) for _ in range(cue.random.randint(1, 3))]
