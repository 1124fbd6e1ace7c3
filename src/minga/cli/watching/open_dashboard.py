"""What `minga dashboard` and `minga host --dashboard` share: settings, and what is said about the addresses."""

from __future__ import annotations

from minga.cli.terminal.output import Output
from minga.core.errors import ConfigurationError

try:
    from minga.dashboard.dashboard import Dashboard
    from minga.dashboard.settings import DashboardSettings
except ModuleNotFoundError as error:
    package = (error.name or "").partition(".")[0]
    raise ConfigurationError(
        f"the dashboard needs the package {package}: python -m pip install '.[dashboard]' in the source of minga"
    ) from error


def checked_settings(listen: str, *, public: bool, url: str | None) -> DashboardSettings:
    """The settings that the options say. Raises `ConfigurationError`."""
    return DashboardSettings.listening(listen, public=public, url=url)


def announce_dashboard(dashboard: Dashboard, output: Output) -> None:
    """Say where it is."""
    settings = dashboard.settings
    output.event("dashboard", url=dashboard.url, organiser_url=dashboard.organiser_url)
    output.say(f"The dashboard: {dashboard.url}")
    if settings.public and not settings.is_local:
        output.say("Every person who reaches this address may look.")
    elif settings.needs_token:
        output.say("Viewers need this address with its token.")
    if dashboard.organiser_url is not None:
        output.say(f"For you as the organiser, with orders: {dashboard.organiser_url}")
