"""Handoff: one context of a run ends and another goes on, with what it must know."""
