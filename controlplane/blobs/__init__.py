"""Content-addressed bytes of a project: code archives, large inputs, large results."""
