"""The source that the operator's settings name."""

from __future__ import annotations

import aiohttp

from dataset_operator.ray.endpoints import ReachPod
from dataset_operator.settings import MetricsSettings
from dataset_operator.sources.base import MetricsSource
from dataset_operator.sources.driver_metrics import RuntimeSource
from dataset_operator.sources.prometheus import PrometheusSource


def build_source(
    settings: MetricsSettings, session: aiohttp.ClientSession, reach_pod: ReachPod
) -> MetricsSource:
    """Build the metrics source of the whole process.

    Args:
        session: for requests to a Prometheus.
        reach_pod: for requests to pods.
    """
    if settings.source == "Prometheus":
        assert settings.prometheus is not None  # by the settings' own rule
        return PrometheusSource(settings=settings.prometheus, session=session)
    return RuntimeSource(reach_pod=reach_pod)
