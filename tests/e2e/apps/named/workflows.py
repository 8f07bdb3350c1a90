NAME = "the user's own workflows"
