"""The stages of a job as files in memory: what a node without the store's folder is sent, and sends back."""

import json
from collections.abc import Mapping
from typing import Any

from qbayes.lab.study.store.store import CHECKPOINT, DONE, FAILED, Store
from qbayes.posterior.storage.save import write_atomically

Files = dict[str, bytes]


def stages_of(payload: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The stages that a job reads or makes, as (stage, key), each after those that it starts from."""
    if payload["kind"] == "float":
        start = payload.get("start")
        before = [] if start is None else [("float", str(start))]
        return before + [("float", key) for key, _ in payload["stages"]]
    if payload["kind"] == "quantised":
        floats = dict.fromkeys(payload["floats"])
        made = [("quantised", key) for key, _ in payload["stages"]]
        return [("float", key) for key in floats] + made + [("program", key) for key in payload["programs"]]
    before = [(stage, payload[stage]) for stage in ("float", "quantised", "program")]
    return [(stage, key) for stage, key in before if key is not None] + [
        ("scores", key) for key, _ in payload["runs"]
    ]


def pack(store: Store, stage: str, key: str) -> Files:
    """What is in the folder of a stage that is done or failed; of a failure, its reason alone."""
    folder = store.stage(stage, key)
    if not store.is_done(stage, key):
        return {FAILED: (folder / FAILED).read_bytes()}
    names = [path.relative_to(folder) for path in sorted(folder.rglob("*")) if path.is_file()]
    return {name.as_posix(): (folder / name).read_bytes() for name in names if name.parts[0] != CHECKPOINT}


def unpack(store: Store, stage: str, key: str, files: Files) -> None:
    """Put a stage into a store: each file whole, ``done.json`` after all the others."""
    if FAILED in files:
        store.fail(stage, key, str(json.loads(files[FAILED]).get("reason", "")))
    elif not store.is_done(stage, key):
        folder = store.begin(stage, key)
        for name, content in files.items():
            if name != DONE:
                write_atomically(folder / name, content)
        store.finish(stage, key, json.loads(files[DONE]))
