#!/usr/bin/env bash
# Train a team on your own table with your own reward, and load its adapter. Run it in an empty folder; install marft and
# pytest first.
set -euo pipefail

# The data: one row per task. The bundled model only knows sums of small numbers.
python - > sums.csv <<'END'
import random

random.seed(1)
print("sum,result")
for _ in range(60):
    a, b, c = (random.randint(10, 99) for _ in range(3))
    print(f"{a} + {b} - {c},{a + b - c}")
END

# A folder with a recipe, a reward function and a test.
marft init team --data sums.csv --question sum --answer result --yes

# Your own reward: 1 for the right number, 0.2 for a near miss.
cat > team/reward.py <<'END'
import re


def reward(row, text):
    numbers = re.findall(r"-?\d+", text)
    miss = abs(int(numbers[-1]) - int(row["result"])) if numbers else 99
    return (1.0 if miss == 0 else 0.2 if miss <= 10 else 0.0), miss == 0
END

cd team
python -m pytest --quiet test_reward.py

# Train 4 short steps. The recipe's defaults are 20 steps of 64 episodes.
marft train recipe.toml --training.steps 4 --rollout.tasks_per_step 8
marft eval runs/first --mode sampled

# Read the worst episode, and write the report.
marft show runs/first --worst --count 1
marft report runs/first

# Load the actor's adapter with peft.
python - <<'END'
from peft import AutoPeftModelForCausalLM
from transformers import AutoTokenizer

model = AutoPeftModelForCausalLM.from_pretrained("runs/first/checkpoints/step_000004/policies/actor")
tokenizer = AutoTokenizer.from_pretrained(model.peft_config["default"].base_model_name_or_path)
task = "State the final answer to the following arithmetic problem: 51 - 12 ="
prompt = tokenizer.apply_chat_template([{"role": "user", "content": task}], add_generation_prompt=True, tokenize=False)
ids = tokenizer(prompt, return_tensors="pt").input_ids
print(tokenizer.decode(model.generate(input_ids=ids, max_new_tokens=32)[0, ids.shape[1] :]))
END
