"""What `holdfast demo` shows: real processes, killed while they work."""
