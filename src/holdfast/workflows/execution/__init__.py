"""Carrying out a workflow: one turn a wave, its results stored at the end of the turn."""
