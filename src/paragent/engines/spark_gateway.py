"""Spark's Java process: started quietly, ended for certain."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from paragent.errors import EngineFailed

__all__ = ["Gateway"]

_NO_JAVA = (
    "Spark needs a Java runtime, version 17 or later, and there is none: neither JAVA_HOME nor PATH has one. "
    "Debian or Ubuntu: apt-get install openjdk-17-jre-headless; conda: conda install openjdk"
)
_EXIT_WAIT = 10.0
"""Seconds for Java to end after its input was closed."""
_STARTS = 3
"""How often Java is started: pyspark forks for it, and a fork beside the threads of gRPC or Ray dies at times before it is
Java."""


class Gateway:
    """A Java process for one Spark context; what it writes goes to a file, not to the user's terminal.

    Raises:
        EngineFailed: there is no Java, or it does not start.
    """

    def __init__(self, conf: Any) -> None:
        from pyspark import SparkContext
        from pyspark.java_gateway import launch_gateway

        if SparkContext._gateway is not None:
            self.java, self._process, self._log = SparkContext._gateway, None, None
            return
        require_java()
        self._log = tempfile.NamedTemporaryFile(prefix="paragent-spark-", suffix=".log")  # noqa: SIM115 - closed by close
        for number in range(1, _STARTS + 1):
            try:
                self.java = launch_gateway(conf, {"stdout": self._log, "stderr": subprocess.STDOUT})
                break
            except Exception as error:
                if number == _STARTS:
                    raise EngineFailed(f"Spark's Java process does not start: {self.explain(error)}") from error
        self._process = self.java.proc

    def explain(self, error: BaseException) -> str:
        """Return an error in few words, with the end of what Java wrote."""
        text = " ".join(str(error).split())[:500]
        if self._log is None:
            return text
        written = [line for line in Path(self._log.name).read_text(errors="replace").splitlines() if line.strip()]
        return f"{text} Java wrote last: {' | '.join(written[-5:])[:1000]}"

    def close(self) -> None:
        """End the Java process if this is the one who started it."""
        from pyspark import SparkContext

        if self._process is None:
            return
        with suppress(Exception):  # it may be gone already, and is made to go below
            self.java.shutdown()
        SparkContext._gateway = None
        SparkContext._jvm = None
        self._process.stdin.close()  # how it is told to end
        try:
            self._process.wait(_EXIT_WAIT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None
        if self._log is not None:
            self._log.close()


def require_java() -> None:
    """Check that there is a Java runtime.

    Raises:
        EngineFailed: there is none; the message says how to get one.
    """
    home = os.environ.get("JAVA_HOME")
    if home and (Path(home) / "bin" / "java").exists():
        return
    if shutil.which("java") is None:
        raise EngineFailed(_NO_JAVA)
