"""Install the cache when a process imports Triton; `dejavu-cache run` puts this on `PYTHONPATH`.

It hides any other `sitecustomize`, and runs that one too. It uses the standard library alone, so
that a child process whose Python does not have this package works as before.
"""

import importlib.machinery
import importlib.util
import os
import sys


def _run_hidden_sitecustomize():
    """Run the `sitecustomize` that this one hides.

    This folder is off `sys.path` meanwhile: another one may run what it hides, too, such as that of
    a second installation of this package, and would find this one again.
    """
    here = os.path.dirname(os.path.abspath(__file__))
    whole = sys.path[:]
    sys.path[:] = [entry for entry in whole if os.path.abspath(entry or os.curdir) != here]
    try:
        spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
        if spec is not None and spec.loader is not None:
            module = sys.modules["sitecustomize"] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
    finally:
        added = [entry for entry in sys.path if entry not in whole]
        sys.path[:] = added + whole


class _TritonImportHook:
    """Import hook that installs the cache once Triton is imported.

    A program may look for Triton any number of times before it imports it, so the hook stays.
    """

    is_settled = False

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name != "triton" or cls.is_settled:
            return None
        # Without this finder, or it would ask itself.
        sys.meta_path.remove(cls)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            sys.meta_path.insert(0, cls)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def exec_module(module):
                load(module)
                _install()

            spec.loader.exec_module = exec_module
        return spec


def _install():
    if _TritonImportHook.is_settled:
        return
    _TritonImportHook.is_settled = True
    try:
        from dejavu_cache import install
    except ImportError as error:
        sys.stderr.write(
            f"dejavu-cache: kernels of this process are not cached, since {sys.executable} cannot "
            f"import it ({error}): pip install dejavu-cache there\n"
        )
        return
    try:
        install()
    except Exception as error:
        sys.stderr.write(
            "dejavu-cache: kernels of this process are not cached: "
            f"{type(error).__name__}: {error}\n"
        )


sys.meta_path.insert(0, _TritonImportHook)
_run_hidden_sitecustomize()
if "triton" in sys.modules:
    _install()
