"""Several jobs beside each other on one storage: what each costs the others."""
