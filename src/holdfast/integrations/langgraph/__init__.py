"""LangGraph on Holdfast."""
