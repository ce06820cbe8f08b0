"""Prometheus metrics of one replica, in a registry of their own; `/metrics` shows those of the replica that answers."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

REGISTRY = CollectorRegistry()
REQUESTS = Counter("armor_ray_requests", "HTTP requests answered.", ["route", "status"], registry=REGISTRY)
REQUEST_SECONDS = Histogram("armor_ray_request_seconds", "Whole request, in the replica.", ["route"], buckets=_SECONDS, registry=REGISTRY)
QUEUE_SECONDS = Histogram("armor_ray_queue_seconds", "Wait of a request for its batch.", buckets=_SECONDS, registry=REGISTRY)
QUEUED = Gauge("armor_ray_queued_requests", "Requests waiting for a batch now.", registry=REGISTRY)
BATCH_TEXTS = Histogram("armor_ray_batch_texts", "Texts encoded together.", buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256), registry=REGISTRY)
ENCODE_SECONDS = Histogram("armor_ray_encode_seconds", "Tokenise and encode one batch.", buckets=_SECONDS, registry=REGISTRY)
SEARCH_SECONDS = Histogram("armor_ray_search_seconds", "Search the index for one batch.", buckets=_SECONDS, registry=REGISTRY)
RERANK_SECONDS = Histogram("armor_ray_rerank_seconds", "Rerank the passages of one batch.", buckets=_SECONDS, registry=REGISTRY)
TRUNCATED = Counter("armor_ray_truncated_texts", "Texts that were cut at the encoder's maximum length.", registry=REGISTRY)
ANSWERS = Counter("armor_ray_answers", "Retrievals answered, by the encoder that read them.", ["arm", "encoder"], registry=REGISTRY)
SHADOWED = Counter("armor_ray_shadowed", "Requests that the other encoder answered unseen, or could not.", ["outcome"], registry=REGISTRY)
SHADOW_OVERLAP = Histogram(
    "armor_ray_shadow_overlap",
    "Share of a query's passages that both encoders found.",
    buckets=(0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0),
    registry=REGISTRY,
)
FAILED_CHANGES = Counter("armor_ray_failed_changes", "Changes of user_config that could not be made.", registry=REGISTRY)
PARTIAL = Counter("armor_ray_partial_answers", "Retrievals answered without some shard.", registry=REGISTRY)
