"""Repair and travel: scrubbing, recovery, going back, erasing."""
