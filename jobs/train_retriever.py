"""The sweep on Ray Tune, then every recipe and seed on Ray Train.

ray job submit --address http://127.0.0.1:8265 -- python jobs/train_retriever.py [--config C] [--workspace W] [--set KEY=VALUE]
"""

from pathlib import Path

from armor_ray.cli import run_job

DEFAULT = Path(__file__).resolve().parent / "configs" / "demo.yaml"

if __name__ == "__main__":
    run_job(str(DEFAULT), until="train")
