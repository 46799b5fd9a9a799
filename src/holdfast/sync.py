"""Holdfast for code that blocks."""
