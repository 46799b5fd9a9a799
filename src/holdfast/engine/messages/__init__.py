"""Messages between runs: queues, the outbox, and what peers reply."""
