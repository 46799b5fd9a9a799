"""The only builder of commits above the stores: a journal's head, and what is staged for it."""
