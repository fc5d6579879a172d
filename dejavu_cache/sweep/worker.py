"""The worker process of a sweep: it measures the cases that its parent names.

The parent replaces it when a config takes it down, so that nothing but that config is lost.
"""

import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from threading import Event, current_thread, local
from typing import Any

from ..errors import DejavuError, NoValidConfigError, SettingsError
from ..model.scenario import Config
from ..model.worth import MissCount, Worth
from ..prewarm.build import CompileJob, Compiler, PrewarmSpec
from ..runtime import rules
from ..runtime.known_records import NEAR_A_TUNE, KnownRecords, UntunedLaunch, fall_back
from ..runtime.request import Request
from ..runtime.tune import predicted_search
from ..stores import TieredStore, open_patiently
from ..system.notices import logger, warn_once
from ..system.workers import ParentConnection, serve
from ..triton_internals import compilation, identity
from ..triton_internals.config_names import describe
from ..triton_internals.environment import environment_here, has_device
from ..triton_internals.hooks import prepare_compilations
from ..tuning import compile_ahead
from ..tuning.tuner import CandidateLaunch
from .case_group import CaseGroup, CaseTuner, current_record, make_request
from .hosts import PATIENCE, CaseJob, CaseOutcome, MissedScenario, SweepSpec
from .journal import Journal
from .suite import Case, Suite, load_suite

BATCHES_EARLY = 2
"""Batches of a search that are compiled before its tune; few searches need more."""

MOST_EARLY = 256
"""Kernels from which on an `EarlyCompiler` begins no more: they stay in memory, some 150 MB."""

FEW = 16
"""Launches from which on processes compile: they take seconds to start."""

EARLY = "dejavu-cache early compile"
"""Name of its threads."""


class EarlyCompiler(ExitStack):
    """Compiles what tunes of many launches measure first, while the launches are looked up.

    Each of its threads has a process that puts kernels into Triton's cache, and then loads them.
    Compilers in one process would wait for each other, and the look-ups for them, since each holds
    the interpreter's lock for a tenth of its time. Where launches are few, or a process cannot,
    the threads compile, once the look-ups are done.
    """

    def __init__(self, kernels: Iterable[Any]) -> None:
        """Compile nothing yet."""
        super().__init__()
        functions = filter(None, map(identity.find_jit_function, kernels))
        modules = [
            identity.module_name(identity.python_function(function)) for function in functions
        ]
        # These modules only: a package may also have scripts.
        self._spec = PrewarmSpec(modules=(), recorded=tuple({*modules}), store="", devices=())
        self._has_processes = len(modules) >= FEW
        self._own, self._compilers, self._are_known = local(), list[Compiler](), Event()
        self._begun: dict[str, Any] = {}
        self._of_cases: dict[str, tuple[Any, list[compile_ahead.Candidate]]] = {}
        threads = compile_ahead.compiling_threads(compile_ahead.MOST_THREADS, EARLY)
        self._pool = self.enter_context(threads)
        self.callback(self._end)
        if self._pool is not None:
            prepare_compilations(self)

    def begin(self, case: str, launch: CandidateLaunch, configs: Sequence[Config]) -> None:
        """Compile configs of a case's launch, whose arguments are not needed after that."""
        if self._pool is not None and len(self._begun) < MOST_EARLY:
            with compilation.compiling_in(self._pool, self._begun):
                new = [compile_ahead.submit(launch, launch.declared[config]) for config in configs]
            self._of_cases[case] = identity.find_jit_function(launch.autotuner), new

    def finish(self, case: str) -> None:
        """Wait for a case's kernels, which are in memory then, as far as they can be compiled."""
        self._are_known.set()
        function, candidates = self._of_cases.pop(case, (None, []))
        for candidate in candidates:
            candidate.finish()
        compilation.forget_failed(function)
        if all(compile_ahead.Candidate(None, kernel).is_done for kernel in self._begun.values()):
            self._end()

    def prepare(self, source: Any, target: Any, options: Any) -> None:
        """Have this thread's process put a kernel into Triton's cache, or wait for the look-ups."""
        if not current_thread().name.startswith(EARLY):
            return
        is_compiled = False
        if self._has_processes:
            try:
                launch = compilation.describe_compilation(source, options, target)
                name, arch = identity.kernel_name(source.fn), environment_here().device.arch
                if not hasattr(self._own, "compiler"):
                    self._own.compiler = Compiler(self._spec, grace=0.0, patience=PATIENCE / 2)
                    self._compilers.append(self._own.compiler)
                job = CompileJob(kernel=name, arch=arch, launch=launch)
                is_compiled = not self._own.compiler.run(job).error
            except Exception as reason:  # of this constant, which has no form in records, or of all
                self._has_processes = isinstance(reason, compilation.UnencodableValueError)
                logger.debug("no process compiles %s: %r", source.fn, reason)
        if not is_compiled:  # a process may also lack a kernel that a function made
            self._are_known.wait()

    def _end(self) -> None:
        """End the processes."""
        self._are_known.set()
        while self._compilers:
            self._compilers.pop().close()


