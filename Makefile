# `make demo` trains on built-in images; `make test` runs every check. Both install what they need first.
.PHONY: demo test quick gpu gpu-simulated setup setup-tests setup-originals check soak

# Tests that run with FFCV's own package and Pillow-SIMD, whose pixels are equal, and again on plain Pillow without FFCV.
PLAIN = tests/data/test_ffcv_loader.py tests/data/test_jpeg.py tests/data/test_prepare.py
TEXTS = *.md Dockerfile Makefile mkdocs.yml benchmarks conf docs launcher launcher_lab recipes scripts tests

# Some images set it; each process then compiles all that it imports, which takes longer than the rest of its start.
export PYTHONDONTWRITEBYTECODE =

demo: setup
	@echo 'To type train instead of .venv/bin/train: source .venv/bin/activate'
	.venv/bin/train recipe=mild dataset=shapes model=resnet18 launch=cpu batch_size=64 schedule.dilate=0.25 algorithms.ema.half_life=25ba

test: setup-tests check
	PYTHONPATH=$(CURDIR)/.venv/originals .venv/bin/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder
	.venv/bin/python -m pytest -n 2 --dist loadfile $(PLAIN)

quick: setup check
	.venv/bin/python -m pytest -m "not system"

gpu:
	@scripts/gpu.sh --out gpu-results $(IMAGES)

gpu-simulated: setup-tests
	GPU_SIMULATED=all .venv/bin/python -m pytest -n 2 --dist loadfile tests/simulated_gpu

soak: setup-tests
	KILLS=100 .venv/bin/python -m pytest -n 0 tests/faults/test_ranks.py -k killed_repeatedly

check: setup
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/codespell -D - -D scripts/words.txt $(TEXTS)
	.venv/bin/mypy

setup:
	@scripts/setup.sh

setup-tests:
	@scripts/setup.sh tests

setup-originals: setup
	@scripts/setup_originals.sh
