"""Handoff: one context of a run ends and another continues, with what it must know."""
