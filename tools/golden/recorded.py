"""Engine that records completions, or plays recorded ones. It works in the reference and in the present tree.

Completions of an engine in its own process, or with a policy lag, depend on timing. The same recorded completions must
still give the same gradients: ``golden.py`` records such a run, and both trees learn from the record.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from marft.config.plugins import find_plugin

try:
    from marft.common.types import Completion, VersionRange
    from marft.config.interfaces.engine import EngineFactory
except ImportError:  # the names of the reference
    from marft.config.parts import EnginePart as EngineFactory  # type: ignore[import-not-found,no-redef]
    from marft.types import Completion  # type: ignore[import-not-found,no-redef]
    from marft.types import Versions as VersionRange  # type: ignore[no-redef]


class Recorder(EngineFactory):
    """Engine in a process of its own; every completion is written to ``file``, one JSON line each."""

    separate_weights: ClassVar[bool] = True
    file: str

    def open(self, run: Any, models: Any, policies: Sequence[str], thread: Executor) -> Any:
        """Open the engine that samples."""
        process: Any = find_plugin("engines", "process")()
        engine = process.open(run, models, policies, thread)
        return _Recording(engine, Path(self.file))


class Player(EngineFactory):
    """Engine that returns the completions of ``file``."""

    separate_weights: ClassVar[bool] = True
    apart: ClassVar[bool] = True  # the name of ``separate_weights`` in the reference
    file: str

    def open(self, run: Any, models: Any, policies: Sequence[str], thread: Executor) -> Any:  # noqa: ARG002
        """Read the completions."""
        return _Playing(Path(self.file))


class _Recording:
    def __init__(self, engine: Any, file: Path) -> None:
        self._engine, self._file = engine, file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def sample(self, policy: str, prompt: Any, sampling: Any, key: Any) -> Completion:
        """Sample, and write down what was sampled."""
        completion: Completion = await self._engine.sample(policy, prompt, sampling, key)
        line = {
            "key": list(key),
            "tokens": completion.tokens.tolist(),
            "log_probs": completion.log_probs.tolist(),
            "text": completion.text,
            "finish": completion.finish,
            "versions": list(completion.versions),
        }
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        return completion


class _Playing:
    """Engine without a model, with the names of both trees: ``settle`` is ``wait_idle`` in the reference."""

    def __init__(self, file: Path) -> None:
        lines = map(json.loads, file.read_text(encoding="utf-8").splitlines())
        self._completions = {tuple(line["key"]): line for line in lines}
        self._versions: dict[str, int] = {}
        self._used: Counter[str] = Counter(sampled_tokens=0)

    async def sample(self, policy: str, prompt: Any, sampling: Any, key: Any) -> Completion:  # noqa: ARG002
        """Return the recorded completion of this action."""
        line = self._completions[tuple(key)]
        self._used["sampled_tokens"] += len(line["tokens"])
        return Completion(
            np.array(line["tokens"], np.int32),
            np.array(line["log_probs"], np.float32),
            line["text"],
            line["finish"],
            VersionRange(*line["versions"]),
        )

    async def choose(self, *_: object) -> Any:
        """Refuse: no choice is recorded."""
        raise NotImplementedError("choices are not recorded")

    def external_wait(self) -> contextlib.AbstractContextManager[None]:
        """Return a context manager that does nothing."""
        return contextlib.nullcontext()

    async def publish(self, policies: Mapping[str, object], version: int) -> None:
        """Remember the version."""
        self._versions.update(dict.fromkeys(policies, version))

    async def wait_idle(self) -> None:
        """Return: nothing is computed."""

    settle = wait_idle

    def version(self, policy: str) -> int:
        """Return the version that was published last."""
        return self._versions.get(policy, 0)

    def usage(self) -> Mapping[str, float]:
        """Return the number of tokens."""
        return dict(self._used)

    async def close(self) -> None:
        """Return: nothing was opened."""
