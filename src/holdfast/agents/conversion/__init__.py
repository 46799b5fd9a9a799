"""Values of the types in signatures, from and to plain data."""
