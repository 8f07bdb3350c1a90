"""Generic resources: what is true of every kind, and knows no kind by name."""
