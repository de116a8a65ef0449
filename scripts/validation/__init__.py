"""What dlemu says beside what must be true, on drives whose speed is known (docs/validation.md)."""
