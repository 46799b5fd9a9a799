"""Workflows: definitions, runs of them, and checkpoints."""
