"""The cache folder: verified files, locks between processes, work folders that do not pile up."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from base_kit import sha256

from rewriter import cache as module
from rewriter.cache import Cache
from rewriter.errors import RewriterError

PROJECT = Path(module.__file__).parents[1]


@pytest.fixture
def cache(tmp_path) -> Cache:
    return Cache(tmp_path / "cache")


def child(cache: Cache, code: str) -> subprocess.Popen[str]:
    """Start a process that has `cache`, and wait until it has printed a line."""
    setup = (
        "from pathlib import Path; from rewriter.cache import Cache\n"
        f"c = Cache(Path({str(cache.folder)!r}))\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", setup + code],
        env=os.environ | {"PYTHONPATH": str(PROJECT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline().strip()
    return process


HOLD = """
import time
with c.lock("build"):
    print("have it", flush=True)
    time.sleep({seconds})
"""
WORK = """
import time
with c.work("build") as folder:
    (folder / "file").write_bytes(b"x" * 1000)
    print(folder, flush=True)
    time.sleep(60)
"""


def test_default(monkeypatch, tmp_path):
    monkeypatch.setenv("VLLM_ASCEND_CACHE", str(tmp_path / "mine"))
    assert Cache.default().folder == tmp_path / "mine"
    monkeypatch.delenv("VLLM_ASCEND_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert Cache.default().folder.name == "vllm-ascend-rewriter"
    assert not list(tmp_path.iterdir())  # nothing is made before it is needed


@pytest.mark.parametrize("place", ["~nouser/x", "~nouser"])
def test_home_of_nobody(monkeypatch, place):
    monkeypatch.setenv("VLLM_ASCEND_CACHE", place)
    with pytest.raises(RewriterError, match=f"^the cache folder {place} is in the home of a user"):
        Cache.default()


def test_no_home(monkeypatch):
    monkeypatch.delenv("VLLM_ASCEND_CACHE", raising=False)
    monkeypatch.setattr(module.platformdirs, "user_cache_dir", lambda *_, **__: "~/.cache/x")
    with pytest.raises(RewriterError, match="set VLLM_ASCEND_CACHE"):
        Cache.default()


def test_a_full_disk_is_named_by_the_folder_that_is_full(cache, tmp_path, monkeypatch):
    file = tmp_path / "source" / "vllm-9.9.9.tar.gz"
    file.parent.mkdir()
    file.write_bytes(b"content")

    def full(source, target):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(source), None, str(target))

    monkeypatch.setattr(module.shutil, "copyfile", full)
    with pytest.raises(RewriterError) as caught:
        cache.store(file, "a" * 64)
    message = str(caught.value)
    assert str(file) not in message and "\n" not in message
    assert f"No space left on device: {cache.folder}/sdists/{'a' * 64}; free space" in message
    assert "VLLM_ASCEND_CACHE to a folder on another disk" in message


def test_lock_files_go_with_the_locks(cache):
    locks = cache.folder / "locks"
    with cache.lock("out-1"):
        assert [path.name for path in locks.iterdir()] == ["out-1.lock"]
    assert not list(locks.iterdir())


def test_lock_files_of_killed_builds_go_and_those_in_use_stay(cache):
    dead = child(cache, HOLD.format(seconds=60).replace("build", "out-dead"))
    dead.kill()
    dead.wait()
    alive = child(cache, HOLD.format(seconds=60).replace("build", "out-alive"))
    try:
        with cache.work("build"):
            names = [path.name for path in (cache.folder / "locks").iterdir()]
            assert names == ["out-alive.lock"]
        with pytest.raises(RewriterError, match="another build is using the cache"):
            cache.clean()
    finally:
        alive.kill()
        alive.wait()
    cache.clean()


CROWD = """
import os, time
print("ready", flush=True)
for _ in range({rounds}):
    with c.lock("out-x"):
        place = os.open({token!r}, os.O_CREAT | os.O_EXCL)  # fails if another is in here, too
        os.close(place)
        time.sleep(0.002)
        os.unlink({token!r})
    with c.work("build"):
        pass
