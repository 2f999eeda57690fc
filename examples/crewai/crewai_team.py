"""The demo's team as a CrewAI crew, run as a command in its own virtual environment.

MARFT writes the task as JSON to standard input and passes the agents' addresses as environment variables.
"""

from __future__ import annotations

import json
import os
import sys

os.environ |= {"CREWAI_DISABLE_TELEMETRY": "true", "OTEL_SDK_DISABLED": "true", "CREWAI_TRACING_ENABLED": "false"}

from crewai import LLM, Agent, Crew, Task


def agent(role: str, goal: str) -> Agent:
    """Return the CrewAI agent for a role in the recipe."""
    name = role.upper()
    model = LLM(
        model=f"openai/{os.environ[f'MARFT_{name}_MODEL']}", base_url=os.environ[f"MARFT_{name}_URL"],
        api_key=os.environ["MARFT_API_KEY"],
    )  # fmt: skip
    return Agent(role=role, goal=goal, backstory=os.environ[f"MARFT_{name}_INSTRUCTIONS"], llm=model)


def main() -> None:
    question = json.load(sys.stdin)["prompt"]
    reasoner = agent("reasoner", "Work out the first step.")
    actor = agent("actor", "Give the answer.")
    thought = Task(description=question, expected_output="the first step", agent=reasoner)
    answer = Task(description=question, expected_output="the answer", agent=actor, context=[thought])
    said = Crew(agents=[reasoner, actor], tasks=[thought, answer]).kickoff()
    print(json.dumps({"answer": said.raw}))


if __name__ == "__main__":
    main()
