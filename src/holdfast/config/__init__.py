"""Configuration in YAML and environment variables: `holdfast.config.load("agents.yaml")`."""

from holdfast.config.loading import Config, PathLike, Report, check, load, of
from holdfast.config.values import Configured, Origin, Problem

__all__ = ["Config", "Configured", "Origin", "PathLike", "Problem", "Report", "check", "load", "of"]
