"""Configuration in YAML and environment variables: `holdfast.config.load("agents.yaml")`."""

from holdfast.config.loader import Config, ConfigReport, PathLike, check, load, of
from holdfast.config.values import ConfigProblem, Configured, ValueOrigin

__all__ = [
    "Config",
    "ConfigProblem",
    "ConfigReport",
    "Configured",
    "PathLike",
    "ValueOrigin",
    "check",
    "load",
    "of",
]
