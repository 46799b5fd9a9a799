"""What a run does in a turn: recorded calls given back, tools, waits, costs, typed state."""
