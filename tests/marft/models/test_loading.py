"""Models and adapters that others made: what is broken, incomplete or a program is refused by name, in time."""

from __future__ import annotations

import builtins
import json
import math
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, DeepseekV32Config, DogeConfig, MiniMaxM3VLTextConfig, Phi3Config

from marft.config.bundled import resolve_path
from marft.config.models import ModelSettings
from marft.models import chat_templates, tokenizer_format
from marft.models.checkpoint_checks import check_no_pickle
from marft.models.loader import load_backbone, load_weights
from marft.models.tokenizer_format import context_length, load_config, load_tokenizer
from marft.rollout.local_runner import LocalRolloutRunner
from tests.families import FAMILY, random_model
from tests.helpers import settings
from tests.nights import some

Q_PROJ = "model.layers.0.self_attn.q_proj"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A copy of the bundled model, to break."""
    return Path(shutil.copytree(resolve_path("tiny"), tmp_path / "model"))


def test_no_weight_of_a_base_learns_unless_a_policy_asks_for_it(model: Path) -> None:
    backbone = load_backbone(ModelSettings(path=str(model)), torch.device("cpu"), torch.float32)
    assert not any(parameter.requires_grad for parameter in backbone.model.parameters())
    assert not backbone.model.training


def test_a_context_is_no_longer_than_the_model_was_made_for(model: Path) -> None:
    longest = json.loads((model / "config.json").read_text())["max_position_embeddings"]
    for context, expected in ((0, longest), (longest, longest), (longest - 1, longest - 1)):
        settings = ModelSettings(path=str(model), context_length=context)
        assert load_backbone(settings, torch.device("cpu"), torch.float32).context == expected
    with pytest.raises(ValueError, match=f"context_length {longest + 1} is more than the {longest} tokens"):
        load_backbone(ModelSettings(path=str(model), context_length=longest + 1), torch.device("cpu"), torch.float32)


def test_a_context_ends_where_rotations_change_with_the_length_of_a_row() -> None:
    """Phi 3 and 4 rotate rows above 4096 tokens otherwise, keys that are cached already excepted."""
    factors = {"short_factor": [1.0] * 48, "long_factor": [4.0] * 48, "original_max_position_embeddings": 4096}
    config = Phi3Config(
        max_position_embeddings=131072, rope_parameters={"rope_type": "longrope", "rope_theta": 1e4, **factors}
    )
    assert context_length(config, ModelSettings(path="phi")) == 4096
    with pytest.raises(ValueError, match="context_length 8192 is more than the 4096 tokens"):
        context_length(config, ModelSettings(path="phi", context_length=8192))


@pytest.mark.parametrize(
    ("config", "longest"),
    [
        (DeepseekV32Config(), 2048),
        (DogeConfig(max_position_embeddings=16384, keep_window_size=512), 512),
        (MiniMaxM3VLTextConfig(), 16 * 128),
    ],
)
def test_a_context_ends_where_a_model_begins_to_choose_what_a_token_sees(config: Any, longest: int) -> None:
    """Rounding would choose otherwise when a row is scored than when it was sampled."""
    assert context_length(config, ModelSettings(path="it")) == longest
    with pytest.raises(ValueError, match=f"context_length {longest + 1} is more than the {longest} tokens"):
        context_length(config, ModelSettings(path="it", context_length=longest + 1))


@pytest.mark.parametrize("name", ["Qwen 3 with experts", "gpt-oss"])
def test_a_model_with_experts_that_was_tuned_whole_is_read_as_it_was_saved(name: str, tmp_path: Path) -> None:
    """transformers holds experts in one tensor and saves each by itself."""
    folder, cpu = random_model(FAMILY[name].small_config(), tmp_path / "base"), torch.device("cpu")
    tuned, again = (load_backbone(ModelSettings(path=str(folder)), cpu, torch.float32) for _ in range(2))
    with torch.no_grad():
        for weight in tuned.model.parameters():
            weight.add_(0.01)
    tuned.model.save_pretrained(tmp_path / "tuned")
    load_weights(again, tmp_path / "tuned")
    wanted = tuned.base_weights()
    assert all(torch.equal(weight, wanted[name]) for name, weight in again.base_weights().items())


def change_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], Any], name: str = "model") -> None:
    weights = load_file(folder / f"{name}.safetensors")
    change(weights)
    save_file(weights, folder / f"{name}.safetensors", metadata={"format": "pt"})


def change_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_a_tuned_model_that_is_no_number_any_more_is_refused_and_changes_nothing(model: Path) -> None:
    backbone = load_backbone(ModelSettings(path=str(model)), torch.device("cpu"), torch.float32)
    before = backbone.head.weight.clone()
    change_weights(model, lambda weights: weights[f"{Q_PROJ}.weight"][3, 4].fill_(math.nan))
    with pytest.raises(ValueError, match=f"the weights at {model}: {Q_PROJ}.weight holds NaN"):
        load_weights(backbone, model)
    assert torch.equal(backbone.head.weight, before)
    assert all(torch.isfinite(weight).all() for weight in backbone.base_weights().values())


def refusal(folder: Path) -> str:
    with pytest.raises(ValueError, match=r"models: ") as caught:
        load_backbone(ModelSettings(path=str(folder)), torch.device("cpu"), torch.float32)
    assert str(folder) in str(caught.value)
    return str(caught.value)


def truncated(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])


def pickled(folder: Path) -> None:
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def without_a_shard(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    half = dict(list(weights.items())[:10])
    save_file(half, folder / "model-00001-of-00002.safetensors", metadata={"format": "pt"})
    places = {name: f"model-0000{1 if name in half else 2}-of-00002.safetensors" for name in weights}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))


def sharded(files: Callable[[str], Any] = str, again: bool = False) -> Callable[[Path], None]:
    """Weights in two files, of which the index says where ``files`` says; ``again``: the second has the first's too."""

    def change(folder: Path) -> None:
        weights = load_file(folder / "model.safetensors")
        (folder / "model.safetensors").unlink()
        places = {name: f"model-{1 + (number > 9)}.safetensors" for number, name in enumerate(sorted(weights))}
        for file in set(places.values()):
            held = {name: weights[name].clone() for name in weights if places[name] == file or (again and "-2" in file)}
            save_file(held, folder / file, metadata={"format": "pt"})
        told = {name: files(file) for name, file in places.items()}
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": told}))

    return change


