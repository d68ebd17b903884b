"""Opening vLLM from everything it may be given as."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from base_kit import (
    SDIST,
    Opener,
    listing,
    no_user_configuration,
    running_index,
    sdist_bytes,
    sha256,
)

from rewriter import base
from rewriter.base import digest

CONTENT = sdist_bytes(vllm__odd="a\r\nb".encode("utf-16"))
SHA = sha256(CONTENT)


@pytest.fixture
def opener(tmp_path, monkeypatch) -> Opener:
    no_user_configuration(monkeypatch, tmp_path)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setattr(base, "KNOWN_SDISTS", {"9.9.9": SHA})
    return Opener(tmp_path)


@pytest.fixture
def index(opener, monkeypatch):
    with running_index() as index:
        monkeypatch.delenv("PIP_NO_INDEX")
        monkeypatch.setenv("PIP_INDEX_URL", index.url)
        yield index


@pytest.fixture
def sdist(tmp_path) -> Path:
    (tmp_path / SDIST).write_bytes(CONTENT)
    return tmp_path / SDIST


@pytest.fixture
def tree(sdist, tmp_path) -> Path:
    with tarfile.open(sdist) as tar:
        tar.extractall(tmp_path, filter="data")
    return tmp_path / "vllm-9.9.9"


def test_release_is_downloaded_once_and_then_works_offline(opener, index):
    index.offer(CONTENT)
    first = opener()
    assert (first.version, first.sha256, first.origin) == ("9.9.9", SHA, "sdist")
    assert (first.file, first.commit, first.name) == (SDIST, None, "vllm")
    assert (first.root / "vllm/odd").read_bytes() == "a\r\nb".encode("utf-16")
    index.stop()
    second = opener(version="9.9.9.0")
    assert listing(first.root) == listing(second.root) and first.root != second.root
    assert opener.said == [f"downloading {SDIST} from {index.url}", f"using the cached {SDIST}"]
    assert opener.work in second.root.parents


def test_damaged_cache_is_fetched_again(opener, index):
    index.offer(CONTENT)
    opener()
    (cached,) = opener.cache.folder.rglob(SDIST)
    cached.write_bytes(CONTENT[:-10])
    opener()
    assert index.downloads() == 2
    assert cached.read_bytes() == CONTENT
    told = f"the cached {SDIST} was damaged; it is removed and fetched again"
    assert told in opener.said
    cached.write_bytes(CONTENT[:-10])
    index.stop()
    message = opener.refused()
    assert message.startswith(f"{told}; the sdist {SDIST} cannot be downloaded: ")


def test_wrong_content_is_refused_and_not_cached(opener, index):
    index.offer(sdist_bytes())
    for allow in (False, True):  # a known hash stays a must
        assert SHA in opener.refused(allow_unknown=allow)
    assert not list(opener.cache.folder.rglob("*.tar.gz"))


def test_unknown_version_needs_leave(opener, index):
    content = sdist_bytes("9.9.10")
    index.offer(content, "vllm-9.9.10.tar.gz")
    message = opener.refused(version="9.9.10")
    assert "--allow-unknown-base" in message and "9.9.9" in message
    assert index.hits == []
    assert opener(version="9.9.10", allow_unknown=True).sha256 == sha256(content)
    assert any(sha256(content) in line for line in opener.said)
    index.stop()
    opener(version="9.9.10", allow_unknown=True)  # offline, from the cache
    assert "--allow-unknown-base" in opener.refused(version="9.9.10")


def test_unknown_version_must_stay_what_it_was(opener, index):
    index.offer(sdist_bytes("9.9.10"), "vllm-9.9.10.tar.gz")
    first = opener(version="9.9.10", allow_unknown=True)
    (cached,) = opener.cache.folder.rglob("*.tar.gz")
    cached.unlink()
    index.offer(sdist_bytes("9.9.10", more=b"x"), "vllm-9.9.10.tar.gz")
    assert first.sha256 in opener.refused(version="9.9.10", allow_unknown=True)
    assert "--clean-cache" in opener.said[-2]
    opener.cache.clean()
    assert opener(version="9.9.10", allow_unknown=True).sha256 != first.sha256


def test_release_that_lies_about_its_version(opener, index):
    index.offer(sdist_bytes("9.9.8"), "vllm-9.9.10.tar.gz")
    assert "says it is vLLM 9.9.8, not 9.9.10" in opener.refused(
        version="9.9.10", allow_unknown=True
    )


@pytest.mark.parametrize("option", ["version", "base_version"])
def test_versions_are_checked(opener, option):
    assert "'nine' is no version" in opener.refused(**{option: "nine"})
    assert "is no version" in opener.refused(**{option: "../../etc"})


def test_two_builds_at_once_download_once(opener, index):
    index.offer(CONTENT)
    code = (
        "import sys; from pathlib import Path; from rewriter import base\n"
        f"base.KNOWN_SDISTS = {{'9.9.9': {SHA!r}}}; cache = base.Cache.default()\n"
        "with cache.work('x') as work:\n"
        "    print(base.open_base(source=None, version='9.9.9', base_version=None,\n"
        "        allow_unknown=False, cache=cache, work=work, say=lambda line: None).sha256)\n"
    )
    environment = {
        "PYTHONPATH": str(Path(base.__file__).parents[1]),
        "VLLM_ASCEND_CACHE": str(opener.cache.folder),
    }
    builds = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            env=os.environ | environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    assert [build.communicate()[0].strip() for build in builds] == [SHA, SHA]
    assert index.downloads() == 1


def test_sdist_file(opener, sdist):
    opened = opener(sdist)
    assert (opened.version, opened.sha256, opened.origin, opened.file) == (
        "9.9.9",
        SHA,
        "sdist",
        SDIST,
    )
    opener(sdist, base_version="9.9.9")
    assert "not 1.0" in opener.refused(sdist, base_version="1.0")


def test_sdist_file_of_a_known_version_with_another_hash(opener, sdist):
    sdist.write_bytes(sdist_bytes(vllm__evil=b""))
    message = opener.refused(sdist)
    assert SHA in message and "--allow-unknown-base" in message
    assert opener(sdist, allow_unknown=True).sha256 == sha256(sdist.read_bytes())
    assert SHA in opener.said[-1]


def test_sdist_file_of_another_version_is_the_users_choice(opener, sdist):
    sdist.write_bytes(sdist_bytes("1.2.3rc1"))
    assert opener(sdist).version == "1.2.3rc1"


def test_sources_that_are_none(opener, sdist, tmp_path):
    assert "there is no" in opener.refused(tmp_path / "nothing.tar.gz")
    assert "there is no" in opener.refused("\0")
    assert "no folder" in opener.refused(__file__)
    os.mkfifo(tmp_path / "pipe")
    for odd in ("/dev/null", tmp_path / "pipe"):
        assert opener.refused(odd) == f"'{odd}' is neither a file nor a folder; check --source"
    sdist.write_bytes(CONTENT[: len(CONTENT) // 2])
    assert "damaged or cut short" in opener.refused(sdist)
    sdist.write_bytes(sdist_bytes(name="another"))
    assert "'another', not vllm" in opener.refused(sdist)
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "has no vllm/__init__.py" in opener.refused(empty)


def test_archive_without_metadata_needs_a_version(opener, tree, tmp_path):
    for name in ("PKG-INFO", "vllm/_version.py"):
        (tree / name).unlink()
    archive = tmp_path / "github.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(tree, "vllm-main")
    assert "--base-version" in opener.refused(archive)
    opened = opener(archive, base_version="1.2.3")
    assert opened.version == "1.2.3"
    assert b"'1.2.3'" in (opened.root / "vllm/_version.py").read_bytes()


def test_tree(opener, tree):
    (tree / "vllm/__pycache__").mkdir()
    (tree / "vllm/__pycache__/x.pyc").write_bytes(b"x")
    before = listing(tree)
    opened = opener(tree)
    assert (opened.version, opened.origin, opened.file) == ("9.9.9", "tree", None)
    assert listing(tree) == before and opener.work in opened.root.parents
    assert opened.sha256 == opener(tree).sha256 == digest(opened.root)
    content = listing(opened.root)
    assert content == {path: data for path, data in before.items() if "__pycache__" not in path}
    (tree / "vllm/odd").write_bytes(b"other")
    assert opener(tree).sha256 != opened.sha256


def test_digest_is_as_documented(tmp_path):
    (tmp_path / "vllm/b").mkdir(parents=True)
    (tmp_path / "vllm/b/a").write_bytes(b"two")
    (tmp_path / "vllm/b.py").write_bytes(b"")
    (tmp_path / "other").write_bytes(b"not of it")
    expected = b"vllm/b.py\x000\x00" + b"vllm/b/a\x003\x00two"
    assert digest(tmp_path) == sha256(expected)


def test_version_of_a_tree(opener, tree):
    opened = opener(tree, base_version="1.2.3.dev4+gabc")
    assert opened.version == "1.2.3.dev4+gabc"
    names: dict[str, object] = {}
    exec((opened.root / "vllm/_version.py").read_bytes(), names)
    assert names["__version__"] == "1.2.3.dev4+gabc"
    assert names["__version_tuple__"] == (1, 2, 3, "dev4", "gabc")
    assert names["__commit_id__"] is None
    assert b"9.9.9" in (tree / "vllm/_version.py").read_bytes()  # the user's own is left alone
    (tree / "PKG-INFO").unlink()
    assert opener(tree).version == "9.9.9"  # from vllm/_version.py, which is not run
    (tree / "vllm/_version.py").write_bytes(b"raise SystemExit")
    assert "--base-version" in opener.refused(tree)


def test_tree_with_a_link_out_or_compiled_files(opener, tree):
    (tree / "vllm/link").symlink_to("/etc/hostname")
    assert "a link out of its tree" in opener.refused(tree)
    (tree / "vllm/link").unlink()
    (tree / "vllm/_C.abi3.so").write_bytes(b"")
    assert "compiled files (_C.abi3.so)" in opener.refused(tree)
    (tree / "ascend_runtime").mkdir()
    assert "edited already" in opener.refused(tree)


def make_wheel(path: Path, **more: str) -> Path:
    info = "vllm-9.9.9+empty.dist-info"
    files = {
        "vllm/__init__.py": "",
        "vllm/_version.py": "__version__ = '9.9.9'\n",
        f"{info}/METADATA": "Metadata-Version: 2.4\nName: vllm\nVersion: 9.9.9+empty\n\nbody",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": "",
    }
    with zipfile.ZipFile(path, "w") as wheel:
        for name, content in (files | more).items():
            wheel.writestr(name, content)
    return path


def test_wheel(opener, tmp_path):
    path = make_wheel(tmp_path / "vllm-9.9.9+empty-py3-none-any.whl")
    opened = opener(path)
    assert (opened.version, opened.origin, opened.file) == ("9.9.9", "wheel", path.name)
    assert opened.sha256 == sha256(path.read_bytes())
    assert (opened.root / "vllm-9.9.9+empty.dist-info/METADATA").is_file()


@pytest.mark.parametrize(
    ("name", "more", "says"),
    [
        ("vllm-9.9.9-py3-none-any.whl", {"vllm/_C.abi3.so": ""}, "vllm/_C.abi3.so"),
        ("vllm-9.9.9-py3-none-any.whl", {"vllm/a.so": "", "vllm/b.so": ""}, "and 1 more"),
        ("vllm-9.9.9-cp38-abi3-manylinux_2_31_x86_64.whl", {}, "not tagged py3-none-any"),
        ("vllm_ascend_patched-9.9.9-py3-none-any.whl", {}, "not of vllm"),
        ("vllm-9.9.9-py3-none-any.whl", {"ascend_runtime/__init__.py": ""}, "edited already"),
        ("vllm-9.9.9-py3-none-any.whl", {"vllm/../../x": ""}, "a place outside"),
        ("vllm-9.9.9-py3-none-any.whl", {"b.dist-info/METADATA": ""}, "2 METADATA files"),
        ("vllm.whl", {}, "no name of a wheel"),
        (
            "vllm-9.9.9-py3-none-any.whl",
            {"vllm-9.9.9+empty.dist-info/WHEEL": "Root-Is-Purelib: false\n"},
            "not pure",
        ),
    ],
)
def test_wheels_that_do_not_serve(opener, tmp_path, name, more, says):
    assert says in opener.refused(make_wheel(tmp_path / name, **more))


BAD_NAME = os.fsdecode(b"b\xff.py")


def test_names_that_are_not_utf8(opener, tree, tmp_path):
    """They cannot be written into a manifest; so they are refused before anything is edited."""
    for name in (f"vllm/{BAD_NAME}", f"requirements/{BAD_NAME}", BAD_NAME, "vllm/a\nb.py"):
        (tree / name).write_bytes(b"")
        message = opener.refused(tree)
        assert f"holds a file with the odd name {name!a}; rename or remove it" in message
        (tree / name).unlink()
    (tree / "vllm" / BAD_NAME).mkdir()
    assert "odd name 'vllm/b\\udcff.py'" in opener.refused(tree)
    archive = tmp_path / "x.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(tree, "vllm-9.9.9")
    assert "odd name 'vllm-9.9.9/vllm/b\\udcff.py'" in opener.refused(archive)
    (tree / "vllm" / BAD_NAME).rmdir()
    (tree / "docs").mkdir()
    (tree / "docs" / BAD_NAME).write_bytes(b"")  # not taken along
    opener(tree)


@pytest.mark.parametrize("suffix", [".tar.gz", ".whl"])
def test_archive_whose_own_name_is_not_utf8(opener, tmp_path, suffix):
    path = tmp_path / f"{BAD_NAME}{suffix}"
    path.write_bytes(CONTENT)
    assert "\\udcff" in opener.refused(path)


def test_links_to_nothing_are_shown_where_the_user_has_them(opener, tree):
    (tree / "compile_commands.json").symlink_to("build/none.json")  # nobody needs it
    assert not os.path.lexists(opener(tree).root / "compile_commands.json")
    link = tree / "vllm/dang.py"
    link.symlink_to("nothing.py")
    assert opener.refused(tree) == f"{link} is a link to nothing; mend or remove it"
    (tree / "csrc").mkdir()
    (tree / "csrc/x.py").write_bytes(b"")
    link.unlink()
    link.symlink_to("../csrc/x.py")
    assert f"{link} is a link to a file that is not taken along" in opener.refused(tree)


@pytest.mark.slow
def test_the_real_release(tmp_path):
    opener = Opener(tmp_path)
    opened = opener(version=base.DEFAULT_VERSION)
    assert opened.sha256 == base.KNOWN_SDISTS[base.DEFAULT_VERSION]
    files = [path for path in (opened.root / "vllm").rglob("*") if path.is_file()]
    assert len(files) == 1975
    assert not base.compiled_files(opened.root / "vllm")
    assert digest(opener(opened.root).root) == digest(opened.root)
