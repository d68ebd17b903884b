"""`vllm serve` on the loopback interface, in processes of its own."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import openai
import process_kit
from e2e_kit import Ground

MODEL = "tiny"
_COMMON = ("--dtype", "float32", "--enforce-eager", "--served-model-name", MODEL)


@dataclass(frozen=True)
class Server:
    """A server that is up."""

    address: str
    pid: int

    def client(self) -> openai.OpenAI:
        """Return the official client."""
        return openai.OpenAI(base_url=f"{self.address}/v1", api_key="-", max_retries=0, timeout=120)

    def gauge(self, name: str) -> float:
        """Return the sum of a metric of vLLM's over its labels."""
        text = httpx.get(f"{self.address}/metrics", timeout=30).text
        lines = [line for line in text.splitlines() if line.startswith(f"vllm:{name}{{")]
        assert lines, f"no metric {name}"
        return sum(float(line.rpartition(" ")[2]) for line in lines)


@contextmanager
def serve(
    ground: Ground, folder: Path, *options: str, ready: float = 180, **environment: str
) -> Iterator[Server]:
    """Serve a model; at the end, ask the server to stop, and see that no process is left."""
    port = _free_port()
    command = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(folder)]
    command += ["--host", "127.0.0.1", "--port", str(port), *_COMMON, *options]
    log = ground.work / f"server-{port}.log"
    with (
        log.open("wb") as sink,
        subprocess.Popen(
            command,
            env=ground.environment(**environment),
            cwd=ground.work,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
        ) as process,
    ):
        members = []
        try:
            server = Server(f"http://127.0.0.1:{port}", process.pid)
            _wait(server, process, ready, log)
            members = process_kit.family(process.pid)
            yield server
            members = process_kit.family(process.pid)
            process.send_signal(signal.SIGTERM)
            process.wait(60)
            assert not process_kit.left(members, 20)
        finally:
            process_kit.end(members)
            process.kill()


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def _wait(server: Server, process: subprocess.Popen[bytes], ready: float, log: Path) -> None:
    deadline = time.monotonic() + ready
    while True:
        try:
            if httpx.get(f"{server.address}/health", timeout=2).is_success:
                return
        except httpx.TransportError:
            pass
        assert process.poll() is None, log.read_text("utf-8", "replace")[-8000:]
        assert time.monotonic() < deadline, log.read_text("utf-8", "replace")[-8000:]
        time.sleep(0.2)
