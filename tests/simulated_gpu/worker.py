"""Run a job on the simulated device as one rank: `python -m tests.simulated_gpu.worker JOB RESULT`, JSON files."""

import json
import os
import sys
import traceback
import warnings
from pathlib import Path
from typing import Any

from tests.simulated_gpu import edits


def main(job: dict[str, Any], result: Path) -> int:
    """Run the job's function with its arguments; write what it returns, on rank 0."""
    warnings.filterwarnings("ignore")
    edits.install(job.get("edits", {}))
    from tests.simulated_gpu import jobs  # note: after the import hook

    returned = getattr(jobs, job["function"])(**job["arguments"])
    if os.environ["RANK"] == "0":
        result.write_text(json.dumps(returned))
    return 0


if __name__ == "__main__":
    try:
        code = main(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    # note: other ranks would wait for this one at an ordinary exit
    os._exit(code)
