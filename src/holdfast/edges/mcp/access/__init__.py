"""Who calls, by which token, and the keys that seal what clients bring back."""
