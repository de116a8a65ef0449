"""A real training job, recorded: what each step waited for, and the workload that emulates it (the recipe)."""