class SweepWorker:
    """Runs the jobs of one process, and tells the parent of each config before it is measured.

    Raises:
        SettingsError: the suite cannot be used, or this machine has no GPU.
        StoreError: the store cannot be used.
    """

    def __init__(self, spec: SweepSpec, parent: ParentConnection) -> None:
        """Load the suite and open the store."""
        self._parent = parent
        self._launches = None if spec.misses is None else dict(spec.misses)
        self._loss = spec.loss
        suite = load_suite(spec.suite)
        cases = suite.load_cases(spec.options)
        if (cases or spec.misses) and not has_device():
            raise SettingsError(
                "Triton finds no GPU here: sweep on the machine that the results are for"
            )
        made = _cases_of_misses(suite, self._launches or ())
        self._cases = {case.name: case for case in (*made, *cases)}
        self.journal = Journal(open_patiently(spec.store))
        self._known = KnownRecords(TieredStore([self.journal]))
        self._compiler = EarlyCompiler(case.kernel for case in self._cases.values())

    @property
    def ready(self) -> dict[str, Any]:
        """The names of all cases."""
        return {"cases": list(self._cases)}

    def close(self) -> None:
        """Hand what the journal has to the store."""
        self.journal.close()
        self._compiler.close()

    def run(self, job: CaseJob) -> CaseOutcome:
        """Run a job.

        An error of the case is part of its outcome; an error of the device is raised.
        """
        start = time.perf_counter()
        outcome = CaseOutcome(case=job.case, status="failed")
        try:
            subject = self._subject(job)
            context, scenario = subject.context, subject.scenario
            missed = MissedScenario(
                kernel=context.kernel.name,
                device=context.environment.device.name,
                scenario=scenario,
            )
            update = {"kernel": missed.kernel, "device": missed.device, "scenario": str(scenario)}
            key = f"{context.digest}/{scenario.digest}"
            outcome = outcome.model_copy(update={**update, "key": key})
            if self._launches is not None and missed not in self._launches:
                changes: dict[str, Any] = {"status": "unwanted"}
            else:
                changes = self._outcome_of(job, subject)
                if job.worth:
                    changes["worth"] = self._add_saved(job.worth, subject)
                elif self._launches and isinstance(subject, Request):
                    changes["worth"] = self._predict(subject, self._launches[missed])
        except NoValidConfigError as error:
            changes = {"message": str(error)}
        except Exception as error:
            if not isinstance(error, DejavuError) and not _device_works():
                raise
            status = "skipped" if compile_ahead.is_out_of_memory(error) else "failed"
            changes = {"status": status, "message": f"{type(error).__name__}: {error}"[:2000]}
        seconds = round(time.perf_counter() - start, 3)
        return outcome.model_copy(update={**changes, "seconds": seconds})

    def _subject(self, job: CaseJob) -> Request | CaseGroup:
        if job.group and job.do == "measure":
            return CaseGroup([self._cases[name] for name in job.group], self.journal, self._loss)
        return make_request(self._cases[job.case], self._loss)

    def _outcome_of(self, job: CaseJob, subject: Request | CaseGroup) -> dict[str, Any]:
        if job.do == "measure":
            self._compiler.finish(job.case)
        if isinstance(subject, CaseGroup):
            return subject.measure(CaseTuner(job, self._parent, self.journal))
        if job.do == "measure":
            return self._measure(job, subject)
        record = current_record(self.journal, subject.context, subject.scenario)
        best = rules.best_config(subject, record)
        cases = record.by_config[best].cases if best else None  # None: the timing is of all
        is_new = cases is not None and job.case not in cases
        is_due = rules.has_work(subject, record) or not (
            best is None or record.pinned or rules.is_trusted(subject, record, best)
        )
        if job.compiles and (is_due or is_new):
            due = rules.due_configs(subject, record)
            limit = rules.budgeted_count(subject, len(due))
            if search := predicted_search(subject, record, self._known, due, limit):
                launch = subject.candidate_launch()
                self._compiler.begin(job.case, launch, search.ask(BATCHES_EARLY))
        return {"status": "due" if is_due or is_new else "known"}

    def _predict(self, request: Request, launches: int) -> Worth:
        """Predict what a tune would have saved launches of the config that runs without one."""
        near = self._known.near_a_launch(request)
        runs = describe(fall_back(request, near, uncompared=True).config)
        near = list(self._known.neighbours(request, NEAR_A_TUNE))
        saving = UntunedLaunch.of(request, runs, near).predict_saving()
        return Worth.of(MissCount(launches, saving), runs)

    def _add_saved(self, worth: Worth, subject: Request | CaseGroup) -> Worth:
        """Add what a tune would have saved, if it has measured what ran and has a winner."""
        stored = self.journal.get(subject.context, subject.scenario)
        if stored is None or stored.record.winner is None:
            return worth
        times = {entry.config: entry.median for entry in stored.record.measurements}
        before, after = worth.runs and times.get(worth.runs), times.get(stored.record.winner.config)
        saved = worth.launches * (before - after) / 1e3 if before and after else None
        return worth.model_copy(update={"saved": saved})

    def _measure(self, job: CaseJob, request: Request) -> dict[str, Any]:
        resolution, measured = CaseTuner(job, self._parent, self.journal).tune(request)
        record = current_record(self.journal, request.context, request.scenario)
        if resolution.how == "pinned":
            return {"status": "known"}
        if measured and not record.measurements:
            return {"message": "its measurements are not recorded: nothing can be written"}
        due = bool(rules.due_configs(request, record))
        if not due and rules.best_config(request, record) is None:
            message = "no config has a usable timing: `dejavu-cache show` lists the failures"
            return {"message": message, "measured": measured}
        if measured:
            is_partial = due and job.until is not None
            return {"status": "partial" if is_partial else "tuned", "measured": measured}
        # Without the lease nothing was measured, unless its last holder has finished the record.
        is_tuned = resolution.how == "tuned" or not rules.has_work(request, record)
        return {"status": "known" if is_tuned else "busy"}


def _cases_of_misses(suite: Suite, misses: Iterable[MissedScenario]) -> Iterator[Case]:
    """Yield the cases that a suite makes for what was missed on this device."""
    if not misses:
        return
    device = environment_here().device.name
    for miss in misses:
        if miss.device == device:
            try:
                yield from suite.cases_for(miss.kernel, miss.scenario)
            except SettingsError as error:  # the scenario may be one of older code
                warn_once(f"{miss}", f"no case of {miss.kernel}{miss.scenario}: {error}")


def _device_works() -> bool:
    """Return whether this process's device can still be used after an error."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return True
    try:
        torch.cuda.synchronize()
    except Exception:
        return False
    return True


def main() -> None:
    """Serve the parent."""
    serve(SweepWorker, SweepSpec, CaseJob)
