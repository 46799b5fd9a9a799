"""Reading definitions, and finding every mistake in them before anything runs."""
