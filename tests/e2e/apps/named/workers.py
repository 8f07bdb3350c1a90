NAME = "the user's own workers"
