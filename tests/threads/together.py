"""Start threads at one instant, and pass on what goes wrong in them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

__all__ = ["run_together"]


def run_together(tasks: Sequence[Callable[[], object]]) -> list[object]:
    """What each task returns, each run in a thread of its own; raises the first exception."""
    start = threading.Barrier(len(tasks))
    results: list[object] = [None] * len(tasks)
    errors: list[BaseException] = []

    def work(index: int) -> None:
        try:
            start.wait()
            results[index] = tasks[index]()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(len(tasks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results
