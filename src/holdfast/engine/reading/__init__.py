"""Reading journals and what they add up to: entries, versions, the feed; and checking rows."""
