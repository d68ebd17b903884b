"""What the tests of the base share: sdists made on the spot, and an index to fetch them from."""

from __future__ import annotations

import base64
import hashlib
import io
import os
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from rewriter.base import Base, Cache, open_base
from rewriter.errors import RewriterError

SDIST = "vllm-9.9.9.tar.gz"


def sdist_bytes(version: str = "9.9.9", name: str = "vllm", **more: bytes) -> bytes:
    """Return an sdist; `more` are files by their path, with `__` for the slash."""
    files = {
        "PKG-INFO": f"Metadata-Version: 2.4\nName: {name}\nVersion: {version}\n".encode(),
        "vllm/__init__.py": b"",
        "vllm/_version.py": f"__version__ = version = {version!r}\n".encode(),
        "requirements/common.txt": b"six\n",
    }
    files |= {path.replace("__", "/"): content for path, content in more.items()}
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for path, content in files.items():
            info = tarfile.TarInfo(f"vllm-{version}/{path}")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class Opener:
    """Calls open_base with defaults, and keeps what it said."""

    def __init__(self, folder: Path) -> None:
        self.work = folder / "work"
        self.work.mkdir()
        self.cache = Cache(folder / "cache")
        self.said: list[str] = []

    def __call__(self, source: Path | str | None = None, **more) -> Base:
        options = {"version": "9.9.9", "base_version": None, "allow_unknown": False} | more
        return open_base(
            source=None if source is None else str(source),
            cache=self.cache,
            work=self.work,
            say=self.said.append,
            **options,
        )

    def refused(self, source: Path | str | None = None, **more) -> str:
        with pytest.raises(RewriterError) as caught:
            self(source, **more)
        print(caught.value)
        assert "\n" not in str(caught.value)
        return str(caught.value)


def listing(folder: Path) -> dict[str, bytes | None]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


class Index:
    """A simple index on the loopback interface: `pages` by path, `hits` in the order they came."""

    def __init__(self) -> None:
        self.pages: dict[str, bytes] = {}
        self.hits: list[str] = []
        self.login: str | None = None
        self.cut: int | None = None
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.netloc = f"127.0.0.1:{self._server.server_port}"
        self.url = f"http://{self.netloc}/simple"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    def offer(self, content: bytes, name: str = SDIST, fragment: str = "") -> None:
        self.pages[f"/files/{name}"] = content
        link = f'<a href="/files/{name}{fragment}">{name}</a>'
        page = self.pages.get("/simple/vllm/", b"<!DOCTYPE html>\n")
        if link.encode() not in page:
            self.pages["/simple/vllm/"] = page + link.encode()

    def downloads(self) -> int:
        return sum(hit.startswith("/files/") for hit in self.hits)

    def stop(self) -> None:
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()

    def _handler(index) -> type[BaseHTTPRequestHandler]:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                index.hits.append(self.path)
                path = self.path.removeprefix(f"http://{index.netloc}")  # when used as a proxy
                content = index.pages.get(path)
                expected = index.login and base64.b64encode(index.login.encode()).decode()
                if expected and self.headers.get("Authorization") != f"Basic {expected}":
                    content, status = b"", 401
                else:
                    status = 404 if content is None else 200
                content = content or b""
                self.send_response(status)
                kind = "text/html" if path.endswith("/") else "application/octet-stream"
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content[: index.cut] if kind != "text/html" else content)

            def log_message(self, *_: object) -> None:
                pass

        return Handler


@contextmanager
def running_index() -> Iterator[Index]:
    index = Index()
    try:
        yield index
    finally:
        index.stop()


def no_user_configuration(monkeypatch, tmp_path: Path) -> None:
    """Keep pip's files and variables, proxies and netrc of whoever runs the tests out of them."""
    for key in list(os.environ):
        if key.startswith("PIP_") or key.lower().endswith("_proxy"):
            monkeypatch.delenv(key)
    for key in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.delenv(key, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PYTHON_KEYRING_BACKEND", "keyring.backends.null.Keyring")
    (tmp_path / "netrc").write_bytes(b"")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
