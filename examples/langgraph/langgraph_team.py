"""The demo's team as a graph of LangGraph, a node each. Training changes the address that a node asks at, no more."""

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
    """What the nodes pass on."""

    question: str
    thought: str
    answer: str


def reasoner(state: State, runtime: Runtime[Clients]) -> State:
    """Work out the first step."""
    return {"thought": ask(runtime.context["reasoner"], state["question"])}


def actor(state: State, runtime: Runtime[Clients]) -> State:
    """Finish, with what the reasoner has said."""
    question = f"{state['question']}\n\nMessage from reasoner:\n{state['thought']}"
    return {"answer": ask(runtime.context["actor"], question)}


def ask(client: Client, question: str) -> str:
    """One question to one agent → what it says."""
    return str(model_of(client).invoke([("system", client.instructions), ("user", question)]).text)


# connections for all episodes: to make them anew for each takes longer than to ask a small model
shared = {"http_client": DefaultHttpxClient(), "http_async_client": DefaultAsyncHttpxClient()}


def model_of(client: Client) -> ChatOpenAI:
    """LangChain's model of an agent."""
    return ChatOpenAI(model=client.model, **shared, **client.keywords)


graph = StateGraph(State, context_schema=Clients)
graph.add_sequence([reasoner, actor])
graph.set_entry_point("reasoner")
team = graph.compile()


def solve(task: Task, clients: Clients) -> str:
    """What the team answers."""
    return team.invoke({"question": task.prompt}, context=clients)["answer"]
