"""Who calls listeners: threads for plain functions, tasks of an event loop for coroutine functions.

Pieces wait in one line. A worker that finds none takes the back half of what another one has not begun: threads
after a millisecond, so that a fast listener is not disturbed; tasks at once, because where one runs others wait.
At most `size` workers exist, and they come as work comes; size may change at any time.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final, Generic, TypeVar

from rmq_core.client.listeners import Piece
from rmq_core.client.process_queue import ProcessQueue

T = TypeVar("T")
STEAL_AFTER_S: Final = 0.001
_here = threading.local()
_here_task: contextvars.ContextVar[object] = contextvars.ContextVar("rmq_listener_of", default=None)


class Mailbox(Generic[T]):
    """Brings what any thread posts to a function on a loop, in order, with one wake-up however much is posted."""

    def __init__(self, loop: asyncio.AbstractEventLoop, deliver: Callable[[T], None]) -> None:
        self._loop = loop
        self._deliver = deliver
        self._posted: deque[T] = deque()
        self._is_woken = False

    def post(self, item: T) -> None:
        """Deliver it soon. Lost where the loop is closed: nobody is left who wants it."""
        self._posted.append(item)
        if not self._is_woken:
            # Two threads may both see False and wake twice; nobody sees True while nothing will come.
            self._is_woken = True
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._drain)

    def _drain(self) -> None:
        self._is_woken = False
        for _ in range(len(self._posted)):
            item = self._posted.popleft()
            try:
                self._deliver(item)
            except Exception as error:  # one item's defect must not hold back the others
                self._loop.call_exception_handler({"message": f"{item!r} was not delivered", "exception": error})


class ThreadWorkers:
    """Threads that call plain functions."""

    def __init__(self, name: str, size: int, owner: object) -> None:
        self._name = name
        self._size = size
        self._owner = owner
        self._changed = threading.Condition()
        self._pieces: deque[Piece] = deque()
        self._running: set[Piece] = set()
        self._threads: set[threading.Thread] = set()
        self._idle = 0
        self._is_watched = False
        """Whether an idle worker looks every millisecond what there is to take from others."""
        self._is_paused = self._is_stopping = False
        self._made = 0

    def __repr__(self) -> str:
        return f"ThreadWorkers({self._name!r}, {len(self._threads)} of {self._size})"

    @staticmethod
    def owner_here() -> object:
        """Whose worker the calling thread is."""
        return getattr(_here, "owner", None)

    def put(self, piece: Piece) -> None:
        """Work on it as soon as somebody is free."""
        with self._changed:
            self._pieces.append(piece)
            if not self._is_watched:
                self._bring_one()

    def withdraw(self, queue: ProcessQueue) -> None:
        """Take a halted queue's pieces that nobody has begun out of the line."""
        with self._changed:
            waiting = [each for each in self._pieces if each.queue is queue]
            for piece in waiting:
                self._pieces.remove(piece)
        for piece in waiting:
            piece.report(is_last=True, busy_s=0.0)

    def running(self) -> list[Piece]:
        """What is being worked on."""
        with self._changed:
            return list(self._running)

    def resize(self, size: int) -> None:
        """Have at most so many workers; those too many end after the call they are in."""
        with self._changed:
            self._size = size
            self._changed.notify_all()
            for _ in self._pieces:
                self._bring_one()

    def pause(self) -> None:
        """Begin no further call."""
        self._is_paused = True

    def resume(self) -> None:
        """Go on."""
        with self._changed:
            self._is_paused = False
            self._changed.notify_all()
            for _ in self._pieces:
                self._bring_one()

    async def stop(self, timeout_s: float) -> None:
        """End all workers. One whose listener does not return is left behind; it is a daemon."""
        with self._changed:
            self._is_stopping = True
            self._pieces.clear()
            self._changed.notify_all()
        deadline = time.monotonic() + timeout_s
        while self._threads and time.monotonic() < deadline:
            await asyncio.sleep(0.001)
            self._threads = {each for each in self._threads if each.is_alive()}

    def _bring_one(self) -> None:
        if self._idle:
            self._changed.notify()
        elif len(self._threads) < self._size and not self._is_stopping:
            self._made += 1
            thread = threading.Thread(target=self._work, name=f"{self._name}-{self._made}", daemon=True)
            self._threads.add(thread)
            thread.start()

    def _work(self) -> None:
        _here.owner = self._owner
        piece: Piece | None = None
        is_finished = True
        while (piece := self._take(piece, is_finished=is_finished)) is not None:
            is_finished = piece.run(self._must_stop)

    def _must_stop(self) -> bool:
        return self._is_paused or len(self._threads) > self._size

    def _take(self, last: Piece | None, *, is_finished: bool) -> Piece | None:
        with self._changed:
            if last is not None:
                self._running.discard(last)
                if not is_finished:
                    _put_back(last, self._pieces)
            while True:
                if self._is_stopping or len(self._threads) > self._size:
                    self._threads.discard(threading.current_thread())
                    return None
                piece = None if self._is_paused else self._next()
                if piece is not None:
                    piece.begun = time.monotonic()
                    self._running.add(piece)
                    if not self._is_watched and (self._pieces or any(map(_may_be_split, self._running))):
                        self._bring_one()
                    return piece
                self._wait()

    def _next(self) -> Piece | None:
        if self._pieces:
            return self._pieces.popleft()
        begun_before = time.monotonic() - STEAL_AFTER_S
        return _back_half_of(each for each in self._running if each.begun < begun_before)

    def _wait(self) -> None:
        watches = not self._is_watched and not self._is_paused and any(map(_may_be_split, self._running))
        self._idle += 1
        self._is_watched = self._is_watched or watches
        self._changed.wait(STEAL_AFTER_S if watches else None)
        self._idle -= 1
        if watches:
            self._is_watched = False


