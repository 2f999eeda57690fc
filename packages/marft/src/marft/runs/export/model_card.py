"""Model card of an export: summary, figures, training settings and loading instructions."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml

from marft.agents.prompt_messages import format_message
from marft.common.user_modules import MANIFEST
from marft.config.interfaces.channel import Message
from marft.config.models import VLLM_LORA_RANKS
from marft.runs.export.manifest import Manifest, ModelEntry, PolicyEntry

CHANGE_KEYS = {"added since:": "added", "gone since:": "removed"}


def render_model_card(
    manifest: Manifest, folder: str, trust: str = "", references: Sequence[str] = (), has_environment: bool = True
) -> str:
    """Return the model card (``README.md``) of an export.

    Args:
        manifest: the manifest of the export.
        folder: name of the export's folder.
        trust: flag that commands need for an export with code (:func:`marft.runs.export.recipe.trust_flag`).
        references: places that still name folders of the training machine.
        has_environment: False if the environment was left out.
    """
    parts = [
        f"# {manifest.name}",
        _summary(manifest),
        "## Figures",
        *_results_section(manifest),
        "## How it was trained",
        _training_section(manifest),
        "## Loading it",
        *_loading_section(manifest, folder, trust, has_environment),
    ]
    if manifest.left_out:
        parts += ["## What was left out", "\n".join(f"- {sentence}" for sentence in manifest.left_out)]
    if references:
        parts += [
            "## What names another machine",
            "These name folders of the machine of training, which are not here:",
            "\n".join(f"- {place}" for place in references),
        ]
    return f"---\n{_header(manifest)}---\n\n" + "\n\n".join(parts) + "\n"


def _header(manifest: Manifest) -> str:
    adapters = [policy for policy in manifest.policies.values() if policy.kind == "adapter"]
    base_models = {model.path for model in manifest.models.values() if model.commit}
    header: dict[str, object] = {"base_model": sorted(base_models)} if base_models else {}
    header |= {
        "library_name": "peft" if adapters else "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["marft", "multi-agent", "reinforcement-learning", *(["lora"] if adapters else [])],
    }
    return str(yaml.safe_dump(header, sort_keys=False, allow_unicode=True))


def _summary(manifest: Manifest) -> str:
    roles = ", ".join(
        f"`{agent['role']}` (policy `{agent['policy']}`)" + (", who answers" if agent.get("answers") else "")
        for agent in manifest.agents
    )
    bases = ", ".join(_base(model) for model in manifest.models.values())
    return (
        f"A team of language models that was trained together: {roles}. Organization: "
        f"`{manifest.organization['organization']}`. Models: {bases}. Weights: {manifest.checkpoint.name}. "
        f"{_describe_changes(manifest.reorganized)}`{MANIFEST}` says all of it, with a digest of every file."
    )


def _describe_changes(changed: Mapping[str, Any]) -> str:
    """Describe the differences between the exported team and the trained team."""
    if not changed:
        return ""
    before, after = changed["organization"]
    parts = [f"as `{before}`, and plays as `{after}` (`{changed['name']}`)"]
    for title, key in CHANGE_KEYS.items():
        if changed[key]:
            parts.append(f"{title} {', '.join(f'`{role}`' for role in changed[key])}")
    return f"It was trained {'; '.join(parts)}. "


def _base(model: ModelEntry) -> str:
    if model.endpoint:
        return f"`{model.path}` at {model.endpoint}"
    commit = f" at commit `{model.commit}`" if model.commit else ", which lies in here"
    return f"`{model.path}`{commit}"


def _results_section(manifest: Manifest) -> Iterator[str]:
    if not manifest.evaluations:
        yield "This checkpoint was not evaluated before it was exported."
        return
    rows = ["| | mode | messages | tasks | accuracy | reward |", "| --- | --- | --- | --- | --- | --- |"]
    ordered = sorted(manifest.evaluations, key=lambda e: (e["checkpoint"] != "base", e["mode"], e["shuffled_messages"]))
    for evaluation in ordered:
        phase = "before" if evaluation["checkpoint"] == "base" else "after"
        messages = "of other tasks" if evaluation["shuffled_messages"] else "own"
        accuracy = _with_interval(evaluation.get("accuracy"), evaluation.get("interval"), 100, " %")
        reward = _with_interval(evaluation.get("reward"), evaluation.get("reward_interval"), 1, "")
        rows.append(f"| {phase} | {evaluation['mode']} | {messages} | {evaluation['tasks']} | {accuracy} | {reward} |")
    yield "\n".join(rows)
    yield "On held-out tasks, with intervals of 95 %."


def _with_interval(value: float | None, interval: Sequence[float] | None, scale: float, unit: str) -> str:
    if value is None:
        return "unknown"
    digits = 1 if scale > 1 else 3
    interval_text = f" ({scale * interval[0]:.{digits}f} to {scale * interval[1]:.{digits}f})" if interval else ""
    return f"{scale * value:.{digits}f}{unit}{interval_text}"


def _training_section(manifest: Manifest) -> str:
    training, step = manifest.training, manifest.checkpoint.step
    return (
        f"With MARFT {manifest.marft}: algorithm `{training['algorithm']}` at "
        f"{training['level']} level, {step} steps of {training['tasks_per_step']} tasks with "
        f"{training['samples_per_task']} attempts each, learning rate {training['learning_rate']:g}, environment "
        f"`{training['environment']}`. Trained were {', '.join(f'`{name}`' for name in training['trained']) or 'none'}."
    )


def _loading_section(manifest: Manifest, folder: str, trust: str = "", has_environment: bool = True) -> Iterator[str]:
    evaluate = f"\nmarft eval .{trust}" if has_environment else ""
    yield (
        "Run commands and code in this folder. As a team, with MARFT (`pip install 'marft[serve]'`):\n"
        f"\n```sh\nmarft serve .{trust}{evaluate}\n```"
    )
    if not has_environment:
        yield "`marft eval` needs an environment (`--environment`), because the team's own was left out."
    if trust:
        yield (
            f"`{trust.strip()}` lets it run code, or ask servers, of its author's: without it, either command says "
            "which, and stops. Read it before."
        )
    models, policies = manifest.models, manifest.policies
    adapters = {name: policy for name, policy in policies.items() if policy.kind == "adapter"}
    full_models = {name: policy.path for name, policy in policies.items() if policy.kind == "weights"}
    if adapters:
        yield from (f"With transformers and peft:\n\n```python\n{code}```" for code in _with_peft(models, adapters))
        yield from (f"With vLLM:\n\n```sh\n{command}\n```" for command in _with_vllm(models, adapters))
    full_models |= {name: policy.merged for name, policy in adapters.items() if policy.merged}
    if full_models:
        path = next(iter(full_models.values()))
        yield (
            "Whole weights ("
            + ", ".join(f"`{policy}`" for policy in full_models.values())
            + ") are models like any other: "
            f'`AutoModelForCausalLM.from_pretrained("{path}")`, `vllm serve {path}`.'
        )
    yield from _prompt_notes(manifest)
    yield from _with_llama(models, folder, adapters, full_models)
    yield (
        "An agent reads its `instructions` as the system message; as the user's the task and, where it sees others, "
        f"`{format_message(Message('<role>', '')).rstrip()}` and on the next line what they said, with empty lines "
        "between them."
    )


def _prompt_notes(manifest: Manifest) -> Iterator[str]:
    """Yield texts about prompt rendering and sampling, where they differ from the base model's defaults."""
    for model in manifest.models.values():
        if model.chat_template:
            yield f"Prompts of `{model.path}` are rendered with `{model.chat_template}`, in the place of its own."
        if model.template_options:
            options = dict(model.template_options)
            yield (
                f"The chat template of `{model.path}` gets `{json.dumps(options, ensure_ascii=False)}`: "
                f"`tokenizer.apply_chat_template(…, **{options})`, in vLLM `--default-chat-template-kwargs`."
            )
    rows = ["| role | temperature | new tokens, at most | thoughts |", "| --- | --- | --- | --- |"]
    for agent in manifest.agents:
        sampling = agent["sampling"]
        rows.append(
            f"| `{agent['role']}` | {sampling['temperature']:g} | {sampling['max_new_tokens']} | {agent['thinking']} |"
        )
    yield "Agents were trained with this sampling, and no other warping or penalty:\n\n" + "\n".join(rows)


