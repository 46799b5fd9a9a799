"""A tool by which a model asks a person: `AgentLoop(model, tools=[holdfast.ask_person])`.

It is not called like others: the run waits for the answer as `run.ask` does, and holds nothing.
"""

from holdfast.agents.definitions.tools import tool
from holdfast.errors import MisuseError


@tool(effect="read")
async def ask_person(question: str, choices: list[str] | None = None) -> str:
    """Ask a person a question, and wait for the answer, which may take long.

    Give choices if only certain answers make sense.
    """
    raise MisuseError("ask_person is for models: give it to an agent's tools, or use run.ask()")
