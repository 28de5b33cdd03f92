"""Downloads against a server on loopback: resumed, checked, atomic; and what they say when they fail."""

import gzip
import hashlib
import io
import os
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from qbayes.errors import BadFile, BadInput
from qbayes.tasks import DATASETS, data_folder, fetch, verify
from qbayes.tasks.dataset import Archive, DataFile, Dataset, MissingFile
from qbayes.tasks.datasets.diabetes import load as load_diabetes_task
from qbayes.tasks.files import transfer
from qbayes.tasks.files.download import fetch_files, status
from qbayes.tasks.files.transfer import Unreachable, checksum_of, download

CONTENT = bytes(range(256)) * 3000  # 768,000 bytes: several chunks


def md5(content: bytes) -> str:
    return "md5:" + hashlib.md5(content).hexdigest()


@dataclass
class Site:
    """What the server offers and how it behaves."""

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    ranges: bool = True
    stop_after: int | None = None
    asked: list[tuple[str, str | None]] = field(default_factory=list)


def handler(site: Site) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wanted = self.headers.get("Range")
            site.asked.append((self.path, wanted))
            content = site.files.get(self.path)
            if content is None:
                self.send_error(404)
                return
            start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and site.ranges else 0
            if start and start >= len(content):
                self.send_error(416)
                return
            self.send_response(206 if start else 200)
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
            self.send_header("Content-Length", str(len(content) - start))
            self.end_headers()
            self.wfile.write(content[start:][: site.stop_after])

        def log_message(self, format: str, *args: object) -> None:
            pass

    return Handler


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    for proxy in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(proxy, raising=False)
    site = Site()
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler(site))
    site.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    monkeypatch.setenv("QBAYES_MIRROR", site.url)
    yield site
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_download_arrives_whole_with_progress(site: Site, tmp_path: Path) -> None:
    site.files["/f"] = CONTENT
    seen: list[tuple[str, int, int | None]] = []
    place = tmp_path / "deep" / "f.bin"
    download(f"{site.url}/f", place, md5(CONTENT), lambda *step: seen.append(step))
    assert place.read_bytes() == CONTENT
    assert seen[-1] == ("f.bin", len(CONTENT), len(CONTENT))
    assert [step[1] for step in seen] == sorted(step[1] for step in seen)
    assert os.listdir(place.parent) == ["f.bin"]


def test_a_part_is_continued(site: Site, tmp_path: Path) -> None:
    site.files["/f"] = CONTENT
    (tmp_path / "f.part").write_bytes(CONTENT[:100_000])
    download(f"{site.url}/f", tmp_path / "f", md5(CONTENT))
    assert site.asked == [("/f", "bytes=100000-")]
    assert (tmp_path / "f").read_bytes() == CONTENT


def test_a_server_without_ranges_means_a_clean_restart(site: Site, tmp_path: Path) -> None:
    site.files["/f"], site.ranges = CONTENT, False
    (tmp_path / "f.part").write_bytes(b"something else" * 1000)
    download(f"{site.url}/f", tmp_path / "f", md5(CONTENT))
    assert (tmp_path / "f").read_bytes() == CONTENT


@pytest.mark.parametrize("part", [CONTENT, CONTENT + b"more"])
def test_a_part_as_long_as_the_file_starts_again(site: Site, tmp_path: Path, part: bytes) -> None:
    site.files["/f"] = CONTENT
    (tmp_path / "f.part").write_bytes(part)
    download(f"{site.url}/f", tmp_path / "f", md5(CONTENT))
    assert (tmp_path / "f").read_bytes() == CONTENT


def test_a_broken_connection_keeps_the_part_and_the_next_run_ends_it(site: Site, tmp_path: Path) -> None:
    site.files["/f"], site.stop_after = CONTENT, 300_000
    with pytest.raises(Unreachable, match="300000 of 768000"):
        download(f"{site.url}/f", tmp_path / "f", md5(CONTENT))
    assert not (tmp_path / "f").exists()
    assert (tmp_path / "f.part").stat().st_size == 300_000
    site.stop_after = None
    download(f"{site.url}/f", tmp_path / "f", md5(CONTENT))
    assert site.asked[-1] == ("/f", "bytes=300000-")
    assert (tmp_path / "f").read_bytes() == CONTENT


