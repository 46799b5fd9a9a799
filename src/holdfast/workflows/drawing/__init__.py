"""Workflows as pictures: Mermaid and SVG."""
