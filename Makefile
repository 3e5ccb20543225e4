# `make demo` trains on built-in images; `make test` runs the tests of every change, `make test-all` all that there are.
# Each installs what it needs first.
.PHONY: demo test rest test-all docs docs-images gpu gpu-simulated setup setup-tests setup-rest setup-originals check soak

# Tests that run on plain Pillow without FFCV, and again with FFCV's own package and Pillow-SIMD, whose pixels are torch's.
TWICE = tests/data/test_crops.py tests/data/test_ffcv_loader.py tests/data/test_jpeg.py tests/data/test_prepare.py
TEXTS = *.md Dockerfile Makefile mkdocs.yml benchmarks conf docs examples launcher launcher_lab recipes scripts tests
# One worker a core, as far as memory goes; further words, such as --durations=50.
PYTEST = .venv/bin/python -m pytest -n auto --dist loadfile --no-loadscope-reorder $(FLAGS)

# Some images set it; each process then compiles all that it imports, which takes longer than the rest of its start.
export PYTHONDONTWRITEBYTECODE =

demo: setup
	@echo 'To type train instead of .venv/bin/train: source .venv/bin/activate'
	.venv/bin/train recipe=mild dataset=shapes model=resnet18 launch=cpu batch_size=64 schedule.dilate=0.25 algorithms.ema.half_life=25ba

test: setup-tests check
	$(PYTEST)

rest: setup-rest
	PYTHONPATH=$(CURDIR)/.venv/originals $(PYTEST) --rest
	PYTHONPATH=$(CURDIR)/.venv/originals $(PYTEST) $(TWICE)

test-all: test rest

docs: setup-tests
	.venv/bin/mkdocs build --strict

# The images that the pages show.
docs-images: setup-tests
	.venv/bin/python scripts/write_demo.py

gpu:
	@scripts/gpu.sh --out gpu-results $(IMAGES)

gpu-simulated: setup-rest
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

setup-tests: setup
	@scripts/setup_tests.sh

setup-rest: setup
	@scripts/setup_tests.sh rest

setup-originals: setup
	@scripts/setup_originals.sh
