NAME = "the user's own tests"
