"""A kind of job of another distribution: it stats every file of a folder."""
