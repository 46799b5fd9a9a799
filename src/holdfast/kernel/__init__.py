"""Pure rules: no I/O, no clock, no randomness, no event loop. All of those come as arguments."""
