"""The program's main module in worker processes: imported there, so that its functions can run; never run there.

A worker is a fresh interpreter. Functions of a script are known by the name ``__main__``, so each worker imports the
script under another name, as :mod:`multiprocessing` does. A script that starts its job at the top level, without the
guard ``if __name__ == "__main__":``, would start it again in each worker; :func:`refuse_while_importing_main` stops
that.
"""

from __future__ import annotations

import multiprocessing.process
import multiprocessing.spawn
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from rechunk_exec.errors import RechunkError

UNGUARDED = 79
"""Exit code of a worker process whose main module called us while it was imported."""

_WORKER = "rechunk_exec worker"


@dataclass(frozen=True, slots=True, kw_only=True)
class MainModule:
    """How a worker process finds the main module of its parent; without name and path, if it cannot."""

    name: str | None
    path: str | None
    argv: tuple[str, ...]

    @classmethod
    def here(cls) -> MainModule:
        """Return that of this process: a module, a script; or nothing for ``-c``, standard input and notebooks."""
        main = sys.modules["__main__"]
        name = getattr(getattr(main, "__spec__", None), "name", None)
        file = getattr(main, "__file__", None)
        path = os.path.abspath(file) if name is None and file and Path(file).is_file() else None
        return cls(name=name, path=path, argv=tuple(sys.argv))

    def load(self) -> None:
        """Import it in this process, a worker that has no main module of its own."""
        process = multiprocessing.process.current_process()
        process.name = _WORKER
        found = {"init_main_from_name": self.name} if self.name else {"init_main_from_path": self.path}
        # The mark by which multiprocessing, too, refuses to start processes.
        process._inheriting = True  # type: ignore[attr-defined]  # noqa: SLF001
        try:
            multiprocessing.spawn.prepare({"sys_argv": list(self.argv), **(found if self else {})})
        finally:
            del process._inheriting  # type: ignore[attr-defined]  # noqa: SLF001

    def __bool__(self) -> bool:
        return self.name is not None or self.path is not None


def refuse_while_importing_main() -> None:
    """Refuse to start a job in a process that is only importing the main module of its parent.

    A worker process of ours ends here, quietly: its parent tells the user. One of :mod:`multiprocessing` raises.

    Raises
    ------
    RechunkError
        If a process pool of the user's imports a script that has no guard.
    """
    process = multiprocessing.process.current_process()
    if not getattr(process, "_inheriting", False):
        return
    if process.name == _WORKER:
        os._exit(UNGUARDED)  # an exception could be caught, and the script would go on
    raise unguarded_error(MainModule.here())


def unguarded_error(main: MainModule) -> RechunkError:
    """Return the error for a script without the guard."""
    return RechunkError(
        "worker processes import the main script, so what starts a job must stand under the guard "
        f'`if __name__ == "__main__":`; got a call at the top level of {main.path or main.name or "the main module"}; '
        "write:\n\n"
        '    if __name__ == "__main__":\n'
        "        ...  # the call of rechunk_exec\n"
    )
