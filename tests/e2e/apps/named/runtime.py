NAME = "the user's own runtime"
