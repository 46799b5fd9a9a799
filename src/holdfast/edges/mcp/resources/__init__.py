"""What clients can read of runs: record, transcript, result; and the news of it."""
