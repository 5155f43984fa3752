"""The program of the server's process. Run as a script by path, never imported by the package.

    python -I child.py LOG embedded LIBRARY ARGUMENT...    load the library and be a server until SIGTERM or SIGINT
    python -I child.py LOG exec PROGRAM ARGUMENT...        become the program

It detaches first (own session, no parent to become a zombie of) and prints the pid of the server on standard output.
Standard library only, so that no folder of the user can shadow a module here. No secret is ever an argument.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import sys
import threading


def detach(log: str) -> None:
    """Go on in a process of its own session; the first process tells its pid and ends."""
    pid = os.fork()
    if pid:
        os.write(1, f"{pid}\n".encode())
        os._exit(0)
    os.setsid()
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    null = os.open(os.devnull, os.O_RDONLY)
    for source, descriptor in ((null, 0), (out, 1), (out, 2)):
        os.dup2(source, descriptor)
    os.close(out)
    os.close(null)


def raise_file_limit() -> None:
    """Allow as many open files as the system lets us: every part of a table is several."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # macOS shows a hard limit that it does not grant
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, hard), hard))


def serve(library: str, arguments: list[str]) -> int:
    """Run clickhouse-local in a thread; a signal ends its standard input, and with it the server.

    The main thread must stay in Python: a handler cannot run while it is inside the library.
    """
    read_end, write_end = os.pipe()
    os.dup2(read_end, 0)
    os.close(read_end)
    asked = threading.Event()

    def stop(_signal: int, _frame: object) -> None:
        if not asked.is_set():
            asked.set()
            os.close(write_end)

    loaded = ctypes.CDLL(library)
    loaded.chdb_query_cmdline.restype = ctypes.c_void_p
    loaded.chdb_result_error.restype = ctypes.c_char_p
    loaded.chdb_result_error.argtypes = [ctypes.c_void_p]
    values = [argument.encode() for argument in ["clickhouse", *arguments]]
    argv = (ctypes.c_char_p * len(values))(*values)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def run() -> None:
        result = loaded.chdb_query_cmdline(len(values), argv)
        error = loaded.chdb_result_error(result) if result else b"the library gave no result"
        if error and not asked.is_set():
            sys.stderr.write(error.decode("utf-8", "replace") + "\n")

    server = threading.Thread(target=run)
    server.start()
    server.join()
    return 0 if asked.is_set() else 1


def main(arguments: list[str]) -> None:
    log, mode, program, *rest = arguments
    detach(log)
    raise_file_limit()
    if mode == "exec":
        for number in (
            signal.SIGTERM,
            signal.SIGINT,
        ):  # who started us may ignore them (a background job does), and exec inherits that
            signal.signal(number, signal.SIG_DFL)
        os.execv(program, [program, *rest])  # noqa: S606 - an argument list, no shell
    try:
        code = serve(program, rest)
    except Exception as error:
        sys.stderr.write(f"chmv engine: {type(error).__name__}: {error}\n")
        code = 1
    if code == 0:
        sys.stdout.write("chmv engine: ended in order\n")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # the library's static destructors are not safe to run under the interpreter's exit


if __name__ == "__main__":
    main(sys.argv[1:])
