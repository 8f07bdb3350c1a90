"""The way out of a sandbox: a proxy that decides by name, checks the address, and connects to what it checked."""
