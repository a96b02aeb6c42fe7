//! Holds nothing: the tests are in `tests/`, and `make test-containers` runs them.
