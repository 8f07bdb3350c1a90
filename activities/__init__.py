"""Side effects of workflows, one class per collaborator."""
