"""Several jobs side by side on one storage: what each costs the others.

`run` takes each job alone, then all at once, and compares; `page` shows it. Imports no kind
of job: it knows them by what their kind says of itself.
"""
