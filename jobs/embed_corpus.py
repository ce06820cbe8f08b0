"""The corpus through the frozen encoder on Ray Data, then the FAISS index; runs what comes before if it is missing.

ray job submit --address http://127.0.0.1:8265 -- python jobs/embed_corpus.py [--config C] [--workspace W] [--set KEY=VALUE]
"""

from pathlib import Path

from armor_ray.cli import run_job

DEFAULT = Path(__file__).resolve().parent / "configs" / "demo.yaml"

if __name__ == "__main__":
    run_job(str(DEFAULT), until="index")
