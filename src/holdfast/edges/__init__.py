"""Where others reach Holdfast, and where it reaches them: one protocol each."""
