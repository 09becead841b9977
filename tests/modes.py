"""How to compile where the backend is not what is tested."""

import pytensor

from pytensor.compile.mode import Mode
from pytensor.graph.rewriting.db import RewriteDatabaseQuery
from pytensor.link.vm import VMLinker

# Each operation once, by numpy: rewriting a graph takes longer than evaluating it a few times.
# One rewrite is of use: numpy has no loop for a maximum whose gradient passes.
RAW = Mode(
    linker="py",
    optimizer=RewriteDatabaseQuery(include=["merge", "plain_maximum_of_distances"]),
)

# All that is done to a graph for speed, without the minutes that a compiler takes.
REWRITTEN = Mode(VMLinker(use_cloop=False, c_thunks=False), "fast_run").excluding("fusion")


def of_users():
    """The mode of users who name none, within a block: numba. In tests it is `compile.ONCE`."""
    return pytensor.config.change_flags(mode="Mode")
