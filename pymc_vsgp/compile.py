"""How to compile."""

from pytensor.compile.mode import Mode

__all__ = ["ONCE"]

ONCE = Mode(linker="py", optimizer="fast_compile")
"""For what is evaluated some hundred times: compiling for speed would take longer than all that."""
