"""Driver of the conformance suite: `driver.py aio` or `driver.py sync`. See clients/conformance/README.md."""

import asyncio
import json
import sys
import threading

import kennel.calls  # noqa: F401 - for raw calls


def emit(message, lock=threading.Lock()):  # noqa: B008 - one lock
    with lock:
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()


def error_of(error, args):
    found = {
        "reason": getattr(error, "reason", ""), "code": getattr(error, "code", ""), "type": type(error).__name__,
        "retryable": getattr(error, "is_retryable", False), "message": str(error), "repr": repr(error),
        "metadata": dict(getattr(error, "metadata", None) or {}),
        "violations": [violation.field for violation in getattr(error, "violations", ())],
    }
    if isinstance(error, asyncio.CancelledError):
        found["reason"] = "CANCELLED"
    elif isinstance(error, TimeoutError) and "timeout_ms" in args:
        found["reason"] = "TIMEOUT"
    return found if isinstance(found["code"], str) else {**found, "code": ""}


def requests():
    for line in sys.stdin:
        yield json.loads(line)


async def answer_aio(driver, request):
    args = request.get("args", {})
    try:
        emit({"n": request["n"], "ok": await driver.answer(request, args)})
    except BaseException as error:
        emit({"n": request["n"], "error": error_of(error, args)})


async def main_aio():
    import aio_ops

    driver, tasks, kept = aio_ops.Driver(emit), {}, set()
    incoming = iter(requests())
    while (request := await asyncio.to_thread(next, incoming, None)) is not None:
        if request["op"] == "cancel":
            tasks[request["args"]["n"]].cancel()
            emit({"n": request["n"], "ok": {}})
            continue
        task = asyncio.create_task(answer_aio(driver, request))
        tasks[request["n"]] = task
        kept.add(task)
        task.add_done_callback(kept.discard)
    for task in list(kept):
        task.cancel()
    await driver.finish()


def answer_sync(driver, request):
    args = request.get("args", {})
    try:
        emit({"n": request["n"], "ok": driver.answer(request, args)})
    except BaseException as error:
        emit({"n": request["n"], "error": error_of(error, args)})


def main_sync():
    import sync_ops

    driver = sync_ops.Driver(emit)
    for request in requests():
        threading.Thread(target=answer_sync, args=(driver, request), daemon=True).start()
    driver.finish()


if sys.argv[1] == "aio":
    asyncio.run(main_aio())
else:
    main_sync()
