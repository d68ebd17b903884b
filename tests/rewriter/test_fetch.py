"""Downloads as the user's pip is configured, from a local index."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from base_kit import SDIST, no_user_configuration, running_index, sdist_bytes, sha256
from packaging.version import Version

from rewriter import fetch as fetching
from rewriter.errors import RewriterError
from rewriter.fetch import fetch_sdist
from rewriter.pip_config import PipConfig, http_client

CONTENT = sdist_bytes()
SHA = sha256(CONTENT)
PASSWORD = "s3cr3t@pass"


@pytest.fixture
def index(monkeypatch, tmp_path):
    no_user_configuration(monkeypatch, tmp_path)
    with running_index() as index:
        monkeypatch.setenv("PIP_INDEX_URL", index.url)
        yield index


@pytest.fixture
def dead() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}/simple"


def fetch(folder: Path, sha: str | None = SHA) -> tuple[Path, list[str]]:
    said: list[str] = []
    file, digest = fetch_sdist("vllm", Version("9.9.9"), sha, folder, said.append)
    assert file.read_bytes() == CONTENT and digest == SHA
    return file, said


def failure(folder: Path, sha: str | None = SHA) -> str:
    with pytest.raises(RewriterError) as caught:
        fetch_sdist("vllm", Version("9.9.9"), sha, folder, lambda line: None)
    message = str(caught.value)
    assert "\n" not in message
    assert not folder.exists() or not list(folder.iterdir()), "a partial file was left"
    return message


def test_downloads_from_the_index(index, tmp_path):
    index.offer(sdist_bytes("9.9.8"), "vllm-9.9.8.tar.gz")
    index.offer(b"no sdist", "vllm-9.9.9-py3-none-any.whl")
    index.offer(b"no tar", "vllm-9.9.9.zip")
    index.offer(CONTENT, fragment=f"#sha256={SHA}")
    file, said = fetch(tmp_path / "new" / "folder")
    assert file == tmp_path / "new" / "folder" / SDIST
    assert index.hits == ["/simple/vllm/", f"/files/{SDIST}"]
    assert said == [f"downloading {SDIST} from {index.url}"]


def test_a_full_disk_is_not_the_fault_of_the_index(index, tmp_path, monkeypatch):
    index.offer(CONTENT)

    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(fetching.PackageFinder, "download", full)
    message = failure(tmp_path / "x")
    assert f"No space left on device: {tmp_path / 'x'}; free space there" in message
    assert "pip" not in message


def test_find_links_in_the_home_of_nobody(index, monkeypatch, tmp_path):
    index.offer(CONTENT)
    monkeypatch.setenv("PIP_FIND_LINKS", "~nouser/wheels")
    fetch(tmp_path / "x")


def test_unpinned(index, tmp_path):
    index.offer(CONTENT)
    fetch(tmp_path / "x", sha=None)


def test_wrong_hash_on_the_page_saves_the_download(index, tmp_path):
    index.offer(CONTENT, fragment="#sha256=" + "0" * 64)
    assert "offers one with the sha256 000" in failure(tmp_path / "x")
    assert index.downloads() == 0


@pytest.mark.parametrize("pinned", [True, False])
def test_wrong_content(index, tmp_path, pinned):
    index.offer(CONTENT + b"x", fragment="" if pinned else f"#sha256={SHA}")
    message = failure(tmp_path / "x", SHA if pinned else None)
    assert f"sent a file with the hash {sha256(CONTENT + b'x')}" in message


def test_interrupted_download(index, tmp_path):
    index.offer(CONTENT)
    index.cut = 100
    assert index.url in failure(tmp_path / "x")


def test_index_without_the_file_then_one_with_it(index, tmp_path, monkeypatch):
    with running_index() as second:
        second.offer(CONTENT)
        monkeypatch.setenv("PIP_EXTRA_INDEX_URL", second.url)
        fetch(tmp_path / "x")
    assert index.hits == ["/simple/vllm/"]


def test_dead_index_then_a_good_one(index, tmp_path, monkeypatch, dead):
    index.offer(CONTENT)
    monkeypatch.setenv("PIP_INDEX_URL", dead)
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", index.url)
    fetch(tmp_path / "x")


def test_all_reasons_are_named(index, tmp_path, monkeypatch, dead, capfd):
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", dead)
    message = failure(tmp_path / "x")
    assert f"{index.url}: " in message and "Client Error(404): Not Found" in message
    assert f"{dead}: " in message and "refused" in message
    assert "--source" in message
    assert capfd.readouterr() == ("", "")  # nothing that unearth logs reaches the terminal


def test_index_that_has_other_versions_only(index, tmp_path):
    index.offer(sdist_bytes("9.9.8"), "vllm-9.9.8.tar.gz")
    assert f"it has no {SDIST}" in failure(tmp_path / "x")


def test_credentials_work_and_are_never_shown(index, tmp_path, monkeypatch, dead, capfd):
    index.offer(CONTENT)
    index.login = f"me:{PASSWORD}"
    with_login = f"http://me:s3cr3t%40pass@{index.netloc}/simple"
    monkeypatch.setenv("PIP_INDEX_URL", with_login)
    _, said = fetch(tmp_path / "x")
    index.login = "me:another"
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", dead.replace("//", "//me:s3cr3t%40pass@"))
    monkeypatch.setenv("PIP_FIND_LINKS", "http://me:s3cr3t%40pass@[bad/ ftp://u:s3cr3t@x")
    shown = [*said, failure(tmp_path / "y"), *capfd.readouterr()]
    assert f"http://***@{index.netloc}/simple" in shown[0]
    assert "401" in shown[1]
    assert not [text for text in shown if "s3cr3t" in text]


def test_credentials_in_a_failing_file_link(index, tmp_path, monkeypatch):
    link = f'<a href="http://me:{PASSWORD}@{index.netloc}/gone/{SDIST}">x</a>'
    index.pages["/simple/vllm/"] = link.encode()
    message = failure(tmp_path / "x")
    assert "404" in message and "s3cr3t" not in message


def test_netrc(index, tmp_path):
    index.offer(CONTENT)
    index.login = f"me:{PASSWORD}"
    host = index.netloc.partition(":")[0]
    Path(os.environ["NETRC"]).write_text(f"machine {host} login me password {PASSWORD}\n")
    fetch(tmp_path / "x")


def test_proxy_without_a_scheme(index, tmp_path, monkeypatch):
    index.offer(CONTENT)
    monkeypatch.setenv("PIP_PROXY", index.netloc)
    monkeypatch.setenv("PIP_INDEX_URL", index.url)
    fetch(tmp_path / "x")
    assert index.hits[0].startswith("http://")  # asked as a proxy, with the whole URL


def test_trusted_host_goes_through_the_proxy(index, tmp_path, monkeypatch):
    index.pages["/simple/vllm/"] = b""
    monkeypatch.setenv("PIP_INDEX_URL", "http://packages.invalid/simple")
    monkeypatch.setenv("PIP_TRUSTED_HOST", "packages.invalid other.invalid:8080")
    monkeypatch.setenv("PIP_PROXY", f"http://u:{PASSWORD}@{index.netloc}")
    assert "s3cr3t" not in failure(tmp_path / "x")
    assert index.hits == ["http://packages.invalid/simple/vllm/"]


def test_host_that_is_not_trusted(index, tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_INDEX_URL", "http://packages.invalid/simple")
    assert "trusted-host" in failure(tmp_path / "x")


def test_no_index(index, tmp_path, monkeypatch):
    index.offer(CONTENT)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    assert "no-index" in failure(tmp_path / "x")
    links = tmp_path / "links"
    links.mkdir()
    monkeypatch.setenv("PIP_FIND_LINKS", str(links))
    assert f"it has no {SDIST}" in failure(tmp_path / "x")
    (links / SDIST).write_bytes(CONTENT)
    file, _ = fetch(tmp_path / "x")
    assert file.parent == tmp_path / "x"  # a copy
    assert index.hits == []


def test_find_links_page(index, tmp_path, monkeypatch):
    index.offer(CONTENT)
    monkeypatch.setenv("PIP_NO_INDEX", "yes")
    monkeypatch.setenv("PIP_FIND_LINKS", f"{index.url}/vllm/")
    fetch(tmp_path / "x")


def test_wrong_file_in_a_folder_is_neither_taken_nor_touched(index, tmp_path, monkeypatch):
    (tmp_path / SDIST).write_bytes(b"mine")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    index.offer(CONTENT)
    fetch(tmp_path / "x")
    assert (tmp_path / SDIST).read_bytes() == b"mine"


def test_configuration_file(index, tmp_path, monkeypatch):
    index.offer(CONTENT)
    file = tmp_path / "pip.conf"
    file.write_text(
        f"[global]\nindex-url = http://127.0.0.1:1/\n[download]\nindex-url = {index.url}\n"
    )
    monkeypatch.setenv("PIP_CONFIG_FILE", str(file))
    monkeypatch.setenv("PIP_INDEX_URL", "")  # pip ignores empty variables
    monkeypatch.setenv("PIP_QUIET", "3")
    fetch(tmp_path / "x")


def test_broken_configuration_file(index, tmp_path, monkeypatch):
    file = tmp_path / "pip.conf"
    file.write_text("index-url = http://me:s3cr3t@127.0.0.1:1/\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(file))
    message = failure(tmp_path / "x")
    assert "pip config list" in message and "s3cr3t" not in message


def test_python_without_pip(index, tmp_path, monkeypatch):
    index.offer(CONTENT)
    python = tmp_path / "venv" / "bin" / "python"
    command = [sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")]
    subprocess.run(command, check=True)
    monkeypatch.setattr(sys, "executable", str(python))
    _, said = fetch(tmp_path / "x")
    assert "no pip" in said[0] and "PIP_*" in said[0]


def test_precedence():
    settings = {
        "global.index-url": "https://global/",
        "download.index-url": "https://download/",
        "global.find-links": "https://one/ https://two/",
        "global.no-index": "true",
        ":env:.no-index": "0",
        ":env:.default-timeout": "7",
        "global.timeout": "9",
        "install.extra-index-url": "https://not-for-downloads/",
    }
    config = PipConfig.from_settings(settings)
    assert config.indexes == ("https://download/",)
    assert config.find_links == ("https://one/", "https://two/")
    assert config.timeout == 7.0
    assert PipConfig.from_settings({}).timeout == 15.0
    with pytest.raises(RewriterError, match="timeout is no number"):
        PipConfig.from_settings({"global.timeout": "soon"})


def test_certificates(tmp_path):
    for option in ("cert", "client-cert"):
        missing = tmp_path / "none.pem"
        config = PipConfig.from_settings({f"global.{option}": str(missing)})
        with pytest.raises(RewriterError, match=rf"option {option} \(.*none.pem\) cannot be used"):
            http_client(config)
        missing.write_text("no certificate")
        with pytest.raises(RewriterError, match=rf"option {option} "):
            http_client(config)
        missing.unlink()
    http_client(PipConfig.from_settings({"global.cert": str(tmp_path)})).close()  # a folder


def test_redaction():
    config = PipConfig(("https://me:hunter22@host/simple",), (), proxy="u:prox%79pass@proxy:1")
    for text in (
        "no route to https://me:hunter22@host/simple/vllm/",
        "cannot log in with hunter22",
        "bad proxy http://u:proxypass@proxy:1",
        "first line\nhunter22",
        "https://other:p@ss:w/rd@host/x",
        "https://host/x?token=hunter22",
    ):
        shown = config.redact(text)
        assert not any(word in shown for word in ("hunter22", "proxypass", "p@ss", "rd@", "\n"))
