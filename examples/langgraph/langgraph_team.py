"""The demo's team as a LangGraph graph, with one node per agent.

Only the address that a node sends its requests to differs from an ordinary graph.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict

from langchain_openai import ChatOpenAI
from langgraph.graph import StateGraph
from langgraph.runtime import Runtime
from openai import DefaultAsyncHttpxClient, DefaultHttpxClient

from marft.common.types import Task
from marft_serve.gateway.client import Client

Clients = Mapping[str, Client]


class State(TypedDict, total=False):
    """State shared by the nodes."""

    question: str
    thought: str
    answer: str


def reasoner(state: State, runtime: Runtime[Clients]) -> State:
    """Work out the first step."""
    return {"thought": ask(runtime.context["reasoner"], state["question"])}


def actor(state: State, runtime: Runtime[Clients]) -> State:
    """Finish the work, given the reasoner's message."""
    question = f"{state['question']}\n\nMessage from reasoner:\n{state['thought']}"
    return {"answer": ask(runtime.context["actor"], question)}


def ask(client: Client, question: str) -> str:
    """Ask an agent a question and return its reply."""
    return str(model_of(client).invoke([("system", client.instructions), ("user", question)]).text)


# One pool of connections for all episodes: opening a connection takes longer than a call of a small model.
shared = {"http_client": DefaultHttpxClient(), "http_async_client": DefaultAsyncHttpxClient()}


def model_of(client: Client) -> ChatOpenAI:
    """Return the LangChain model for an agent."""
    return ChatOpenAI(model=client.model, **shared, **client.keywords)


graph = StateGraph(State, context_schema=Clients)
graph.add_sequence([reasoner, actor])
graph.set_entry_point("reasoner")
team = graph.compile()


def solve(task: Task, clients: Clients) -> str:
    """Return the team's answer."""
    return team.invoke({"question": task.prompt}, context=clients)["answer"]