def _with_peft(models: Mapping[str, ModelEntry], adapters: Mapping[str, PolicyEntry]) -> Iterator[str]:
    """Yield Python code for each base model."""
    for name in dict.fromkeys(adapter.model for adapter in adapters.values()):
        model_adapters = {policy: adapter for policy, adapter in adapters.items() if adapter.model == name}
        (first, *other_adapters) = model_adapters.items()
        base = models[name]
        revision = f', revision="{base.commit}"' if base.commit else ""
        lines = [
            "from peft import PeftModel",
            "from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig",
            "",
            f'tokenizer = AutoTokenizer.from_pretrained("{base.path}"{revision})',
            f'base = AutoModelForCausalLM.from_pretrained("{base.path}"{revision})',
            "own = base.generation_config  # of which the team was trained with what ends a text alone",
            "base.generation_config = GenerationConfig(eos_token_id=own.eos_token_id, pad_token_id=own.pad_token_id)",
            f'model = PeftModel.from_pretrained(base, "{first[1].path}", adapter_name="{first[0]}")',
            *(f'model.load_adapter("{adapter.path}", "{policy}")' for policy, adapter in other_adapters),
            f'model.set_adapter("{first[0]}")',
        ]
        if base.chat_template:
            lines.insert(4, f'tokenizer.chat_template = open("{base.chat_template}", encoding="utf-8").read()')
        yield "\n".join(lines) + "\n"


