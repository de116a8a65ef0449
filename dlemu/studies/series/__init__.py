"""Several runs on one page: the trials of a search, the points of a sweep, folders that a user names."""
