"""Main program of a child process: reads one request per line, writes the output and one marked reply.

With a command after its settings, it applies the limits and replaces itself by that command.

This file also runs alone inside sandboxes where paragent is not installed, so it imports only the standard library.
The code that it runs may do anything to this process, so the parent enforces every limit that matters as well.
"""

from __future__ import annotations

import ast
import importlib
import json
import linecache
import os
import resource
import signal
import sys
import traceback
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class TimeLimit(BaseException):
    """The code exceeded its soft time limit. A BaseException, so that `except Exception` does not swallow it."""


def apply_limits(settings: dict[str, Any]) -> None:
    """Apply the resource limits and drop privileges, for this process and its descendants."""
    for name, value in settings["limits"].items():
        resource.setrlimit(getattr(resource, name), (value, value))
    if settings.get("uid"):
        os.setgroups([])
        os.setresgid(settings["uid"], settings["uid"], settings["uid"])
        os.setresuid(settings["uid"], settings["uid"], settings["uid"])
    if settings.get("keyctl"):
        _leave_session_keyring(*settings["keyctl"])
    if settings.get("die_with_parent"):
        import ctypes

        ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL)  # 1 is PR_SET_PDEATHSIG in <linux/prctl.h>


def _leave_session_keyring(number: int, operation: int) -> None:
    """Replace the inherited session keyring, which may hold keys of the user, by a new, empty one.

    Raises:
        OSError: this failed although the kernel has keyrings and this process may use them.
    """
    import ctypes
    import errno

    if ctypes.CDLL(None, use_errno=True).syscall(number, operation, None) < 0:
        failure = ctypes.get_errno()
        if failure not in (errno.ENOSYS, errno.EPERM):  # EPERM: the seccomp filter of a container denies keyctl
            raise OSError(failure, f"cannot leave the session keyring: {os.strerror(failure)}")


def execute(namespace: dict[str, Any], name: str, code: str, limit: float) -> dict[str, Any]:
    """Run code in the namespace, print the value of a last expression, and return how the code ended."""
    linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
    signal.setitimer(signal.ITIMER_REAL, limit)
    try:
        tree = ast.parse(code, name)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, name, "exec"), namespace)  # noqa: S102 - running code is the purpose of this process
        if isinstance(last, ast.Expr):
            sys.displayhook(eval(compile(ast.Expression(last.value), name, "eval"), namespace))  # noqa: S307 - as above
    except TimeLimit:
        return {"ok": False, "error": f"TimeLimit: stopped after {limit:g} s; variables are kept"}
    except BaseException as error:  # noqa: BLE001 - every exception of the code is its result, including SystemExit
        return {"ok": False, "error": _format(error)}
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return {"ok": True}


def _format(error: BaseException) -> str:
    ours = error.__traceback__
    shown = ours.tb_next if ours is not None else None
    return "".join(traceback.format_exception(type(error), error, shown)).strip()


def call(target: str, arguments: list[Any]) -> dict[str, Any]:
    """Call `module:function` and return its result or its exception; `module:` only imports the module."""
    module_name, _, function = target.partition(":")
    try:
        module = importlib.import_module(module_name)
        return {"ok": True, "value": getattr(module, function)(*arguments) if function else None}
    except Exception as error:  # noqa: BLE001 - reported to the caller
        return {"ok": False, "error": str(error), "type": type(error).__name__}


def _raise_time_limit(*_: object) -> None:
    raise TimeLimit


def serve(settings: dict[str, Any], call: Callable[..., dict[str, Any]] = call) -> None:
    """Answer requests until stdin ends.

    Args:
        settings: limits and privileges, see `apply_limits`.
        call: performs requests that name a function.
    """
    own_pid = os.getpid()
    requests = os.fdopen(os.dup(0), "rb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    signal.signal(signal.SIGALRM, _raise_time_limit)
    apply_limits(settings)
    sys.argv = [""]
    namespace: dict[str, Any] = {"__name__": "__main__", "__builtins__": __builtins__}
    for number, line in enumerate(requests, 1):
        request = json.loads(line)
        if "code" in request:
            reply = execute(namespace, f"<cell {number}>", request["code"], request["limit"])
        else:
            reply = call(request["target"], request["arguments"], *request.get("more", ()))
        if os.getpid() != own_pid:
            os._exit(0)  # the code forked, and this is its child: it must not answer, nor run exit handlers
        sys.stdout.flush()
        sys.stderr.flush()
        _write(f"{request['mark']}{json.dumps(reply)}\n".encode())


def _write(data: bytes) -> None:
    while data:
        data = data[os.write(1, data) :]


def execute_program(settings: dict[str, Any], command: list[str]) -> None:
    """Apply the limits and replace this process by a command; exits with status 127 if it cannot be started."""
    apply_limits(settings)
    try:
        os.execvp(command[0], command)  # noqa: S606 - running a command is the purpose
    except OSError as error:
        sys.stderr.write(f"{command[0]}: {error.strerror}\n")
        sys.exit(127)


if __name__ == "__main__":
    if sys.argv[2:]:
        execute_program(json.loads(sys.argv[1]), sys.argv[2:])
    else:
        serve(json.loads(sys.argv[1]))
