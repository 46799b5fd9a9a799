"""Budgets: limits, costs, and what a run reserves before a call is paid for."""
