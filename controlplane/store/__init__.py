"""Objects, the change log and everything else that is kept in PostgreSQL."""
