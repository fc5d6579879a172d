"""Jobs on their way through a pool of workers."""

from __future__ import annotations

import threading

from dejavu_cache.system.worker_pool import WorkerPool


class Hand:
    """A worker, which starts when it may."""

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.may_start = threading.Event()

    def start(self) -> None:
        if self.name == "slow":
            self.may_start.wait(240)


def test_a_worker_works_through_its_own_part_then_where_most_are_left() -> None:
    quick, slow = Hand("quick"), Hand("slow")
    order: list[str] = []

    def attempt(worker: Hand, job: str) -> bool:
        order.append(job)
        return True

    pool = WorkerPool([quick, slow], list("abcdef"), attempt)
    pool.run()
    slow.may_start.set()
    pool.join()
    assert order == list("abcfed")
    assert pool.is_done


def test_a_job_that_is_tried_again_is_its_workers_next_one() -> None:
    order: list[str] = []

    def attempt(worker: Hand, job: str) -> bool:
        order.append(job)
        return order.count(job) == 2

    WorkerPool([Hand()], list("ab"), attempt).run()
    assert order == list("aabb")


def test_an_error_ends_a_worker_and_leaves_its_job_to_others() -> None:
    done: list[str] = []
    is_tried = threading.Event()

    def attempt(worker: Hand, job: str) -> bool:
        if worker.name == "broken":
            is_tried.set()
            raise ValueError("mine")
        is_tried.wait(240)
        done.append(job)
        return True

    pool = WorkerPool([Hand("broken"), Hand()], list("abcd"), attempt)
    pool.run()
    assert sorted(done) == list("abcd")
    assert [str(error) for error in pool.errors] == ["mine"]


def test_a_pool_that_is_stopped_hands_out_nothing_more() -> None:
    order: list[str] = []

    def attempt(worker: Hand, job: str) -> bool:
        order.append(job)
        pool.stop()
        return True

    pool = WorkerPool([Hand()], list("abc"), attempt)
    pool.run()
    pool.join()
    assert order == ["a"]
    assert not pool.is_done
