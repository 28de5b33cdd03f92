"""A worker process: jobs as JSON lines on standard input, events on standard output, all else in its log.

When the input ends, the one who gave the jobs is gone or wants it to stop: training stops behind its step and
leaves a checkpoint, as at Ctrl-C, and the process leaves no work on its device. (Where processes share a GPU
by NVIDIA's MPS, one that is killed amid its work can take all others with it.)
"""

import contextlib
import gc
import json
import os
import queue
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

import torch

from qbayes.errors import Interrupted
from qbayes.lab.study.store.store import StageDamaged, Store, StoreFull, reason_of
from qbayes.lab.study.work.jobs import perform
from qbayes.lab.study.work.worker_context import Workplace

# seconds that a worker has to stop by itself; then it is left, or killed.
PATIENCE = 20.0
# exit codes: the process that gave the jobs is gone; a job raised what nobody foresaw.
_LEFT_ALONE, _BROKEN = 3, 1


def main() -> None:
    # what a shell starts in its background is deaf to this signal, and so would be its children.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Python's own end would abort over the input, which the thread that reads holds.
    sys.excepthook = _break
    try:
        _work()
    except KeyboardInterrupt:
        _leave()


def _work() -> None:
    # what a library prints must not come between the events.
    events = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)
    messages: queue.Queue[dict[str, Any]] = queue.Queue()
    threading.Thread(target=_read, args=(messages,), daemon=True).start()
    conditions = messages.get()
    data_dir = conditions["data_dir"]
    at = Workplace(
        Store(conditions["store"]), None if data_dir is None else Path(data_dir), conditions["device"]
    )
    while True:
        message = messages.get()
        _perform(at, message["job"], message["payload"], events)


def _read(messages: "queue.Queue[dict[str, Any]]") -> None:
    for line in sys.stdin.buffer:
        messages.put(json.loads(line))
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(PATIENCE)
    os._exit(_LEFT_ALONE)


def _break(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """End with what nobody foresaw in the log."""
    traceback.print_exception(kind, error, trace)
    os._exit(_BROKEN)


def _leave() -> None:
    """End at once, with nothing under way on the device."""
    with contextlib.suppress(RuntimeError):
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
    os._exit(_LEFT_ALONE)


def _perform(at: Workplace, job: str, payload: dict[str, Any], events: TextIO) -> None:
    def say(kind: str, text: str) -> None:
        events.write(json.dumps({"job": job, "kind": kind, "text": text}) + "\n")

    at.say = lambda text: say("started", text)
    at.note = lambda text: say("note", text)
    try:
        perform(at, payload)
    except StoreFull as error:
        say("stopped", f"{error.got}")
        return
    except StageDamaged as damage:
        say("damaged", str(damage))
        return
    except (Interrupted, KeyboardInterrupt):
        _leave()
    except BaseException as error:
        # in the log before it is told: whoever hears it lets go of this process.
        traceback.print_exc()
        sys.excepthook = lambda *_: os._exit(_BROKEN)
        say("lost", reason_of(error))
        raise
    _free_device()
    say("done", "")


def _free_device() -> None:
    """Give back what torch keeps of a GPU's memory: other workers share it, and jobs differ in size."""
    if torch.cuda.is_initialized():
        gc.collect()
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
