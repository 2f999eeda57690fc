"""A supervisor that hands over to a worker with a tool, as a LangGraph graph."""

from __future__ import annotations

from typing import Literal

from langchain_core.messages import AIMessage, SystemMessage
from langchain_core.tools import BaseTool, tool
from langgraph.errors import GraphRecursionError
from langgraph.graph import END, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.runtime import Runtime
from langgraph.types import Command
from langgraph_team import Clients, model_of

from marft.common.types import Task

MOST_NODES = 8


@tool
def multiply(a: int, b: int) -> int:
    """Multiply."""
    return a * b


@tool(description="Handoff to the calculator agent to handle the request. ")
def transfer_to_calculator() -> None:
    """Declare the handoff to the model. The graph routes the call, and this function never runs."""


def supervisor(state: MessagesState, runtime: Runtime[Clients]) -> Command[Literal["calculator", "__end__"]]:
    """Hand over to the calculator, or answer."""
    said = ask(state, runtime, "triage", transfer_to_calculator)
    return Command(goto="calculator") if said.tool_calls else Command(goto=END, update={"messages": [said]})


def calculator(state: MessagesState, runtime: Runtime[Clients]) -> MessagesState:
    """Call the tool, or answer."""
    return {"messages": [ask(state, runtime, "calculator", multiply)]}


def ask(state: MessagesState, runtime: Runtime[Clients], role: str, has: BaseTool) -> AIMessage:
    """Return one reply of an agent."""
    client = runtime.context[role]
    return model_of(client).bind_tools([has]).invoke([SystemMessage(client.instructions), *state["messages"]])


graph = StateGraph(MessagesState, context_schema=Clients)
graph.add_node(supervisor)
graph.add_node(calculator)
graph.add_node(ToolNode([multiply]))
graph.set_entry_point("supervisor")
graph.add_conditional_edges("calculator", tools_condition)
graph.add_edge("tools", "calculator")
team = graph.compile()


def solve(task: Task, clients: Clients) -> str:
    """Return the team's answer.

    If the graph loops until its recursion limit, return "". The team learns from an empty answer.
    """
    start = MessagesState(messages=[("user", task.prompt)])
    try:
        done = team.invoke(start, {"recursion_limit": MOST_NODES}, context=clients)
    except GraphRecursionError:
        return ""
    return str(done["messages"][-1].text)
