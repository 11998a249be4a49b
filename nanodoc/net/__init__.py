"""The communication check: ranks that find each other, run every collective once, and are named
when they don't answer."""