def pickled_shard(folder: Path) -> None:
    """What transformers would unpickle."""
    sharded(lambda file: file.replace("-2.safetensors", "-2.bin"))(folder)
    torch.save(load_file(folder / "model-2.safetensors"), folder / "model-2.bin")


def whole_numbers(folder: Path) -> None:
    change_weights(folder, lambda w: w.update({Q: w[Q].to(torch.int8) for Q in [f"{Q_PROJ}.weight"]}))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("loaded", [torch.float32, torch.bfloat16], ids=["to float32", "to bfloat16"])
@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16], ids=["from float32", "from bfloat16"])
def test_what_is_no_number_is_refused_with_the_tensors_name_in_the_last_of_several_files(
    model: Path, stored: torch.dtype, loaded: torch.dtype, value: float
) -> None:
    last = AutoModelForCausalLM.from_pretrained(model, dtype=stored)
    with torch.no_grad():
        last.model.norm.weight[5] = value
    (model / "model.safetensors").unlink()
    last.save_pretrained(model, max_shard_size="300KB")
    assert len(list(model.glob("model-*.safetensors"))) > 2
    with pytest.raises(ValueError, match=r"model\.norm\.weight holds NaN or infinities"):
        load_backbone(ModelSettings(path=str(model)), torch.device("cpu"), loaded)


def test_what_is_no_number_is_refused_also_where_it_is_no_parameter(tmp_path: Path) -> None:
    """What corrects the routers of DeepSeek 3 is a buffer."""
    folder, name = random_model(FAMILY["DeepSeek 3"].small_config(), tmp_path), "e_score_correction_bias"
    change_weights(folder, lambda weights: next(w for n, w in weights.items() if n.endswith(name)).fill_(math.nan))
    assert f"gate.{name} holds NaN" in refusal(folder)


