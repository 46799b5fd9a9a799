"""A run that somebody holds: its state and every verb that advances it."""
