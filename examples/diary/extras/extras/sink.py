from pathlib import Path

from launcher.config.tasks import TaskConfig
from launcher.records.metrics import EvalRecord, Record


class DiarySink:
    def __init__(self, path: Path, task: TaskConfig):
        self._file, self._task = path.open("a"), task

    def write(self, record: Record) -> None:
        if isinstance(record, EvalRecord):
            print(f"step {record.step}: {self._task.text(record.metrics)}", file=self._file, flush=True)

    def close(self) -> None:
        self._file.close()
