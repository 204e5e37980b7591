# Recipes for developers. `just` comes with the dev extra (package rust-just).

default: check test

# everything a change must pass before it is committed
check: lint types layers

lint:
    ruff check .
    ruff format --check .

types:
    mypy

layers:
    lint-imports

# the fast suites
test *args:
    python -m pytest -m "not slow" -n 2 --dist loadfile --max-worker-restart 1 {{args}}

# crash, soak and large-zone suites
slow *args:
    python -m pytest -m slow {{args}}

# the server of the Kubernetes tests, and external-dns, built once: wants Go
kube-assets:
    python -m tests.kube.assets
    python -m tests.kube.external_dns

# the Kubernetes suite, on a real API server
test-kube *args: kube-assets
    python -m pytest -m slow tests/kube {{args}}

# a day of told time, a write and 80 calls a minute: memory is flat
soak minutes="1440":
    KUDURRU_SOAK_MINUTES={{minutes}} python -m pytest -m slow -s tests/soak

# 24 million queries while names come, change and go: every answer is compared, memory is flat
endurance queries="24000000":
    KUDURRU_ENDURANCE_QUERIES={{queries}} python -m pytest -m slow -s tests/native/test_endurance.py

# 1,000 kills of a writer, and those of a server
crash:
    KUDURRU_CRASHES=1000 python -m pytest -m slow tests/simulation/test_crash.py tests/blackbox/test_crash.py

# coverage-guided fuzzing; wants the extra fuzz
fuzz *args:
    python -m tests.fuzz {{args}}

# messages of chance for the native engine's core, under sanitizers; another seed at every run
fuzz-engine messages="100000000" seed=`date +%s`:
    @echo "seed {{seed}}"
    KUDURRU_FUZZ_SEED={{seed}} KUDURRU_FUZZ_MESSAGES={{messages}} python -m pytest -m slow -s tests/native

# builds the native engine into this tree; pip install does so too
engine:
    python setup.py build_ext --inplace

# what a release is, in dist/; wants the extra wheels. See docs/release.md
wheels *args:
    python deploy/wheels.py {{args}}

# prints figures beside peers and floors; asserts nothing
bench *args:
    python -m tests.bench {{args}}

# schemas and reference pages from the code
schemas:
    python -m kudurru.entrypoints.schemas
