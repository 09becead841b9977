"""Machine code for what is called from outside, and not for each function on the way there.

numba optimizes each function that it compiles, makes machine code of it, and links its code into
that of its callers, where it is optimized again. A log density has some hundred functions that
nobody calls by their address: linked as they are, they are optimized once, where they end.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from numba.core.codegen import JITCodeLibrary, RuntimeLinker
from numba.core.compiler_lock import global_compiler_lock
from numba.core.environment import lookup_environment
from numba.core.registry import cpu_target
from numba.core.runtime.nrt import rtsys

ENVIRONMENT, WRAPPERS = "_ZN08NumbaEnv", ("_ZN7cpython",)  # prefixes of symbols


class Linkable(JITCodeLibrary):
    """Code that waits for a caller to take it in, or for somebody to ask for its address."""

    _waits = False

    def finalize(self):
        """Link what is called, and no more than that where nobody has asked for the address."""
        module = self._final_module
        # What Python calls is called by its address, and so is what calls itself.
        if any(f.name.startswith(WRAPPERS) for f in module.functions) or any(
            v.name.startswith(RuntimeLinker.PREFIX) for v in module.global_variables
        ):
            super().finalize()
            self._set_environments()
            return
        self._raise_if_finalized()
        for library in dict.fromkeys(self._linking_libraries):
            self._reload_init.update(library._reload_init)
            module.link_in(library._get_module_for_linking(), preserve=True)
        self._finalized = self._waits = True

    def _optimize_functions(self, ll_module):
        """Leave this to where the functions end up: of most, little is left there."""
        ll_module.data_layout = self._codegen._data_layout

    def complete(self):
        """Optimize, and make machine code."""
        if not self._waits:
            return
        self._codegen._check_llvm_bugs()
        self._waits, self._shared_module = False, None
        self._optimize_final_module()
        self._final_module.verify()
        self._finalize_final_module()
        self._set_environments()

    def get_pointer_to_function(self, name):
        """Return an address, 0 where nothing has that name."""
        self._ensure_finalized()
        if self._waits:
            if all(f.name != name or f.is_declaration for f in self._final_module.functions):
                return 0
            self.complete()
        return super().get_pointer_to_function(name)

    @property
    def has_dynamic_globals(self):
        """Whether a cache can't keep this: what is never used is gone once it is optimized."""
        self._ensure_finalized()
        self.complete()
        return super().has_dynamic_globals

    def serialize_using_object_code(self):
        """Return what a cache keeps."""
        self._ensure_finalized()
        self.complete()
        return super().serialize_using_object_code()

    def _set_environments(self):
        """Do for functions that were linked in what numba does for each as it is finished."""
        for variable in self._final_module.global_variables:
            if variable.name.startswith(ENVIRONMENT) and not variable.is_declaration:
                environment = lookup_environment(variable.name)
                if environment is not None:
                    self._codegen.set_env(variable.name, environment)


@contextmanager
def compiled_once() -> Iterator[None]:
    """Let functions that are compiled here wait for their callers."""
    context = cpu_target.target_context
    codegen = context.codegen()
    with global_compiler_lock:
        rtsys.initialize(context)  # which has addresses that numba asks for while it makes code
        known = codegen._library_class
        if known is not JITCodeLibrary:  # we are inside already, or this is another numba
            yield
            return

        def set_env(name, environment):
            if codegen._engine.is_symbol_defined(name):
                type(codegen).set_env(codegen, name, environment)

        codegen._library_class, codegen.set_env = Linkable, set_env
        try:
            yield
        finally:
            del codegen._library_class, codegen.set_env