BROKEN: dict[str, tuple[Callable[[Path], Any], str]] = {
    "missing": (lambda f: change_weights(f, lambda w: w.pop(f"{Q_PROJ}.weight")), f"lacks {Q_PROJ}.weight: they would stay random"),
    "unused": (lambda f: change_weights(f, lambda w: w.update({"model.layers.0.self_attn.o_proj.bias": torch.ones(128)})), "o_proj.bias, which Qwen2ForCausalLM does not compute"),
    "shape": (lambda f: change_weights(f, lambda w: w.update({f"{Q_PROJ}.weight": torch.ones(3, 128)})), "q_proj.weight has shape (3, 128) where config.json asks for (128, 128)"),
    "nan": (lambda f: change_weights(f, lambda w: w[f"{Q_PROJ}.weight"][3, 4].fill_(math.nan)), f"{Q_PROJ}.weight holds NaN"),
    "inf": (lambda f: change_weights(f, lambda w: w["model.norm.weight"][3].fill_(-math.inf)), "model.norm.weight holds NaN or inf"),
    "truncated": (truncated, "incomplete metadata"),
    "empty": (lambda f: (f / "model.safetensors").write_bytes(b""), "header too small"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "no file named model.safetensors"),
    "no shard": (without_a_shard, "model-00002-of-00002.safetensors"),
    "shards hold one tensor": (sharded(again=True), "model-1.safetensors and model-2.safetensors both hold"),
    "shard elsewhere": (sharded(lambda file: f"../{file}"), "names '../model-1.safetensors', which is no *.safetensors in the folder"),
    "shard is a pickle": (pickled_shard, "names 'model-2.bin', which is no *.safetensors in the folder"),
    "shard without a name": (sharded(lambda _: 5), "names 5, which is no *.safetensors in the folder"),
    "index": (lambda f: (sharded()(f), (f / "model.safetensors.index.json").write_text("[]")), "index.json does not say which file holds which weights"),
    "whole numbers": (whole_numbers, "holds whole numbers as model.layers.0.self_attn.q_proj.weight"),
    "no heads": (lambda f: change_json(f / "config.json", num_attention_heads=0), "config.json says num_attention_heads = 0"),
    "no context": (lambda f: change_json(f / "config.json", max_position_embeddings=-4), "config.json says max_position_embeddings = -4"),
    "text": (lambda f: change_json(f / "config.json", text_config={}), "text_config in its config.json is no configuration"),
    "rotation": (lambda f: change_json(f / "config.json", rope_parameters={"rope_type": "yarn"}), "Missing required keys in `rope_parameters`"),
    "pickled": (pickled, "pytorch_model.bin and no *.safetensors: pickled weights can run code"),
    "code": (lambda f: change_json(f / "config.json", model_type="mine", auto_map={"AutoConfig": "c.C", "AutoModelForCausalLM": "c.M"}), "code of its own"),
    "unknown": (lambda f: change_json(f / "config.json", model_type="mine"), "does not recognize this architecture"),
    "no config": (lambda f: (f / "config.json").unlink(), "cannot load"),
    "config": (lambda f: (f / "config.json").write_text("[]"), "cannot load"),
    "type": (lambda f: change_json(f / "config.json", hidden_size="big"), "hidden_size"),
    "adapter": (lambda f: (f / "adapter_config.json").write_text("{}"), "is an adapter; name its base"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_model_is_refused_by_name(model: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Missing weights once stayed random, NaN trained on, and code of a model was asked about on standard input."""
    monkeypatch.setattr(builtins, "input", lambda *_: pytest.fail("asked on standard input"))
    breaks, message = BROKEN[name]
    breaks(model)
    assert message in refusal(model)


def test_a_whole_model_is_not_refused_whatever_else_lies_beside_it(model: Path) -> None:
    change_weights(model, lambda w: w.update({"vision_tower.patch.weight": torch.ones(2)}))  # a part that nobody uses
    torch.save({}, model / "training_args.bin")
    (model / "pytorch_model.bin").write_bytes(b"also as a pickle")
    load_backbone(ModelSettings(path=str(model)), torch.device("cpu"), torch.float32)
    load_tokenizer(ModelSettings(path=str(model)))


TEMPLATES = {
    "loops": ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "it loops"),
    "loops with a system message": (
        "{% for m in messages %}{{ m.content }}{% if m.role == 'system' %}{% for a in range(99999) %}"
        "{% for b in range(99999) %}{% endfor %}{% endfor %}{% endif %}{% endfor %}", "it loops",
    ),
    "computes for hours": ("{{ 10 ** 100000000 }}", "it loops, or computes too much"),
    "computes where a chat ends": (
        "{% for m in messages %}{{ m.content }}{% endfor %}{% if not add_generation_prompt %}"
        "{% set n = messages | length %}{{ (9 + n) ** 100000000 }}{% endif %}", "it loops, or computes too much",
    ),
    "repeats": ("{{ 'x' * 10 ** 10 }}", "it takes more than 1,024 MB"),
    "replaces": ("{% set a = 'x' * 10 ** 6 %}{{ a.replace('x', a) }}", "it takes more than 1,024 MB"),
    "fills up": ("{{ '%2000000000d' % 1 }}", "it takes more than 1,024 MB"),
    "centers": ("{{ 'x' | center(10 ** 9) }}", "it takes more than 1,024 MB"),
    "says too much": ("{{ messages[0].content * 2000000 }}", "at most 16,777,216 are read"),
    "is too long": ("{# " + "x" * 2**20 + " #}", "at most 1,048,576 are read"),
    "recurses": ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
    "syntax": ("{% for m in messages %}", "TemplateSyntaxError"),
    "refuses": ("{{ raise_exception('nobody may speak') }}", "nobody may speak"),
    "deaf": ("<|im_start|>", "does not show what a user says"),
    "obeyed by a terminal": ("{{ raise_exception('\x1b[2J') }}", "cannot render a message"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", some(TEMPLATES))
def test_a_chat_template_that_does_not_work_is_refused_in_time(
    model: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat_templates, "TIMEOUT_SECONDS", 0.3)
    template, message = TEMPLATES[name]
    (model / "chat_template.jinja").write_text("{{ messages[0].content }}")
    load_tokenizer(ModelSettings(path=str(model)))  # starts the process that renders
    (model / "chat_template.jinja").write_text(template)
    began = time.monotonic()
    with pytest.raises(ValueError, match=r"models: the chat template of '.*model'") as caught:
        load_tokenizer(ModelSettings(path=str(model)))
    assert time.monotonic() - began < 10
    assert message in str(caught.value)
    assert "set chat_template to a Jinja file" in str(caught.value)
    assert "\x1b" not in str(caught.value)


@pytest.mark.slow
def test_a_template_that_is_costly_in_use_alone_loses_its_prompt(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_templates, "TIMEOUT_SECONDS", 0.5)
    source = "{% for m in messages %}{{ m.content }}{% endfor %}{% if messages | length > 3 %}{{ (messages | length) ** 100000000 }}{% endif %}"
    (model / "chat_template.jinja").write_text(source)
    tokenizer = load_tokenizer(ModelSettings(path=str(model)))
    chat = [{"role": "user", "content": "hello"}]
    with pytest.raises(chat_templates.RENDER_ERRORS, match=r"still at work after 0.5 s"):
        tokenizer.apply_chat_template(chat * 4, tokenize=False)
    assert tokenizer.apply_chat_template(chat, tokenize=False) == "hello"


@pytest.mark.slow
def test_a_template_renders_alike_in_either_process(model: Path) -> None:
    """The bundled template as it is, and with a comment that makes it another's."""
    chat = [
        {"role": "user", "content": 'a "quoted"\nline, ümlaut \U0001f600'},
        {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {"x": 0.1}}}]},
        {"role": "tool", "content": "</x>"},
    ]
    texts = []
    for comment in ("", "{# not ours #}"):
        source = (Path(tokenizer_format.__file__).parent / "tiny" / "chat_template.jinja").read_text()
        (model / "chat_template.jinja").write_text(source + comment)
        tokenizer = load_tokenizer(ModelSettings(path=str(model)))
        texts.append(tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True))
    assert texts[0] == texts[1]


