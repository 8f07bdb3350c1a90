NAME = "the user's own controlplane"
