"""Everything: from documents and questions to the promoted query encoder, chosen by a sweep, and the report.

    ray job submit --address http://127.0.0.1:8265 -- python jobs/armor_sweep.py [--config C] [--workspace W] [--set KEY=VALUE]

Without --config it runs the demo, and says so.
"""

from pathlib import Path

from armor_ray.cli import run_job

DEFAULT = Path(__file__).resolve().parent / "configs" / "demo.yaml"

if __name__ == "__main__":
    run_job(str(DEFAULT))
