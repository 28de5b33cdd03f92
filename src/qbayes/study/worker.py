"""A worker process: jobs as JSON lines on standard input, events on standard output, all else in its log."""

import json
import os
import queue
import sys
import threading
import traceback
from pathlib import Path
from typing import Any, TextIO

from qbayes.errors import Interrupted
from qbayes.study.store import Store, StoreFull
from qbayes.study.work import perform
from qbayes.study.workplace import Workplace

_LEFT_ALONE = 3  # exit code: the process that gave the jobs is gone


def main() -> None:
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
    os._exit(_LEFT_ALONE)


def _perform(at: Workplace, job: str, payload: dict[str, Any], events: TextIO) -> None:
    def say(kind: str, text: str) -> None:
        events.write(json.dumps({"job": job, "kind": kind, "text": text}) + "\n")

    at.say = lambda text: say("started", text)
    try:
        perform(at, payload)
    except StoreFull as error:
        say("stopped", f"{error.got}")
        return
    except (Interrupted, KeyboardInterrupt):
        os._exit(_LEFT_ALONE)
    except BaseException:
        traceback.print_exc()
        raise
    say("done", "")


if __name__ == "__main__":
    main()
