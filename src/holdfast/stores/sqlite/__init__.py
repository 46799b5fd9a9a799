"""Holdfast on SQLite: a file shared by many processes, or a store in memory."""
