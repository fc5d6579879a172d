"""A vLLM engine in a process of its own, and what a plan keeps of its answers.

The plan's name and its seconds are the program's arguments; results go to OUT/PLAN.json.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
VLLM = Path(os.environ["VLLM_FOLDER"])
OUT = Path(os.environ["OUT"])
OUT.mkdir(parents=True, exist_ok=True)
PLAN, LIMIT = sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 280.0
BEGIN = time.monotonic()
RESULTS: dict[str, Any] = {"plan": PLAN}


def seconds_left() -> float:
    return LIMIT - (time.monotonic() - BEGIN)


def log(*words: Any) -> None:
    print(f"[{time.monotonic() - BEGIN:6.1f}]", *words, flush=True)


def keep(*path: str, value: Any) -> None:
    section = RESULTS
    for name in path[:-1]:
        section = section.setdefault(name, {})
    section[path[-1]] = value
    (OUT / f"{PLAN}.json").write_text(json.dumps(RESULTS, indent=1))
    log(*path, json.dumps(value)[:400])


class Engine:
    """A vLLM engine in a process of its own."""

    def __init__(
        self,
        name: str,
        backend: str,
        model: str = "llama3-8b",
        options: dict[str, Any] | None = None,
        cache: str = "",
        **variables: str,
    ) -> None:
        self.name, self._lines = name, queue.Queue()
        caches = VLLM / "caches" / (cache or name)
        caches.mkdir(parents=True, exist_ok=True)
        environment = {
            **os.environ,
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_USE_FLASHINFER_SAMPLER": "0",
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            "VLLM_HOST_IP": "127.0.0.1",
            "GLOO_SOCKET_IFNAME": "lo",
            "NCCL_SOCKET_IFNAME": "lo",
            "VLLM_USE_DEEP_GEMM": "0",
            "VLLM_CACHE_ROOT": str(caches / "vllm"),
            "TRITON_CACHE_DIR": str(caches / "triton"),
            "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"),
            "XDG_CACHE_HOME": str(caches / "xdg"),
            "DEJAVU_CACHE_LOG": "info",
            **variables,
        }
        self._log = (OUT / f"{PLAN}-{name}.log").open("w")
        self._process = subprocess.Popen(
            [
                sys.executable,
                str(HERE / "engine.py"),
                name,
                backend,
                str(HERE / "models" / model),
                json.dumps(options or {}),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
            cwd=caches,
        )
        threading.Thread(target=self._read, daemon=True).start()

    def wait_until_started(self) -> None:
        """Wait for the first answer; end the plan if the engine has failed."""
        answer = self._answer(seconds_left())
        keep("start", self.name, value=answer)
        if "error" in answer:
            raise SystemExit(f"engine {self.name}: {answer['error']}; see {self._log.name}")

    def _read(self) -> None:
        for line in self._process.stdout or ():
            self._log.write(line)
            self._log.flush()
            if line.startswith("RESULT "):
                self._lines.put(json.loads(line[7:]))
        self._lines.put({"error": "ended"})

    def _answer(self, seconds: float) -> Any:
        try:
            return self._lines.get(timeout=max(seconds, 1.0))
        except queue.Empty:
            self._process.kill()
            return {"error": "out of time"}

    def tell(self, *command: Any) -> Any:
        if self._process.stdin is None:
            return None
        try:
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            log(self.name, command, "has ended")
            return None
        answer = self._answer(seconds_left())
        if "error" in answer:
            log(self.name, command, answer)
        return answer.get("answer")

    def end(self) -> None:
        keep("counts", self.name, value=self.tell("counts"))
        self._process.kill()
        self._process.wait()