def test_a_wrong_checksum_leaves_nothing(site: Site, tmp_path: Path) -> None:
    site.files["/f"] = CONTENT
    with pytest.raises(BadFile, match="checksum") as caught:
        download(f"{site.url}/f", tmp_path / "f", md5(b"other"))
    assert md5(CONTENT) in caught.value.got
    assert os.listdir(tmp_path) == []


def test_a_stale_part_is_found_by_the_checksum(site: Site, tmp_path: Path) -> None:
    site.files["/f"] = CONTENT
    (tmp_path / "f.part").write_bytes(b"x" * 1000)
    with pytest.raises(BadFile, match="checksum"):
        download(f"{site.url}/f", tmp_path / "f", md5(CONTENT))
    download(f"{site.url}/f", tmp_path / "f", md5(CONTENT))
    assert (tmp_path / "f").read_bytes() == CONTENT


def test_a_file_far_too_large_is_refused(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site.files["/f"] = CONTENT
    monkeypatch.setattr(transfer, "SIZE_LIMIT", 1000)
    with pytest.raises(Unreachable, match="more than any"):
        download(f"{site.url}/f", tmp_path / "f", md5(CONTENT))


def test_a_folder_that_cannot_be_made(site: Site, tmp_path: Path) -> None:
    site.files["/f"] = CONTENT
    (tmp_path / "blocked").write_text("a file where a folder should be")
    with pytest.raises(BadFile, match="must be writable"):
        download(f"{site.url}/f", tmp_path / "blocked" / "f", md5(CONTENT))


def test_a_full_disk(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site.files["/f"] = CONTENT

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(transfer, "_copy", full)
    with pytest.raises(BadFile, match="No space left"):
        download(f"{site.url}/f", tmp_path / "f", md5(CONTENT))


def test_only_http_addresses(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="http"):
        download("file:///etc/hostname", tmp_path / "f", md5(b""))


def a_set(*files: DataFile) -> Dataset:
    def check(path: Path) -> None:
        if not path.read_bytes().startswith(b"form"):
            raise BadFile("form", "no form", "mend it")

    return Dataset(
        name="toy",
        summary="",
        kind="regression",
        terms="",
        load=load_diabetes_task,
        files=files,
        check=check,
    )


def test_only_missing_files_are_fetched_and_nothing_is_overwritten(site: Site, tmp_path: Path) -> None:
    one, two = b"form one", b"form two"
    site.files = {"/toy/one": one, "/toy/sub/two": two}
    toy = a_set(DataFile("one", md5(one), "http://x/one"), DataFile("sub/two", md5(two), "http://x/two"))
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "one").write_bytes(b"form of the user's own")
    assert [file.path for file in fetch_files(toy, toy.files, tmp_path)] == ["sub/two"]
    assert (tmp_path / "toy" / "one").read_bytes() == b"form of the user's own"
    assert [status(toy, file, tmp_path / "toy") for file in toy.files] == ["other", "official"]
    assert fetch_files(toy, toy.files, tmp_path) == []


def test_a_damaged_file_is_not_overwritten(site: Site, tmp_path: Path) -> None:
    toy = a_set(DataFile("one", md5(b"form"), "http://x/one"))
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "one").write_bytes(b"precious")
    with pytest.raises(BadFile, match="not overwritten"):
        fetch_files(toy, toy.files, tmp_path)
    assert (tmp_path / "toy" / "one").read_bytes() == b"precious"


