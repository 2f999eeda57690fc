"""Scripted policy for generated problems, with every role in the recommended teams."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from marft.envs.scripted_policy import PolicyInput
from marft_envs.code.generator import ENTRY_NAME, EXAMPLE_WORDS, KIND_NAMES, make_program
from marft_envs.code.phrases import Kind, Step, evaluate, parse_steps, to_code, wrong_expressions
from marft_envs.code.session import REFLECTOR, TESTER

PROMPT_PATTERN = re.compile(r"Write f\(x\), where x is ([a-z ]+): (.+)\.")
ADVICE_PATTERN = re.compile(r"Return (.+)\.$", re.MULTILINE)
PROGRAM_PATTERN = re.compile(r"^def f\(x\): return .*$", re.MULTILINE)
TEST_COUNT = 2  # number of tests written by the tester
KIND_OF = {name: kind for kind, name in KIND_NAMES.items()}


@dataclass(frozen=True, slots=True)
class CodeScript:
    """Scripted coder, tester and reflector. With ``skill`` 1 it is always right; else it makes typical mistakes."""

    skill: float = 1.0

    def __call__(self, cue: PolicyInput) -> str:
        text = "\n".join(str(message["content"]) for message in cue.messages)
        match = PROMPT_PATTERN.search(text)
        steps = parse_steps(match[2]) if match else None
        if match is None or steps is None:
            return "I do not see what to write."
        is_good = cue.random.random() < self.skill
        if cue.role == TESTER:
            return self._write_tests(cue, KIND_OF[match[1]], steps, is_good)
        if cue.role == REFLECTOR:
            return f"Return {to_code(steps)}." if is_good else "Look at the tests again."
        advice, last = ADVICE_PATTERN.search(cue.last_message), PROGRAM_PATTERN.search(cue.last_message)
        if advice and is_good:
            return make_program(advice[1])
        if last and not is_good:  # a weak model repeats its previous program
            return last[0]
        return make_program(to_code(steps) if is_good else cue.random.choice(wrong_expressions(steps)))

    def _write_tests(self, cue: PolicyInput, kind: Kind, steps: list[Step], is_good: bool) -> str:
        code = to_code(steps) if is_good else cue.random.choice(wrong_expressions(steps))
        tests_by_input: dict[str, str] = {}
        while len(tests_by_input) < TEST_COUNT:
            x = _draw_small_input(cue, kind)
            tests_by_input[repr(x)] = f"{ENTRY_NAME}({x!r}) == {evaluate(code, x)!r}"
        return "\n".join(tests_by_input.values())


def _draw_small_input(cue: PolicyInput, kind: Kind) -> Any:
    """Draw an input that is easy to compute."""
    if kind == "number":
        return cue.random.randint(0, 2)
    if kind == "text":
        return cue.random.choice(EXAMPLE_WORDS)
    return [cue.random.randint(0, 9) for _ in range(cue.random.randint(1, 3))]
