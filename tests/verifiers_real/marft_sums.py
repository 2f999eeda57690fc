"""Sums for the real package ``verifiers``, with the face that its version has: what the night tries our process with."""

from __future__ import annotations

from typing import Any

import verifiers

ROWS = [{"question": f"{n} + 1 =", "answer": str(n + 1)} for n in range(20)]

if hasattr(verifiers, "load_environment"):
    from datasets import Dataset

    class Twice(verifiers.MultiTurnEnv):
        """Says back what was said, once."""

        async def env_response(self, messages: Any, state: Any, **_: Any) -> Any:
            return [{"role": "user", "content": f"You said: {messages[-1].content}"}]

    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    def right(completion: Any, answer: str) -> float:
        assert "raise" not in str(completion[-1].content)
        return float(answer in str(completion[-1].content))

    def load_environment(kind: str = "single") -> Any:
        rubric = verifiers.Rubric(funcs=[right])
        data = Dataset.from_list(ROWS)
        if kind == "twice":
            return Twice(dataset=data, rubric=rubric, max_turns=2)
        if kind == "tools":
            return verifiers.ToolEnv(dataset=data, rubric=rubric, tools=[add])
        return verifiers.SingleTurnEnv(dataset=data, rubric=rubric, system_prompt="Be brief.")

else:
    import verifiers.v1 as vf

    class SumData(vf.TaskData):
        answer: str

    class Sum(vf.Task[SumData]):
        @vf.reward
        async def right(self, trace: Any) -> float:
            assert "raise" not in trace.last_reply
            return float(self.data.answer in trace.last_reply)

        @vf.metric
        async def length(self, trace: Any) -> float:
            return float(len(trace.last_reply))

    class Sums(vf.Taskset[Sum]):
        def load(self) -> Any:
            for row in ROWS:
                yield Sum(SumData(prompt=row["question"], answer=row["answer"], system_prompt="Be brief."))

    __all__ = ["Sums"]
