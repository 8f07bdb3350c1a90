"""Apps: what they say of their members, and when an ephemeral one has been left alone."""
