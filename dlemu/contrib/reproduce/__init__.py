"""Makes the figures and tables of documents that vendors published, on the user's own storage."""
