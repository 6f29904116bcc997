"""Errors a user can act on. The command line prints them without a traceback and exits with 2."""


class UserError(Exception):
    """A mistake of the caller: the message names the flag or file, the value met, and the way out."""


class DataError(UserError):
    """A data set that is missing, damaged, or not what its name says."""


class BudgetError(UserError):
    """The next class does not fit into the bytes that were given."""


class SealError(RuntimeError):
    """A method touched the data of a task after that task was closed."""
