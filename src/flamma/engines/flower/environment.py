"""The environment of the child processes that run Flower and Ray."""

from __future__ import annotations

KEPT_VARIABLE = "FLAMMA_FLOWER_KEPT"
"""The environment variable that tells the clients of a simulation where they keep vectors."""

NOTES_VARIABLE = "FLAMMA_FLOWER_NOTES"
"""The environment variable that tells the clients of a simulation where their notes are kept."""

OFFLINE_ENVIRONMENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DISABLE_IMPORT_WARNING": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
"""Variables that keep Flower and Ray from calling home, installing packages and warning."""
