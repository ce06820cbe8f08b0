"""The frozen LLM's likelihood of every answer given every candidate passage, on Ray Data; the one expensive job.

ray job submit --address http://127.0.0.1:8265 -- python jobs/score_utilities.py [--config C] [--workspace W] [--set KEY=VALUE]
"""

from pathlib import Path

from armor_ray.cli import run_job

DEFAULT = Path(__file__).resolve().parent / "configs" / "demo.yaml"

if __name__ == "__main__":
    run_job(str(DEFAULT), until="score")
