"""Subscribers: events delivered to others, by workers, from a place that the store remembers."""
