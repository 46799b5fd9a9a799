"""The mission's rows, and which of them the tests show."""
