"""LangGraph on Holdfast: a checkpointer, graphs that one process runs at a time, durable tools."""

try:
    from holdfast.integrations.langgraph.guard import durable
    from holdfast.integrations.langgraph.saver import HoldfastSaver
    from holdfast.integrations.langgraph.tools.tools import durable_tools, holdfast_key
except ModuleNotFoundError as missing:
    if (missing.name or "").partition(".")[0] not in ("langgraph", "langchain_core"):
        raise
    raise ImportError(
        "holdfast.integrations.langgraph needs LangGraph 1: pip install 'holdfast[langgraph]'"
    ) from missing

__all__ = ["HoldfastSaver", "durable", "durable_tools", "holdfast_key"]
