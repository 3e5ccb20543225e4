"""The memory of a machine within the limits of control groups, from files as Linux has them."""

from pathlib import Path

import psutil
import pytest

from launcher.compute.host_memory import usable_memory

_V1 = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
_V2 = "memory.max", "memory.current", "inactive_file"


@pytest.mark.parametrize(
    ("own", "groups", "total", "available", "limited_by"),
    [
        ("0::/a/b\n", {"a": (_V2, "9000", 4000, 1000), "a/b": (_V2, "max", 4000, 0)}, 9000, 6000, "a/memory.max"),
        ("0::/a/b\n", {"a": (_V2, "9000", 8500, 0), "a/b": (_V2, "5000", 10, 0)}, 5000, 500, "a/b/memory.max"),
        ("0::/\n", {".": (_V2, "7000", 7500, 0)}, 7000, 0, "memory.max"),
        ("0::/not/in/this/container\n", {".": (_V2, "7000", 0, 0)}, 7000, 7000, "memory.max"),
        ("4:memory:/a\n3:cpu:/b\n0::/\n", {"memory": (_V1, str(2**63 - 4096), 5, 0), "memory/a": (_V1, "8000", 90, 40)},
         8000, 7950, "memory/a/memory.limit_in_bytes"),
        ("2:cpu,memory:/a\n", {"memory/a": (_V1, "8000", 0, 0)}, 8000, 8000, "memory/a/memory.limit_in_bytes"),
        (None, {".": (_V2, "7000", 0, 0)}, 7000, 7000, "memory.max"),
    ],
)  # fmt: skip
def test_the_narrowest_group_limits_the_memory_and_its_page_cache_is_available(
    own: str | None, groups: dict[str, tuple[tuple[str, str, str], str, int, int]], total: int, available: int,
    limited_by: str, tmp_path: Path,
) -> None:  # fmt: skip
    for group, ((limit_file, used_file, cache), limit, used, cached) in groups.items():
        (tmp_path / group).mkdir(parents=True, exist_ok=True)
        (tmp_path / group / limit_file).write_text(f"{limit}\n")
        (tmp_path / group / used_file).write_text(f"{used}\n")
        (tmp_path / group / "memory.stat").write_text(f"anon 5\n{cache} {cached}\n")
    if own is not None:
        (tmp_path / "own").write_text(own)
    memory = usable_memory(tmp_path, tmp_path / "own")
    assert memory == (total, available, str(tmp_path / limited_by))


def test_without_a_limit_all_of_the_machine_is_usable(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("max\n")
    memory = usable_memory(tmp_path, tmp_path / "none")
    assert memory.total == psutil.virtual_memory().total
    assert memory.limit == "the machine"
