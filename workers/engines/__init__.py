"""The engines of one machine: PostgreSQL and Temporal as children of the supervisor."""
