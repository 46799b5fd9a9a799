"""Agent frameworks on Holdfast: one optional dependency each, none of them knows another."""