def packed(members: dict[str, bytes | None]) -> bytes:
    """A tar.gz of the members; None makes a symbolic link."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            if content is None:
                info.type, info.linkname = tarfile.SYMTYPE, "/etc/hostname"
                tar.addfile(info)
            else:
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def archived(content: bytes, *members: tuple[str, bytes]) -> Dataset:
    archive = Archive("http://x/all.tar.gz", md5(content))
    return a_set(*(DataFile(name, md5(data), archive=archive) for name, data in members))


def test_an_archive_gives_its_expected_members_and_no_others(site: Site, tmp_path: Path) -> None:
    content = packed(
        {"a/one": b"form 1", "../escaped": b"evil", "/tmp/absolute-evil": b"evil", "a/two": b"form 2"}
    )
    site.files["/toy/all.tar.gz"] = content
    toy = archived(content, ("a/one", b"form 1"), ("a/two", b"form 2"))
    fetch_files(toy, toy.files, tmp_path / "data")
    found = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    assert found == ["data/toy/a/one", "data/toy/a/two"]
    assert not Path("/tmp/absolute-evil").exists()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (packed({"a/two": b"form"}), "no member a/one"),
        (packed({"a/one": None}), "a link"),
        (packed({"a/one": b"form changed"}), "checksum"),
        (packed({"a/one": b"form"})[:-20], "all.tar.gz"),
        (gzip.compress(b"not a tar file"), "all.tar.gz"),
        (b"neither", "all.tar.gz"),
    ],
    ids=["lacks a member", "link", "changed", "cut short", "no tar", "no gzip"],
)
def test_bad_archives(site: Site, tmp_path: Path, content: bytes, said: str) -> None:
    site.files["/toy/all.tar.gz"] = content
    toy = archived(content, ("a/one", b"form"))
    with pytest.raises(BadFile, match=said):
        fetch_files(toy, toy.files, tmp_path)
    assert not (tmp_path / "toy" / "a" / "one").exists()


WITH_FILES = [name for name in DATASETS if DATASETS[name].files]


@pytest.mark.parametrize("name", WITH_FILES)
def test_offline_the_error_names_files_places_and_checksums(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QBAYES_MIRROR", "http://127.0.0.1:9")  # the discard port: nobody listens
    with pytest.raises(MissingFile) as caught:
        fetch(name, tmp_path)
    for file in DATASETS[name].files:
        assert str(tmp_path / name / file.path) in str(caught.value)
        assert file.checksum.partition(":")[2] in str(caught.value)
        assert file.publisher() in str(caught.value)


@pytest.mark.parametrize("name", WITH_FILES)
def test_a_file_that_is_not_there_is_named(name: str, site: Site, tmp_path: Path) -> None:
    with pytest.raises(MissingFile, match="404"):
        fetch(name, tmp_path)
    assert site.asked[0][0].startswith(f"/{name}/")


@pytest.mark.parametrize("name", WITH_FILES)
def test_official_checksums_are_enforced(name: str, site: Site, tmp_path: Path) -> None:
    for file in DATASETS[name].files:
        address = file.archive.url.rpartition("/")[2] if file.archive else file.path
        site.files[f"/{name}/{address}"] = b"an impostor"
    with pytest.raises(BadFile, match="checksum"):
        fetch(name, tmp_path)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    assert {state for _, state in verify(name, tmp_path)} == {"missing"}


def test_names(tmp_path: Path) -> None:
    assert fetch("digits", tmp_path) == []
    with pytest.raises(BadInput, match="did you mean 'mnist'"):
        fetch("mnits", tmp_path)
    with pytest.raises(BadInput, match="did you mean 'uci/boston'"):
        fetch("ucci/boston", tmp_path)
    with pytest.raises(BadInput, match="has no parts"):
        fetch("mnist/train", tmp_path)
    with pytest.raises(MissingFile, match=r"mine/data\.txt"):
        fetch("uci/mine", tmp_path)
    assert verify("uci/boston", tmp_path) == [("bostonHousing/data.txt", "missing")]


def test_checksums_are_those_of_hashlib(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(CONTENT)
    assert checksum_of(tmp_path / "f", "sha256") == "sha256:" + hashlib.sha256(CONTENT).hexdigest()


def test_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QBAYES_DATA", str(tmp_path / "environment"))
    assert data_folder(tmp_path / "given") == tmp_path / "given"
    assert data_folder() == tmp_path / "environment"
    monkeypatch.delenv("QBAYES_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert data_folder() == tmp_path / "cache" / "qbayes"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert data_folder() == tmp_path / "home" / ".cache" / "qbayes"
