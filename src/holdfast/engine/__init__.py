"""Use cases: what can be done to runs, each in one commit. Built on stores, used by all above."""
