"""The app that one writes first: FastAPI, sentence-transformers and FAISS in one process, no batching, no limits.

What `benchmarks.serve` measures ours against. Same weights, same vectors, same passages, same five results.

    python -m benchmarks.plain_app FOLDER PORT      FOLDER: encoder/, index.faiss, passages.parquet
"""

from __future__ import annotations

import sys
from pathlib import Path

import faiss
import pyarrow.parquet as pq
import torch
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from sentence_transformers import SentenceTransformer


class Question(BaseModel):
    query: str
    k: int = 5


def build(folder: Path) -> FastAPI:
    """The app over a folder; its endpoint runs on FastAPI's thread pool, as blocking endpoints do."""
    model = SentenceTransformer(str(folder / "encoder"), device="cpu")
    index = faiss.read_index(str(folder / "index.faiss"))
    passages = pq.read_table(folder / "passages.parquet", columns=["doc_id", "title", "text"]).to_pylist()
    app = FastAPI()

    @app.post("/v1/retrieve")
    def retrieve(question: Question) -> dict:
        vector = model.encode_query([question.query], show_progress_bar=False)
        scores, rows = index.search(vector, question.k)
        found = [{"passage_id": int(row), "score": float(score), **passages[row]} for score, row in zip(scores[0], rows[0], strict=True)]
        return {"results": [{"query": question.query, "passages": found}]}

    @app.get("/health")
    def health() -> dict:
        return {"status": "ok"}

    return app


if __name__ == "__main__":
    torch.set_num_threads(1)
    faiss.omp_set_num_threads(1)
    uvicorn.run(build(Path(sys.argv[1])), host="127.0.0.1", port=int(sys.argv[2]), log_level="warning")
