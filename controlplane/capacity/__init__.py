"""Worker pools: how many, which generation, on which provider."""