def test_a_template_without_system_messages_is_fine(model: Path) -> None:
    source = "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no') }}{% endif %}{{ m.content }}{% endfor %}"
    (model / "chat_template.jinja").write_text(source)
    assert load_tokenizer(ModelSettings(path=str(model)))


def test_a_tokenizer_that_is_broken_or_of_another_model_is_refused(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenizer_format, "check_template", lambda *_: None)
    table = json.loads((model / "tokenizer.json").read_text())
    table["model"]["vocab"] |= {f"word{n}": 442 + n for n in range(100)}
    (model / "tokenizer.json").write_text(json.dumps(table))
    with pytest.raises(ValueError, match=r"models.base: its tokenizer has 5\d\d tokens and its model knows 442"):
        LocalRolloutRunner(settings(model))
    for text in ('{"version": "1.0"}', "[" * 100_000, ""):
        (model / "tokenizer.json").write_text(text)
        with pytest.raises(
            ValueError, match=r"cannot load the tokenizer.*tokenizer.json.*get the model again"
        ) as caught:
            load_tokenizer(ModelSettings(path=str(model)))
        assert len(str(caught.value)) < 2000


def test_an_id_beyond_the_model_is_refused_by_its_token(model: Path) -> None:
    table = json.loads((model / "tokenizer.json").read_text())
    word = max(filter(str.isalpha, table["model"]["vocab"]), key=len)
    table["model"]["vocab"][word] = 4_000_000_000
    (model / "tokenizer.json").write_text(json.dumps(table))
    with pytest.raises(ValueError, match=rf"tokenizer.json gives '{word}' the id 4000000000, and its model knows"):
        LocalRolloutRunner(settings(model))


