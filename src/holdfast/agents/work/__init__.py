"""Working on runs: workers, passes over runs, sessions, handles, schedules."""
