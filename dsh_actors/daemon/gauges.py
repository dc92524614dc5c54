"""What ``GET /metrics`` tells of the daemon itself, in the text form of Prometheus."""

from __future__ import annotations

import resource
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from dsh_actors.daemon.room import open_descriptors

__all__ = ["Gauges", "Reading"]

Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Reading:
    """One figure, with a value for each set of labels (one without any, mostly)."""

    name: str
    kind: str
    help: str
    values: tuple[tuple[Labels, float], ...] = field(hash=False)

    @staticmethod
    def gauge(name: str, text: str, value: float) -> Reading:
        return Reading(name, "gauge", text, (({}, value),))

    def lines(self) -> Iterable[str]:
        yield f"# HELP {self.name} {self.help}"
        yield f"# TYPE {self.name} {self.kind}"
        for labels, value in self.values:
            pairs = ",".join(f'{key}="{text}"' for key, text in labels.items())
            yield f"{self.name}{{{pairs}}} {value:.17g}" if pairs else f"{self.name} {value:.17g}"


class Gauges:
    """Counts answers; everything else is looked up when somebody asks."""

    def __init__(self) -> None:
        self._answers: Counter[int] = Counter()
        self._started = time.time()

    def answered(self, status: int) -> None:
        self._answers[status] += 1

    def render(self, *readings: Reading) -> str:
        """The whole text: ``readings``, the answers, and what the process itself takes."""
        answers = tuple(({"status": str(status)}, float(n)) for status, n in sorted(self._answers.items()))
        whole = (
            *readings,
            Reading("dsh_http_answers_total", "counter", "Answers of the HTTP interface.", answers),
            Reading.gauge("process_start_time_seconds", "When the daemon started.", self._started),
            Reading.gauge("process_resident_memory_bytes", "Resident memory.", _resident_bytes()),
            Reading.gauge("process_open_fds", "Open file descriptors.", open_descriptors()),
        )
        return "\n".join(line for reading in whole for line in reading.lines()) + "\n"


def _resident_bytes() -> float:
    with open("/proc/self/statm", encoding="ascii") as file:
        return float(int(file.read().split()[1]) * resource.getpagesize())
