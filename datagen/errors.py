"""What can go wrong, as exceptions whose text is fit for a user.

Every message says what was seen, what was wanted and what to do next. Only the command line prints them.

    DlemuError            exit status 3   a run that could not go on (a rank or worker died, a deadline passed)
    +- UserError          exit status 2   something the user can mend: a key, a value, a missing tool
       +- DatasetError    exit status 2   the dataset is missing, incomplete, foreign or damaged
       +- SpaceError      exit status 2   no space: disk, memory, file descriptors
"""


class DlemuError(Exception):
    """A run that could not go on."""

    exit_status = 3


class UserError(DlemuError):
    """Something the user can mend."""

    exit_status = 2


class DatasetError(UserError):
    """The dataset is missing, incomplete, foreign or damaged."""


class SpaceError(UserError):
    """There is no space: on disk, in memory, in the table of file descriptors."""