def _with_llama(
    models: Mapping[str, ModelEntry], folder: str, adapters: Mapping[str, PolicyEntry], full_models: Mapping[str, str]
) -> Iterator[str]:
    """Yield commands for llama.cpp (in its checkout) and Ollama, for the first model or else the first adapter."""
    if full_models:
        name, path = next(iter(full_models.items()))
        lines = [
            f"python convert_hf_to_gguf.py {folder}/{path} --outfile {name}.gguf",
            f"llama-cli -m {name}.gguf",
            f"echo 'FROM ./{path}' > Modelfile && ollama create {name} -f Modelfile",
        ]
        heading = "With llama.cpp, in its checkout, and with Ollama"
    elif adapters:
        name, adapter = next(iter(adapters.items()))
        model = models[adapter.model]
        download = f"hf download {model.path} --revision {model.commit} --local-dir base"
        fetched = [download] if model.commit else []
        base = "base" if fetched else f"{folder}/{model.path}"
        lines = [
            *fetched,
            f"python convert_hf_to_gguf.py {base} --outfile base.gguf",
            f"python convert_lora_to_gguf.py --base {base} {folder}/{adapter.path} --outfile {name}.gguf",
            f"llama-cli -m base.gguf --lora {name}.gguf",
        ]
        heading = (
            "With llama.cpp, in its checkout (Ollama takes whole weights, which an export made with `--merged` has)"
        )
    else:
        return
    commands = "\n".join(lines)
    yield f"{heading}; its converter knows the tokenizers of published models alone:\n\n```sh\n{commands}\n```"


def _with_vllm(models: Mapping[str, ModelEntry], adapters: Mapping[str, PolicyEntry]) -> Iterator[str]:
    """Yield one server command for each base model."""
    for model in dict.fromkeys(adapter.model for adapter in adapters.values()):
        model_adapters = {name: adapter for name, adapter in adapters.items() if adapter.model == model}
        base = models[model]
        revision = f" --revision {base.commit}" if base.commit else ""
        rank = vllm_lora_rank(max(adapter.rank for adapter in model_adapters.values()))
        words = [f"vllm serve {base.path}{revision} --generation-config vllm"]
        if base.chat_template:
            words.append(f"--chat-template {base.chat_template}")
        if base.template_options:
            words.append(f"--default-chat-template-kwargs {shlex.quote(json.dumps(base.template_options))}")
        words.append(f"--enable-lora --max-loras {len(model_adapters)} --max-lora-rank {rank}")
        lora_modules = " ".join(f"{name}={adapter.path}" for name, adapter in model_adapters.items())
        words.append(f"--lora-modules {lora_modules}")
        yield " \\\n  ".join(words)


def vllm_lora_rank(rank: int) -> int:
    """Return the value of vLLM's ``--max-lora-rank`` for adapters with a given rank.

    >>> vllm_lora_rank(12), vllm_lora_rank(16)
    (16, 16)
    """
    return next((supported for supported in VLLM_LORA_RANKS if supported >= rank), rank)
