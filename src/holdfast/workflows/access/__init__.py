"""What blocks may use outside: a folder, processes, secrets."""
