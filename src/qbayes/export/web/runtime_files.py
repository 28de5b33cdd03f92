"""ONNX Runtime Web: two files of its npm package, in the version that the page was tested with.

They are too large to be kept with the sources: ``make`` fetches them into ``runtime`` beside this file, from
where they go into wheels and into exported pages. Every copy is held to the hashes below.
"""

import hashlib
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

from qbayes.errors import BadFile, BadInput, RunFailed

PACKAGE, VERSION = "onnxruntime-web", "1.30.0"
PACKED_SHA256 = "d2228df7e4616bc3348bf504ee888f3bec43789a273f0a63f3e68d203ce3bf71"
SCRIPT, BINARY = "ort.wasm.bundle.min.mjs", "ort-wasm-simd-threaded.wasm"
SHA256 = {
    SCRIPT: "11e64bd8ffe11bd1a2a2f0d6275fdfbbba7262f0b76b99b53d228a8a22ef3d90",
    BINARY: "3398c10d07d229bd91b364548e130e0e51a8e5704b88c7c083ebbeb78842dee2",
}
VENDORED = Path(__file__).parent / "runtime"
_FETCH = "python -m qbayes.cli.vendor_web"
_PATIENCE_S = 300


def runtime_files(folder: Path | None = None) -> dict[str, bytes]:
    """The script and the binary by name, from ``folder`` or from where they were vendored."""
    place = VENDORED if folder is None else folder
    files: dict[str, bytes] = {}
    for name, wanted in SHA256.items():
        try:
            files[name] = (place / name).read_bytes()
        except OSError as error:
            do = (
                f"fetch it with '{_FETCH}' (needs npm), or unpack {PACKAGE}@{VERSION} and pass --runtime DIST"
                if folder is None
                else f"give the folder dist of {PACKAGE}@{VERSION}"
            )
            raise BadFile(
                f"a page needs ONNX Runtime Web, the file {name}", f"{place}: {error.strerror}", do
            ) from None
        if hashlib.sha256(files[name]).hexdigest() != wanted:
            raise BadFile(
                f"{name} must be that of {PACKAGE} {VERSION}, which the page was tested with",
                f"{place / name} has another sha256",
                f"give the folder dist of that version, or fetch it anew: {_FETCH}",
            )
    return files


def is_vendored() -> bool:
    """Whether pages can be exported without ``--runtime``."""
    return all((VENDORED / name).is_file() for name in SHA256)


def vendor(place: Path = VENDORED) -> list[Path]:
    """Fetch the package with npm, check it, and put the two files into ``place``."""
    npm = shutil.which("npm")
    if npm is None:
        raise BadInput(
            f"npm is needed to fetch {PACKAGE}", "no npm here", "install Node.js, or pass --runtime DIST"
        )
    with tempfile.TemporaryDirectory(prefix="qbayes-") as scratch:
        packed = _pack(npm, Path(scratch))
        if hashlib.sha256(packed.read_bytes()).hexdigest() != PACKED_SHA256:
            raise BadFile(
                f"{PACKAGE} {VERSION} must have the sha256 recorded here",
                "another one",
                "do not use what was fetched; check npm's registry",
            )
        place.mkdir(parents=True, exist_ok=True)
        with tarfile.open(packed) as archive:
            for name in SHA256:
                member = archive.extractfile(f"package/dist/{name}")
                assert member is not None
                (place / name).write_bytes(member.read())
    runtime_files(place)
    return [place / name for name in SHA256]


def _pack(npm: str, folder: Path) -> Path:
    command = [npm, "pack", f"{PACKAGE}@{VERSION}", "--silent", "--fetch-retries=1", "--fetch-timeout=30000"]
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, check=False, timeout=_PATIENCE_S
        )
        told = (done.stderr or done.stdout).strip().splitlines()
    except (OSError, subprocess.TimeoutExpired) as error:
        told = [str(error)]
    found = list(folder.glob("*.tgz"))
    if not found:
        raise RunFailed(
            f"npm must reach {PACKAGE} {VERSION}", told[-1] if told else "no file came", "check the network"
        )
    return found[0]
