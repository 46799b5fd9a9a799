"""A model of Pydantic AI as a function from a transcript to a reply."""

from collections.abc import Sequence
from typing import Any

from pydantic_ai.direct import model_request
from pydantic_ai.messages import ModelResponse
from pydantic_ai.models import Model, ModelRequestParameters, infer_model
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition

from holdfast.agents.definitions.messages import Message, Usage
from holdfast.agents.definitions.tools import Tool
from holdfast.errors import MisuseError
from holdfast.integrations.pydantic_ai.messages import from_messages, to_message


class PydanticAIModel:
    """Any `Model` of Pydantic AI, or the name of one, for `AgentLoop(model=...)`.

    A name such as "openai:gpt-4o" is looked up at once, so a missing key or package raises here.
    """

    def __init__(self, model: Model | str, settings: ModelSettings | None = None) -> None:
        self._model = infer_model(model)
        self._settings = settings

    def __repr__(self) -> str:
        return f"<model {self._model.model_name} of Pydantic AI>"

    async def __call__(
        self, transcript: Sequence[Message], *, tools: Sequence[Tool[..., Any]] = ()
    ) -> Message:
        """Ask the model; the provider's exceptions are raised unchanged."""
        response = await model_request(
            self._model,
            from_messages(transcript),
            model_settings=self._settings,
            model_request_parameters=ModelRequestParameters(
                function_tools=[_definition_of(tool) for tool in tools]
            ),
        )
        if response.state == "suspended":
            raise MisuseError(f"{self!r} answers in the background, which a loop cannot wait for")
        return to_message(response, usage_of(response))


def usage_of(response: ModelResponse) -> Usage:
    """What a response cost; 0 USD if its price is not known."""
    used = response.usage
    return Usage(
        input_tokens=used.input_tokens, output_tokens=used.output_tokens, usd=_usd_of(response)
    )


def _usd_of(response: ModelResponse) -> float:
    reported = getattr(response.usage, "cost", None)
    if reported is not None:
        return float(reported)
    try:
        return float(response.cost().total_price)
    except (AssertionError, LookupError, ValueError):
        return 0.0  # no name, no price, or no tokens are known


def _definition_of(tool: Tool[..., Any]) -> ToolDefinition:
    return ToolDefinition(
        name=tool.name,
        description=tool.description or None,
        parameters_json_schema=tool.input_schema,
    )