"""


def test_no_two_hold_a_lock_whose_file_comes_and_goes(cache, tmp_path):
    code = CROWD.format(rounds=25, token=str(tmp_path / "token"))
    crowd = [child(cache, code) for _ in range(4)]
    assert [process.wait(timeout=60) for process in crowd] == [0, 0, 0, 0]
    assert not list((cache.folder / "locks").iterdir())


def test_a_second_process_waits_and_says_so(cache):
    process = child(cache, HOLD.format(seconds=1))
    said: list[str] = []
    started = time.monotonic()
    with cache.lock("build", said.append):
        assert time.monotonic() - started > 0.3
    assert said == ["waiting for another build"]
    assert process.wait() == 0
    with cache.lock("build", said.append), cache.lock("other", said.append):
        assert len(said) == 1


def test_a_killed_process_gives_its_lock_back(cache):
    process = child(cache, HOLD.format(seconds=60))
    process.send_signal(signal.SIGKILL)
    process.wait()
    with cache.lock("build"):
        pass


@pytest.mark.parametrize("error", [None, RewriterError("x"), KeyboardInterrupt()])
def test_work_is_removed(cache, error):
    with suppress(RewriterError, KeyboardInterrupt), cache.work("build") as folder:
        assert folder.is_dir() and folder.parent == cache.folder / "work"
        (folder / "deep" / "er").mkdir(parents=True)
        (folder / "deep" / "er" / "file").write_bytes(b"")
        if error:
            raise error
    assert not list((cache.folder / "work").iterdir())


def test_work_of_killed_builds_is_removed_and_that_of_living_ones_is_not(cache):
    dead, alive = child(cache, WORK), child(cache, WORK)
    try:
        dead.kill()
        dead.wait()
        assert len([p for p in (cache.folder / "work").iterdir() if p.is_dir()]) == 2
        with cache.work("build") as mine:
            folders = [p for p in (cache.folder / "work").iterdir() if p.is_dir()]
            assert mine in folders and len(folders) == 2
            with pytest.raises(RewriterError, match="another build is using the cache"):
                cache.clean()
        with pytest.raises(RewriterError, match="another build is using the cache"):
            cache.clean()
        assert alive.poll() is None
    finally:
        alive.kill()
        alive.wait()
    assert cache.clean() > 1000
    assert not cache.folder.exists()


def test_store_and_find(cache, tmp_path):
    file = tmp_path / "vllm-9.9.9.tar.gz"
    file.write_bytes(b"content")
    digest = sha256(b"content")
    assert cache.sdist(digest) is None
    stored = cache.store(file, digest)
    assert stored == cache.folder / "sdists" / digest / file.name
    assert cache.sdist(digest) == stored
    stored.write_bytes(b"damaged")
    assert cache.sdist(digest) is None
    assert not stored.exists()


def test_records(cache):
    assert cache.recorded("9.9.9") is None
    cache.record("9.9.9", "a" * 64)
    assert cache.recorded("9.9.9") == "a" * 64
    (cache.folder / "versions" / "9.9.9").write_bytes(b"../../etc")
    assert cache.recorded("9.9.9") is None


def test_clean_removes_only_what_the_cache_made(cache, tmp_path):
    assert cache.clean() == 0
    file = tmp_path / "vllm-9.9.9.tar.gz"
    file.write_bytes(b"x" * 5000)
    cache.store(file, sha256(b"x" * 5000))
    (cache.folder / "mine.txt").write_bytes(b"")
    assert 5000 < cache.clean() < 6000
    assert [path.name for path in cache.folder.iterdir()] == ["mine.txt"]


def test_folders_of_others_are_neither_used_nor_cleaned(tmp_path):
    (tmp_path / "precious").write_bytes(b"")
    with pytest.raises(RewriterError, match="holds other files"), Cache(tmp_path).lock("x"):
        pass
    with pytest.raises(RewriterError, match="not made by this program"):
        Cache(tmp_path).clean()
    (tmp_path / "CACHEDIR.TAG").write_bytes(b"Signature: 8a477f597d28d172789f06886806bc55\n")
    with pytest.raises(RewriterError, match="not made by this program"):
        Cache(tmp_path).clean()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["CACHEDIR.TAG", "precious"]


def test_an_empty_folder_may_become_the_cache(tmp_path):
    with Cache(tmp_path).work("build"):
        pass
    assert (tmp_path / "CACHEDIR.TAG").read_bytes().startswith(b"Signature: 8a477f597d28d17278")


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with (
        pytest.raises(RewriterError, match=r"cannot be made .*VLLM_ASCEND_CACHE.*Not a directory"),
        Cache(tmp_path / "file" / "cache").work("build"),
    ):
        pass
