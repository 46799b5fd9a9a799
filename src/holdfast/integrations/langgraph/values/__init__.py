"""Values of channels: which types may be stored, and how they are kept as tokens."""
