"""What a run left: `Run` is what was measured, `analyse` makes the `Summary` of it. Everybody reads results here."""