class Crew:
    """The workers of one consumer: each kind comes into being when a listener needs it."""

    def __init__(
        self, name: str, size: int, owner: object, task_loop: Callable[[], asyncio.AbstractEventLoop]
    ) -> None:
        """task_loop gives the loop that coroutine listeners run on."""
        self._name = name
        self._size = size
        self._owner = owner
        self._task_loop = task_loop
        self._threads: ThreadWorkers | None = None
        self._tasks: TaskWorkers | None = None
        self._is_paused = False

    @property
    def size(self) -> int:
        """How many listeners of each kind may run at once."""
        return self._size

    def put(self, piece: Piece) -> None:
        """Work on it as soon as somebody is free."""
        if piece.listener.is_coroutine:
            if self._tasks is None:
                self._tasks = TaskWorkers(self._task_loop(), self._size, self._owner)
                if self._is_paused:
                    self._tasks.pause()
            self._tasks.put(piece)
        else:
            if self._threads is None:
                self._threads = ThreadWorkers(self._name, self._size, self._owner)
                if self._is_paused:
                    self._threads.pause()
            self._threads.put(piece)

    def withdraw(self, queue: ProcessQueue) -> None:
        """Take a halted queue's pieces that nobody has begun out of the line."""
        for workers in self._kinds():
            workers.withdraw(queue)

    def running(self) -> list[Piece]:
        """What is being worked on."""
        return [piece for workers in self._kinds() for piece in workers.running()]

    def resize(self, size: int) -> None:
        """Let so many listeners of each kind run at once from now on."""
        self._size = size
        for workers in self._kinds():
            workers.resize(size)

    def pause(self) -> None:
        """Begin no further call."""
        self._is_paused = True
        for workers in self._kinds():
            workers.pause()

    def resume(self) -> None:
        """Go on."""
        self._is_paused = False
        for workers in self._kinds():
            workers.resume()

    async def stop(self, timeout_s: float) -> None:
        """End all workers. Later work brings new ones."""
        kinds, self._threads, self._tasks = self._kinds(), None, None
        for workers in kinds:
            await workers.stop(timeout_s)

    def _kinds(self) -> list[ThreadWorkers | TaskWorkers]:
        return [each for each in (self._threads, self._tasks) if each is not None]


