"""Every model that Pydantic AI has a class for, as the model of an AgentLoop."""

try:
    from holdfast.integrations.pydantic_ai.model import PydanticAIModel
except ModuleNotFoundError as missing:
    if (missing.name or "").partition(".")[0] != "pydantic_ai":
        raise
    raise ImportError(
        "holdfast.integrations.pydantic_ai needs Pydantic AI 2: pip install 'holdfast[pydantic-ai]'"
    ) from missing

__all__ = ["PydanticAIModel"]
