"""Time steps of TRL: ``python -m versus.trl_steps SETTING.json PROMPTS.json STEPS WARM_UP`` prints the figures as JSON.

The script runs in its own environment, which has TRL and not MARFT. Options that cost time and that the comparison
does not need are off. These are KL to a reference (a second model), gradient checkpointing (memory suffices), dropout,
logging and checkpoints. Completions have equal length, because no token ends them.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast, TrainerCallback

from versus.setting import TARGETS, Setting, coin, right


def measure(setting: Setting, prompts: list[list[int]], count: int, warm_up: int) -> dict[str, Any]:
    """Return ``count`` steps after the warm-up steps, and the peak memory of the process."""
    torch.set_num_threads(setting.threads)
    earned: list[float] = []
    trainer = _trainer(setting, prompts, count + warm_up, earned)
    clock = _Clock(trainer, earned)
    trainer.add_callback(clock)
    trainer.train()
    return {
        "steps": clock.rows[warm_up:],
        "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def _trainer(setting: Setting, prompts: list[list[int]], steps: int, earned: list[float]) -> Any:
    """Return a trainer that reads ``prompts`` in order, and appends the completions' rewards to ``earned``."""
    from datasets import Dataset
    from peft import LoraConfig
    from trl import GRPOConfig, GRPOTrainer

    kind = PreTrainedTokenizerFast if setting.words else AutoTokenizer
    tokenizer = kind.from_pretrained(setting.model)
    if setting.words:
        tokenizer.pad_token = tokenizer.eos_token = "0"
    wanted = setting.tasks * steps
    asked = [prompts[number % len(prompts)] for number in range(wanted)]
    arguments = GRPOConfig(
        output_dir=str(Path(sys.argv[1]).parent / "trl"), use_cpu=True, bf16=False, seed=0, max_steps=steps,
        per_device_train_batch_size=setting.completions, gradient_accumulation_steps=1, num_iterations=1,
        num_generations=setting.samples, max_completion_length=setting.tokens, temperature=1.0, top_p=1.0, top_k=0,
        beta=0.0, learning_rate=setting.learning_rate, lr_scheduler_type="constant", gradient_checkpointing=False,
        steps_per_generation=1, shuffle_dataset=False, disable_dropout=True, logging_strategy="no", save_strategy="no",
        report_to="none", loss_type="grpo", disable_tqdm=True, dataloader_pin_memory=False,
    )  # fmt: skip

    def reward(prompts: list[str], completions: list[str], **_: Any) -> list[float]:
        pairs = zip(prompts, completions, strict=True)
        found = [right(prompt, text) if setting.ends else coin(text) for prompt, text in pairs]
        earned.extend(found)
        return found

    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(setting.model, dtype=torch.float32),
        reward_funcs=reward,
        args=arguments,
        train_dataset=Dataset.from_dict({"prompt": [tokenizer.decode(ids) for ids in asked]}),
        processing_class=tokenizer,
        peft_config=LoraConfig(
            r=setting.rank, lora_alpha=16, target_modules=list(TARGETS), lora_dropout=0.0, task_type="CAUSAL_LM"
        ),
    )
    if not setting.ends:
        trainer.eos_token_ids = []
        trainer.generation_config.eos_token_id = trainer.generation_kwargs["eos_token_id"] = None
    _check_prompts(trainer, setting, asked)
    return trainer


def _check_prompts(trainer: Any, setting: Setting, asked: list[list[int]]) -> None:
    """Check that both sides read the same ids, and that completions have the expected length."""
    generate = trainer._generate_single_turn

    def checked(prompt_ids: list[list[int]], *rest: Any, **named: Any) -> Any:
        known = {tuple(ids) for ids in asked}
        assert all(tuple(ids) in known for ids in prompt_ids), "TRL reads other prompts"
        made = generate(prompt_ids, *rest, **named)
        lengths = [len(ids) for ids in made[0]]
        assert setting.ends or lengths == [setting.tokens] * setting.completions
        trainer.sampled = sum(lengths)
        return made

    trainer._generate_single_turn = checked


class _Clock(TrainerCallback):
    """Callback that records each step's seconds, generation seconds, sampled tokens and reward."""

    def __init__(self, trainer: Any, earned: list[float]) -> None:
        self.trainer, self.earned = trainer, earned
        self.rows: list[dict[str, float]] = []
        self.generating = 0.0
        generate = trainer._generate_and_score_completions

        def timed(*given: Any, **named: Any) -> Any:
            began = time.perf_counter()
            made = generate(*given, **named)
            self.generating += time.perf_counter() - began
            return made

        trainer._generate_and_score_completions = timed

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self.began, self.generating = time.perf_counter(), 0.0

    def on_step_end(self, *_: Any, **__: Any) -> None:
        whole = time.perf_counter() - self.began
        reward = sum(self.earned) / len(self.earned)
        self.earned.clear()
        self.rows.append(
            {
                "generating": self.generating,
                "learning": whole - self.generating,
                "reward": reward,
                "tokens": self.trainer.sampled,
            }
        )


if __name__ == "__main__":
    given = json.loads(Path(sys.argv[2]).read_text())
    print(json.dumps(measure(Setting.read(Path(sys.argv[1])), given, *map(int, sys.argv[3:]))))