class TaskWorkers:
    """Tasks that call coroutine functions, on the consumer's own loop or on another one."""

    def __init__(self, loop: asyncio.AbstractEventLoop, size: int, owner: object) -> None:
        self._loop = loop
        self._size = size
        self._owner = owner
        self._pieces: deque[Piece] = deque()
        self._running: set[Piece] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_paused = self._is_stopping = False

    def __repr__(self) -> str:
        return f"TaskWorkers({len(self._tasks)} of {self._size})"

    @staticmethod
    def owner_here() -> object:
        """Whose listener the calling task is, or was started by."""
        return _here_task.get()

    def put(self, piece: Piece) -> None:
        """Work on it as soon as somebody is free."""
        self._there(self._put, piece)

    def withdraw(self, queue: ProcessQueue) -> None:
        """Take a halted queue's pieces that nobody has begun out of the line."""
        self._there(self._withdraw, queue)

    def running(self) -> list[Piece]:
        """What is being worked on."""
        return list(self._running)

    def resize(self, size: int) -> None:
        """Have at most so many workers; those too many end after the call they are in."""
        self._size = size
        self._there(self._begin_waiting)

    def pause(self) -> None:
        """Begin no further call."""
        self._is_paused = True

    def resume(self) -> None:
        """Go on."""
        self._is_paused = False
        self._there(self._begin_waiting)

    async def stop(self, timeout_s: float) -> None:
        """End all workers; listeners that have not returned are cancelled."""
        if asyncio.get_running_loop() is self._loop:
            await self._stop(timeout_s)
        else:
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._stop(timeout_s), self._loop))

    def _there(self, function: Callable[..., None], *arguments: Any) -> None:
        try:
            is_here = asyncio.get_running_loop() is self._loop
        except RuntimeError:
            is_here = False
        if is_here:
            function(*arguments)
        else:
            with contextlib.suppress(RuntimeError):  # the loop ended, and its tasks with it
                self._loop.call_soon_threadsafe(function, *arguments)

    def _put(self, piece: Piece) -> None:
        self._pieces.append(piece)
        self._begin()

    def _withdraw(self, queue: ProcessQueue) -> None:
        waiting = [each for each in self._pieces if each.queue is queue]
        for piece in waiting:
            self._pieces.remove(piece)
            piece.report(is_last=True, busy_s=0.0)

    def _begin_waiting(self) -> None:
        for _ in range(len(self._pieces)):
            self._begin()

    def _begin(self) -> None:
        if len(self._tasks) < self._size and not self._is_paused and not self._is_stopping:
            self._tasks.add(self._loop.create_task(self._work()))

    async def _work(self) -> None:
        _here_task.set(self._owner)
        task = asyncio.current_task()
        assert task is not None
        try:
            await self._work_on()
        finally:
            # At once, not in a call-back: who puts a piece meanwhile must not count on this task.
            self._tasks.discard(task)

    async def _work_on(self) -> None:
        while len(self._tasks) <= self._size and (piece := self._next()) is not None:
            piece.begun = time.monotonic()
            self._running.add(piece)
            self._loop.call_soon(self._help, piece)
            try:
                is_finished = await piece.run_coroutine(self._must_stop)
            finally:
                self._running.discard(piece)
            if not is_finished:
                _put_back(piece, self._pieces)
            await asyncio.sleep(0)  # listeners that never wait must leave time for the others on this loop

    def _help(self, piece: Piece) -> None:
        """Runs when the worker of a piece waits within its listener, or has finished."""
        if piece in self._running and (self._pieces or any(map(_may_be_split, self._running))):
            self._begin()

    def _next(self) -> Piece | None:
        if self._is_paused or self._is_stopping:
            return None
        if self._pieces:
            return self._pieces.popleft()
        return _back_half_of(self._running)

    def _must_stop(self) -> bool:
        return self._is_paused or len(self._tasks) > self._size

    async def _stop(self, timeout_s: float) -> None:
        self._is_stopping = True
        self._pieces.clear()
        tasks = set(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=timeout_s)


def _put_back(piece: Piece, line: deque[Piece]) -> None:
    """What a worker had to leave comes first; of a queue that was halted meanwhile nothing comes any more."""
    if piece.queue.is_halted:
        piece.report(is_last=True, busy_s=0.0)
    else:
        line.appendleft(piece)


def _back_half_of(running: Iterable[Piece]) -> Piece | None:
    """Half of the piece of which most is left."""
    longest = max(filter(_may_be_split, running), key=lambda piece: len(piece.messages), default=None)
    return None if longest is None else longest.split()


def _may_be_split(piece: Piece) -> bool:
    return bool(piece.messages) and not piece.listener.is_ordered
