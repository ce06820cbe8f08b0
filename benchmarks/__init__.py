"""Speed measured against other ways to do the same work; `python -m benchmarks --data FOLDER` (README.md)."""
