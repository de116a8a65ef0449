"""Documents that vendors published, made again on the reader's own storage: what to run, step by step."""
