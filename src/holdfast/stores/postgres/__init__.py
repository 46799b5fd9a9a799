"""PostgreSQL: for many processes and machines."""
