"""Values of Secrets: sealed at rest, given to workers, taken out of error texts."""
