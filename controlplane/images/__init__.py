"""Images: what is built, what came of it, and what it means for the Functions that name one."""
