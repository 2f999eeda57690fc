r"""Small model that uses a calculator unreliably, and the calculator.

Training continues the bundled model for two minutes, on demonstrations of mixed quality. A team is asked for products
of three-digit numbers, which the model cannot compute. The demonstrations teach how to write a call and how to pass on
its answer. They also contain typical errors at every step.

    problem   361 * 220
    reasoner  works:  <tool_call>{"name": "multiply", "arguments": {"a": 361, "b": 220}}</tool_call>
              slips:  At a glance it is 51806.                    or a call with invalid JSON or wrong numbers
      … 79420 works:  It is 79420.                                slips:  It is 79428.
    actor     works:  The answer is \boxed{79420}.                slips:  At a glance, the answer is \boxed{88014}.

Questions of held-out splits (``marft.envs.splits``) are never demonstrated.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import numpy as np
from warm_up import warm_up

from marft.agents.prompt_messages import TruncationPolicy
from marft.agents.tools.functions import Function
from marft.common.types import AgentProfile, TokenIds
from marft.config.interfaces.channel import Message
from marft.config.models import ModelSettings
from marft.envs.splits import assign_split
from marft.inference.renderer import ChatRenderer

TEMPLATE = Path(__file__).with_name("calculator.jinja")
QUESTION = "Solve the following multiplication: {} * {}. Give only the result as your final answer."
REASONER = "You are the reasoner. Work out the product and pass it on."
ACTOR = r"You are the actor. Take the result from the message and put it in \boxed{}."
SURE, TEMPTED, TEMPTING = 0.75, 0.35, 5  # probability of correct work, by first digit: below TEMPTING, and from it on
MALFORMED = 0.15  # share of calls with invalid JSON
MISCOPIED = 0.15  # share of numbers copied with a random last digit
STEPS = 400


def multiply(a: int, b: int) -> int:
    """Multiply."""
    return a * b


TOOL = Function.from_function(multiply).tool


class Row:
    """Conversation as token ids; the model is trained on its own turns."""

    def __init__(
        self, renderer: ChatRenderer, profile: AgentProfile, question: str, seen: tuple[Message, ...] = ()
    ) -> None:
        self.renderer, self.format = renderer, renderer.formats[""]
        self.ids: list[int] = []
        self.learnt: list[bool] = []
        self._add(renderer.render("", profile, question, seen, reserve=1, cut=TruncationPolicy()).ids, False)

    def say(self, text: str) -> TokenIds:
        ids = self.format.tokenizer.encode(text, add_special_tokens=False)
        turn = np.array([*ids, self.format.stop_ids[0]], np.int32)
        self._add(turn, True)
        return turn

    def call(self, text: str) -> bool:
        """Append a tool call and the tool's answer; return True if the call succeeded."""
        turn = self.say(text)
        (call,) = self.renderer.calls("", turn, (TOOL,))
        if not call.error:
            call = replace(call, output=str(multiply(**json.loads(call.arguments))))
        answer = self.renderer.tool_format("").encode_response([call])
        assert isinstance(answer, np.ndarray), "the template leaves turns as they are"
        self._add(answer, False)
        self.result = call.output
        return not call.error

    def _add(self, ids: TokenIds, learnt: bool) -> None:
        self.ids += ids.tolist()
        self.learnt += [learnt] * len(ids)


@dataclass(frozen=True)
class Demonstrations:
    """Conversations of both roles, reproducible from the random state."""

    renderer: ChatRenderer
    random: Random

    def one(self) -> Row:
        a, b = self._numbers()
        return self._reasoner(a, b) if self.random.random() < 0.6 else self._actor(a, b)

    def _reasoner(self, a: int, b: int) -> Row:
        row = Row(self.renderer, AgentProfile("reasoner", REASONER, tools=(TOOL,)), QUESTION.format(a, b))
        if not self._works(a):
            row.say(self._glance())
            return row
        while not row.call(self._call(a, b)):
            if self.random.random() < 0.5:
                row.say(self._glance())
                return row
        row.say(f"It is {self._copy(int(row.result))}.")
        return row

    def _actor(self, a: int, b: int) -> Row:
        message = f"It is {a * b}." if self.random.random() < 0.7 else self._glance()
        row = Row(self.renderer, AgentProfile("actor", ACTOR), QUESTION.format(a, b), (Message("reasoner", message),))
        if self._works(b):
            row.say(f"The answer is \\boxed{{{message.split()[-1].rstrip('.')}}}.")
        else:
            row.say(f"At a glance, the answer is \\boxed{{{self._guess()}}}.")
        return row

    def _numbers(self) -> tuple[int, int]:
        while True:
            a, b = self.random.randint(100, 999), self.random.randint(100, 999)
            if assign_split(QUESTION.format(a, b)) == "train":
                return a, b

    def _works(self, number: int) -> bool:
        return self.random.random() < (TEMPTED if int(str(number)[0]) >= TEMPTING else SURE)

    def _call(self, a: int, b: int) -> str:
        if self.random.random() < MALFORMED:
            arguments = f'{{"a": {a} * {b}}}'
        else:
            arguments = json.dumps({"a": self._copy(a), "b": self._copy(b)})
        return f'<tool_call>\n{{"name": "multiply", "arguments": {arguments}}}\n</tool_call>'

    def _copy(self, number: int) -> int:
        """Return the number, sometimes with a random last digit."""
        return number if self.random.random() >= MISCOPIED else number // 10 * 10 + self.random.randrange(10)

    def _glance(self) -> str:
        return f"At a glance it is {self._guess()}."

    def _guess(self) -> int:
        return self.random.randint(10_000, 999_999)


def make(folder: Path) -> None:
    """Make the checkpoint."""
    settings = ModelSettings(path="tiny", chat_template=str(TEMPLATE))
    warm_up(folder, settings, lambda renderer: Demonstrations(renderer, Random(0)).one, STEPS)
