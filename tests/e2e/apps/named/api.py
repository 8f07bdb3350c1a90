NAME = "the user's own api"
