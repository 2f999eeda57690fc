"""MARFT: multi-agent reinforcement fine-tuning of the language models inside a team of agents."""

__version__ = "0.1.0"