def test_what_a_tokenizer_makes_of_a_text_is_shown_in_short(model: Path) -> None:
    table = json.loads((model / "tokenizer.json").read_text())
    table["normalizer"] = {"type": "Replace", "pattern": {"String": "1"}, "content": "1" * 100_000}
    (model / "tokenizer.json").write_text(json.dumps(table))
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "model_type": "llama"}))  # whose tokenizer is the file's
    with pytest.raises(ValueError, match="is missing or damaged") as caught:
        load_tokenizer(ModelSettings(path=str(model)))
    assert len(str(caught.value)) < 1000


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    """An adapter of policy ``actor``, to break."""
    with LocalRolloutRunner(settings("tiny")) as rollouts:
        rollouts.models.save_policy("actor", tmp_path / "adapter")
    return tmp_path / "adapter"


def broken_adapter(**changes: Any) -> Callable[[Path], None]:
    return lambda folder: change_json(folder / "adapter_config.json", **changes)


def adapter_without(key: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        table = json.loads((folder / "adapter_config.json").read_text())
        del table[key]
        (folder / "adapter_config.json").write_text(json.dumps(table))

    return change


def pickled_adapter(folder: Path) -> None:
    torch.save(load_file(folder / "adapter_model.safetensors"), folder / "adapter_model.bin")
    (folder / "adapter_model.safetensors").unlink()


ADAPTERS: dict[str, tuple[Callable[[Path], None], str]] = {
    "no r": (adapter_without("r"), "lacks r"),
    "no alpha": (adapter_without("lora_alpha"), "lacks lora_alpha"),
    "no targets": (broken_adapter(target_modules=None), "lacks target_modules"),
    "targets": (broken_adapter(target_modules=[3]), "target_modules = [3], which names no layers"),
    "a variant of later": (broken_adapter(use_better_lora=True), "asks for use_better_lora"),
    "a variant's settings": (broken_adapter(kasa_config={"beta": 1e-4}), "asks for kasa_config"),
    "lora-ga": (broken_adapter(init_lora_weights="lora_ga"), "changes the base too"),
    "r": (broken_adapter(r="8"), "says r = '8'"),
    "modules_to_save": (broken_adapter(modules_to_save=["lm_head"]), "asks for modules_to_save"),
    "dora": (broken_adapter(use_dora=True), "asks for use_dora"),
    "pissa": (broken_adapter(init_lora_weights="pissa_niter_4"), "changes the base too"),
    "kind": (broken_adapter(peft_type="IA3"), "says peft_type 'IA3'"),
    "list": (lambda folder: (folder / "adapter_config.json").write_text("[]") and None, "holds no table"),
    "pickled": (pickled_adapter, "adapter_model.bin and no *.safetensors"),
    "nan": (lambda f: change_weights(f, lambda w: w[f"base_model.model.{Q_PROJ}.lora_B.weight"].fill_(math.nan), "adapter_model"), "holds NaN"),
    "truncated": (lambda f: (f / "adapter_model.safetensors").write_bytes((f / "adapter_model.safetensors").read_bytes()[:-8]) and None, "cannot read the adapter"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", some(ADAPTERS, of=2))
def test_a_broken_adapter_is_refused_by_name(adapter: Path, name: str) -> None:
    breaks, message = ADAPTERS[name]
    breaks(adapter)
    with pytest.raises(ValueError, match="adapter at ") as caught:
        LocalRolloutRunner(settings("tiny", "runs", "--policies.actor.adapter", str(adapter)))
    assert message in str(caught.value)


@pytest.mark.parametrize("suffix", [".bin", ".pt", ".pth", ".ckpt", ".pkl"])
def test_no_kind_of_pickle_is_taken_for_weights(suffix: str, tmp_path: Path) -> None:
    (tmp_path / f"weights{suffix}").write_bytes(b"")
    with pytest.raises(ValueError, match=rf"weights\{suffix} and no \*.safetensors"):
        check_no_pickle(tmp_path, "it")


def test_who_traces_this_program_still_does_after_a_template_was_tried() -> None:
    """Debuggers and coverage do."""

    def tracing(*_: Any) -> None:
        return None

    before = sys.gettrace()
    sys.settrace(tracing)
    try:
        load_tokenizer(ModelSettings(path="tiny"))
        after = sys.gettrace()
    finally:
        sys.settrace(before)
    assert after is tracing


def test_a_small_model_that_is_not_there_is_named_with_those_that_are() -> None:
    with pytest.raises(ValueError, match=r"no small model is called 'tiny-tols'; did you mean 'tiny-tools'"):
        load_config(ModelSettings(path="tiny-tols"))


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json", "extra.json"])
def test_a_pipe_in_the_folder_of_a_model_is_not_waited_for(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "model"
    shutil.copytree(resolve_path("tiny"), folder)
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    with pytest.raises(ValueError, match=rf"has {name}, a pipe, .*only regular files are read; remove it"):
        load_config(ModelSettings(path=str(folder)))


def test_a_pipe_in_the_folder_of_an_adapter_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "adapter_model.safetensors")
    with pytest.raises(ValueError, match=r"adapter_model\.safetensors, a pipe, .*only regular files are read"):
        check_no_pickle(tmp_path, "the adapter")


def test_sizes_that_differ_between_layers_are_checked_in_each(tmp_path: Path) -> None:
    """Gemma 4 has layers with fewer key heads, whose common number transformers refuses to say."""
    config, file = FAMILY["Gemma 4"].small_config(), tmp_path / "config.json"
    config.save_pretrained(tmp_path)
    assert isinstance(load_config(ModelSettings(path=str(tmp_path))), type(config))
    table = json.loads(file.read_text())
    table["per_layer_config"]["1"]["num_key_value_heads"] = 0
    file.write_text(json.dumps(table))
    with pytest.raises(ValueError, match=r"config\.json says num_key_value_heads = 0"):
        load_config(ModelSettings(path=str(tmp_path)))


def test_kimi_k2_is_deepseek_3_and_its_code_is_not_run(tmp_path: Path) -> None:
    folder = random_model(FAMILY["DeepSeek 3"].small_config(), tmp_path)
    plain = load_backbone(ModelSettings(path=str(folder)), torch.device("cpu"), torch.float32)
    code = {"AutoConfig": "kimi.Config", "AutoModelForCausalLM": "kimi.Model"}
    change_json(folder / "config.json", model_type="kimi_k2", auto_map=code)
    (folder / "kimi.py").write_text("raise SystemExit('run')")
    kimi = load_backbone(ModelSettings(path=str(folder)), torch.device("cpu"), torch.float32)
    assert all(torch.equal(kimi.weights()[name], tensor) for name, tensor in plain.weights().items())
    kimi.model.save_pretrained(tmp_path / "saved")
    assert json.loads((tmp_path / "saved" / "config.json").read_text())["model_type"] == "deepseek_v3"
