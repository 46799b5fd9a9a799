"""Runs whose versions a framework names: no worker works on them, and many may write."""
